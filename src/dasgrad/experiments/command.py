"""``dasgrad run`` and ``dasgrad list``: run experiments, and see which records there are."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from dasgrad.experiments import arguments
from dasgrad.experiments.datasets import DataError
from dasgrad.experiments.methods import SCORES
from dasgrad.experiments.registry import EXPERIMENTS, Experiment, Settings
from dasgrad.experiments.workers import available_cores, default_processes

DEFAULT_FOLDER = Path("runs")
EXAMPLES = """\
examples:
  dasgrad run digits                          the default: a table and a figure under runs/digits
  dasgrad run digits --seeds 5 --steps 300    quicker
  dasgrad run digits --refresh 50 --out old   how much do older scores cost?
  dasgrad run mnist --quick                   a few steps, to see that all works
  dasgrad run mnist --methods dasgrad,adam    some of its methods
  dasgrad run imdb --full --device cuda       the paper's number of seeds, on a GPU
  dasgrad run mnist --tune                    choose the learning rates anew
  dasgrad run theory                          the paper's bounds against measured regret
  dasgrad report runs                         one page of all the runs there
  dasgrad data list                           the data sets, and which of them are here
  dasgrad list                                the records under runs

Finished runs are kept: the same command again goes on after an interruption, and repeats nothing."""


def add_run_parser(commands: Any) -> argparse.ArgumentParser:
    """Add ``run`` to the commands of ``dasgrad``."""
    run: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run an experiment",
        description="Run the paired seeds of an experiment and write records, table and figure. Learning rates are "
        "stored ones, or chosen on other seeds where none are.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(sorted(EXPERIMENTS))
    run.add_argument("experiment", metavar="EXPERIMENT", type=arguments.experiment, help=f"one of: {names}")
    whole = arguments.integer(1)

    def add(name: str, text: str, **options: Any) -> None:
        run.add_argument(name, help=text, **options)

    seeds = f"paired seeds to report; default: {_defaults('num_seeds')}"
    add("--seeds", seeds, type=arguments.integer(2, 10_000), metavar="N")
    add("--steps", f"optimizer steps of a run; default: {_defaults('num_steps')}", type=whole, metavar="N")
    add("--batch-size", f"examples in a batch; default: {_defaults('batch_size')}", type=whole, metavar="N")
    refresh = f"steps between two scorings of all examples; default: {_defaults('refresh')}"
    add("--refresh", refresh, type=whole, metavar="N")
    scores = f"whether an example's own gradient is in its score's metric; default: {_defaults('scores')}"
    add("--scores", scores, choices=SCORES)
    add("--methods", "some of the experiment's methods, with commas between; default: all", metavar="NAMES")
    size = run.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few seeds, a tenth of the steps")
    full = ", ".join(f"{e.num_full_seeds} ({name})" for name, e in sorted(EXPERIMENTS.items()))
    size.add_argument("--full", action="store_true", help=f"the paper's number of seeds: {full}")
    add("--tune", "choose all learning rates anew, on seeds of their own", action="store_true")
    add("--store", "with --tune: store them for later runs, in the package", action="store_true")
    add("--out", "default: %(default)s", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    add("--device", "cpu or cuda; default: cpu", type=arguments.device, default="cpu", metavar="DEVICE")
    add("--processes", "runs at a time; default: one per core, at most 8 on a GPU", type=whole, metavar="N")
    return run


def add_list_parser(commands: Any) -> None:
    """Add ``list``."""
    parser = commands.add_parser("list", help="show which records there are", description=run_list_command.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="default: runs")


def run_run_command(parser: argparse.ArgumentParser, options: argparse.Namespace, words: Sequence[str]) -> int:
    """Do ``dasgrad run`` and return its exit code: 0, 1 for a failure, 130 for Ctrl-C.

    Args:
        parser: of ``run``, for errors in arguments.
        options: as parsed.
        words: the whole command line, to be printed for going on after an interruption.
    """
    experiment: Experiment = options.experiment
    # Records are Parquet files, for which there is no other way; figures and bars can be done without.
    missing = arguments.missing_extras(("pyarrow", "sklearn") if experiment.name == "digits" else ("pyarrow",))
    if missing:
        print(f"dasgrad run needs {', '.join(missing)}: {arguments.INSTALL}", file=sys.stderr)
        return 1
    if options.methods is not None:
        try:
            experiment = experiment.restricted_to([name for name in options.methods.split(",") if name])
        except ValueError as error:
            parser.error(f"argument --methods: {error}")
    if options.store and not options.tune:
        parser.error("argument --store: must come with --tune")
    folder: Path = options.out / experiment.name
    try:
        settings = _read_settings(parser, experiment, options)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"argument --out: must be a folder that can be written to, got {str(options.out)!r} ({error})")
        _warn_of_crowds(options.processes, settings)
        return _run(experiment, settings, folder, options, words)
    except DataError as error:
        print(f"dasgrad: {error}", file=sys.stderr)
    except BrokenProcessPool:
        print(
            f"dasgrad: a process ended before its run did, perhaps for want of memory; fewer --processes may help. "
            f"Finished runs are kept in {folder}.",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"dasgrad: {error}. Finished runs are kept in {folder}.", file=sys.stderr)
    return 1


def _run(
    experiment: Experiment, settings: Settings, folder: Path, options: argparse.Namespace, words: Sequence[str]
) -> int:
    from dasgrad.experiments.runner import Interrupted, run_experiment
    from dasgrad.experiments.tuning import write_stored

    try:
        outcomes = run_experiment(experiment, settings, folder, tune=options.tune, num_processes=options.processes)
    except Interrupted as interrupted:
        print(
            f"\nInterrupted: {interrupted.num_kept} of {interrupted.num_runs} runs are kept in {folder}. "
            f"To go on: dasgrad {shlex.join(words)}",
            file=sys.stderr,
        )
        return 130
    if options.store:
        rates = {(o.case, method): lr for o in outcomes for method, lr in o.learning_rates.items()}
        print(f"Stored: {write_stored(experiment, settings, rates)}")
    _report(outcomes, folder)
    num_runs = sum(len(runs) for outcome in outcomes for runs in outcome.records.values())
    print(f"Records: {num_runs} reported runs, and those of the tuning, in {folder}")
    if outcomes[0].num_resumed:
        print(f"{outcomes[0].num_resumed} runs were there already and were not repeated.")
    return 0


def _report(outcomes: Sequence[Any], folder: Path) -> None:
    from dasgrad.report import write_reports

    text, files = write_reports(outcomes, folder)
    print(text)
    print(f"\nWritten: {', '.join(str(path) for path in files)}")
    if arguments.missing_extras(["matplotlib"]):
        print(f"No figures were drawn, which needs matplotlib: {arguments.INSTALL}", file=sys.stderr)


def _read_settings(parser: argparse.ArgumentParser, experiment: Experiment, options: argparse.Namespace) -> Settings:
    """The experiment's defaults with what the user set; refuses what its data do not allow."""
    from dasgrad.experiments.runner import check_settings

    start = experiment.quick if options.quick else experiment.full if options.full else experiment.defaults
    chosen = {
        "num_seeds": options.seeds,
        "num_steps": options.steps,
        "batch_size": options.batch_size,
        "refresh": options.refresh,
        "scores": options.scores,
        "device": options.device,
    }
    settings = replace(start, **{name: value for name, value in chosen.items() if value is not None})
    try:
        check_settings(experiment, settings)
    except ValueError as error:
        option = str(error).partition("(")[2].partition("=")[0].replace("_", "-")
        parser.error(f"argument --{option}: {str(error).partition('` ')[2]}")
    return settings


def _warn_of_crowds(processes: int | None, settings: Settings) -> None:
    most = max(default_processes(settings.device), available_cores())
    if processes is not None and processes > most:
        print(
            f"dasgrad: {processes} processes share {most} cores: runs take longer, and the seconds in their records "
            "are not to be compared with those of other runs.",
            file=sys.stderr,
        )


def _defaults(setting: str) -> str:
    """A setting's default in each experiment, for the help."""
    values: dict[Any, list[str]] = {}
    for name, experiment in sorted(EXPERIMENTS.items()):
        values.setdefault(getattr(experiment.defaults, setting), []).append(name)
    if len(values) == 1:
        return str(next(iter(values)))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())


def run_list_command(options: argparse.Namespace) -> int:
    """Show which records a folder has: runs, methods, seeds and versions of each experiment, and damaged files."""
    missing = arguments.missing_extras(("pyarrow",))
    if missing:
        print(f"dasgrad list needs {', '.join(missing)}: {arguments.INSTALL}", file=sys.stderr)
        return 1
    from dasgrad.experiments.listing import describe_folder

    if not options.folder.is_dir():
        print(f"dasgrad: {options.folder} is no folder; `dasgrad run NAME` makes records", file=sys.stderr)
        return 1
    text, num_unusable = describe_folder(options.folder)
    print(text)
    return 1 if num_unusable else 0
