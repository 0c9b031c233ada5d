"""The command ``dasgrad``: reproduce the experiments, with records, tables, figures and a page."""

import argparse
import sys
from collections.abc import Sequence

import dasgrad
from dasgrad.experiments.arguments import INSTALL, missing_extras
from dasgrad.experiments.command import (
    EXAMPLES,
    add_list_parser,
    add_run_parser,
    run_list_command,
    run_run_command,
)
from dasgrad.experiments.datasets.command import add_data_parser, run_data_command
from dasgrad.report.command import add_report_parser, run_report_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a failure, 130 for Ctrl-C.

    Raises:
        SystemExit: by argparse: with 0 for ``--help`` and ``--version``, with 2 for arguments it refuses.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser, run_parser = build_parsers()
    options = parser.parse_args(arguments)
    if options.command == "data":
        return run_data_command(options)
    if options.command == "list":
        return run_list_command(options)
    if options.command == "report":
        return _report(options)
    return run_run_command(run_parser, options, arguments)


def _report(options: argparse.Namespace) -> int:
    missing = missing_extras(("matplotlib", "pyarrow"))
    if missing:
        print(f"dasgrad report needs {', '.join(missing)}: {INSTALL}", file=sys.stderr)
        return 1
    return run_report_command(options)


def build_parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of the whole command, and that of ``run``."""
    parser = argparse.ArgumentParser(
        prog="dasgrad",
        description="Double adaptive stochastic gradients: reproduce the experiments.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dasgrad {dasgrad.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = add_run_parser(commands)
    add_list_parser(commands)
    add_report_parser(commands)
    add_data_parser(commands)
    return parser, run
