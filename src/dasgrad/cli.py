"""The command ``dasgrad``: reproduce the experiments, with records, tables, figures and a page."""

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import dasgrad
from dasgrad.experiments import EXPERIMENTS, Experiment, Settings, find_experiment
from dasgrad.experiments.datasets.command import add_data_parser, run_data_command
from dasgrad.report.command import add_report_parser, run_report_command

EXTRA = ("matplotlib", "pyarrow", "sklearn", "tqdm")
INSTALL = 'pip install "dasgrad[experiments]"'
EXAMPLES = """\
examples:
  dasgrad run digits                          the default: a table and a figure under runs/digits
  dasgrad run digits --seeds 5 --steps 300    quicker
  dasgrad run digits --refresh 50 --out old   how much do older scores cost?
  dasgrad report runs                         one page of all the runs there
  dasgrad data list                           the data sets, and which of them are here

Finished runs are kept: the same command again goes on after an interruption, and repeats nothing."""


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
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        print(f"dasgrad {options.command} needs {', '.join(missing)}: {INSTALL}", file=sys.stderr)
        return 1
    if options.command == "report":
        return run_report_command(options)
    experiment: Experiment = options.experiment
    settings = _read_settings(run_parser, experiment, options)
    folder: Path = options.out / experiment.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        run_parser.error(f"argument --out: must be a folder that can be written to, got {str(options.out)!r} ({error})")
    try:
        return _run(experiment, settings, folder, options.processes, arguments)
    except OSError as error:
        print(f"dasgrad: {error}. Finished runs are kept in {folder}.", file=sys.stderr)
        return 1


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
    run = commands.add_parser(
        "run",
        help="run an experiment",
        description="Tune each method's learning rate, run the paired seeds, and write records, table and figure.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(sorted(EXPERIMENTS))
    run.add_argument("experiment", metavar="EXPERIMENT", type=_experiment, help=f"one of: {names}")
    whole = _integer(1, None)
    run.add_argument(
        "--seeds",
        type=_integer(2, 10_000),
        metavar="N",
        help=f"paired seeds to report; default: {_defaults('num_seeds')}",
    )
    run.add_argument(
        "--steps", type=whole, metavar="N", help=f"optimizer steps of a run; default: {_defaults('num_steps')}"
    )
    run.add_argument(
        "--batch-size", type=whole, metavar="N", help=f"examples in a batch; default: {_defaults('batch_size')}"
    )
    run.add_argument(
        "--refresh",
        type=whole,
        metavar="N",
        help=f"steps between two scorings of all examples; default: {_defaults('refresh')}",
    )
    run.add_argument("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="default: %(default)s")
    run.add_argument("--device", type=_device, default="cpu", metavar="DEVICE", help="cpu or cuda; default: cpu")
    run.add_argument("--processes", type=whole, metavar="N", help="runs at a time; default: one per core")
    add_report_parser(commands)
    add_data_parser(commands)
    return parser, run


def _run(experiment: Experiment, settings: Settings, folder: Path, processes: int | None, arguments: list[str]) -> int:
    # Imported here, after the extra was found to be installed.
    from dasgrad.experiments.runner import Interrupted, run_experiment
    from dasgrad.report import write_report

    try:
        outcome = run_experiment(experiment, settings, folder, num_processes=processes)
    except Interrupted as interrupted:
        print(
            f"\nInterrupted: {interrupted.num_kept} of {interrupted.num_runs} runs are kept in {folder}. "
            f"To go on: dasgrad {shlex.join(arguments)}",
            file=sys.stderr,
        )
        return 130
    text, files = write_report(outcome, folder)
    print(text)
    num_runs = sum(len(runs) for runs in outcome.records.values())
    print(f"\nWritten: {', '.join(str(path) for path in files)}")
    print(f"Records: {num_runs} reported runs, and those of the tuning, in {folder}")
    if outcome.num_resumed:
        print(f"{outcome.num_resumed} runs were there already and were not repeated.")
    return 0


def _read_settings(parser: argparse.ArgumentParser, experiment: Experiment, options: argparse.Namespace) -> Settings:
    """The experiment's defaults with what the user set; refuses what its data do not allow."""
    from dasgrad.experiments.runner import check_settings

    default = experiment.defaults

    def chosen(value: int | None, otherwise: int) -> int:
        return otherwise if value is None else value

    settings = Settings(
        num_seeds=chosen(options.seeds, default.num_seeds),
        num_steps=chosen(options.steps, default.num_steps),
        batch_size=chosen(options.batch_size, default.batch_size),
        refresh=chosen(options.refresh, default.refresh),
        device=options.device,
    )
    try:
        check_settings(experiment, settings)
    except ValueError as error:
        parser.error(f"argument --batch-size: {str(error).partition('` ')[2]}")
    return settings


def _defaults(setting: str) -> str:
    """A setting's default in each experiment, for the help."""
    return ", ".join(f"{getattr(e.defaults, setting)} ({name})" for name, e in sorted(EXPERIMENTS.items()))


def _integer(low: int, high: int | None) -> Callable[[str], int]:
    """An argparse type: an integer in a range, refused with range and value."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return value

    return parse


def _experiment(text: str) -> Experiment:
    try:
        return find_experiment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _device(text: str) -> str:
    if text not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"must be cpu or cuda, got {text!r}")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"torch {torch.__version__} finds no CUDA device here, got 'cuda'; use cpu")
    return text
