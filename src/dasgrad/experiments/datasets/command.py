"""``dasgrad data``: list, fetch, verify and find data sets from the command line."""

import argparse
import importlib.util
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dasgrad.experiments.datasets import store
from dasgrad.experiments.datasets.fetching import fetch
from dasgrad.experiments.datasets.model import DataError, DataSet, format_size
from dasgrad.experiments.datasets.table import DATASETS, find_dataset

ALL = "all"
INSTALL = 'pip install "dasgrad[experiments]"'
EXAMPLES = f"""\
examples:
  dasgrad data list                           what there is, how large, whose, and whether it is here
  dasgrad data fetch mnist imdb               bring two data sets into the data folder
  dasgrad data fetch cifar10 --from FOLDER    without a network: from files or archives in a folder
  dasgrad data verify                         recompute the checksums of all that is here
  dasgrad data where mnist                    print its folder

The data folder is {store.VARIABLE}, or else in the user's cache. A download that was interrupted goes on where it
stopped when the command is given again."""


def add_data_parser(commands: Any) -> None:
    """Add ``data`` and its commands to those of ``dasgrad``."""
    layout = {"epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    data = commands.add_parser("data", help="list, fetch and verify data sets", description=__doc__, **layout)
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, act: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(
            name, help=description[0].lower() + description[1:-1], description=description, **layout
        )
        parser.set_defaults(act=act)
        return parser

    names = f"one of: {', '.join(DATASETS)}"
    add("list", _list, "Show all data sets, their terms, and which are here.")
    parser = add("fetch", _fetch, "Bring data sets into the data folder, every file verified.")
    parser.add_argument("names", metavar="NAME", nargs="+", type=_name, help=f"{names}; or {ALL}")
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="take the files from this folder, and from nowhere else",
    )
    parser = add("verify", _verify, "Recompute the checksums of data sets.")
    parser.add_argument("names", metavar="NAME", nargs="*", type=_name, help=f"{names}; default: those that are here")
    parser = add("where", _where, "Print the data folder, or the folder of a data set.")
    parser.add_argument("name", metavar="NAME", nargs="?", type=_dataset, help=names)


def run_data_command(options: argparse.Namespace) -> int:
    """Do what the parsed options say and return the exit code: 0, 1 for a failure, 130 for Ctrl-C."""
    try:
        code = int(options.act(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 1
    except (DataError, OSError) as error:
        print(f"dasgrad: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. What has come is kept: the same command goes on from there.", file=sys.stderr)
        return 130


def _list(options: argparse.Namespace) -> int:
    rows = [("name", "size", "here", "what")]
    rows += [(data.name, _size(data), _presence(data), data.what) for data in DATASETS.values()]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row[:3], widths, strict=True)), row[3]]))
    print("\nEach data set is under its publisher's terms:")
    for data in DATASETS.values():
        print(textwrap.fill(f"{data.name}: {data.terms}", 100, initial_indent="  ", subsequent_indent="    "))
    print(f"\nThe data folder is {store.data_folder()}.")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("tqdm") is None:
        print(f"dasgrad data fetch needs tqdm: {INSTALL}", file=sys.stderr)
        return 1
    if options.folder is not None and not options.folder.is_dir():
        raise DataError(f"--from must be a folder, got {str(options.folder)!r}")
    failed = False
    for data in _chosen(options.names):
        if not data.files:
            print(f"{data.name}: nothing to fetch, it ships with scikit-learn")
            continue
        started = time.perf_counter()
        try:
            folder = fetch(data, folder=options.folder, progress=True, report=_report)
        except DataError as error:  # the others may still be had
            print(f"dasgrad: {error}", file=sys.stderr)
            failed = True
            continue
        seconds = time.perf_counter() - started
        print(f"{data.name}: {len(data.files)} files, {_size(data)}, verified, in {folder} ({seconds:.1f} s)")
    return int(failed)


def _verify(options: argparse.Namespace) -> int:
    here = [data for data in DATASETS.values() if data.files and store.find_folder(data) is not None]
    chosen = _chosen(options.names) if options.names else here
    if not chosen:
        print(f"Nothing to verify in {store.data_folder()}.")
    failed = False
    for data in chosen:
        if not data.files:
            print(f"{data.name}: ships with scikit-learn")
            continue
        problems = [state.problem for state in store.inspect(data) if state.problem is not None]
        if problems:
            failed = True
            print(f"{data.name}: {len(problems)} of {len(data.files)} files are not right")
            print("\n".join(f"  {problem}" for problem in problems))
            print(f"  To have them replaced: dasgrad data fetch {data.name}")
        else:
            print(f"{data.name}: {len(data.files)} files, {_size(data)}, verified, in {store.find_folder(data)}")
    return int(failed)


def _where(options: argparse.Namespace) -> int:
    data: DataSet | None = options.name
    if data is None:
        print(store.data_folder())
    elif not data.files:
        raise DataError(f"{data.name} has no folder, it ships with scikit-learn")
    else:
        print(store.find_folder(data) or store.folder_of(data))
    return 0


def _chosen(names: Sequence[str]) -> list[DataSet]:
    """In the order of the command line, each once."""
    if ALL in names:
        return list(DATASETS.values())
    return [find_dataset(name) for name in dict.fromkeys(names)]


def _presence(data: DataSet) -> str:
    if not data.files:
        return "yes" if importlib.util.find_spec("sklearn") is not None else "no"
    if store.find_folder(data) is not None:
        return "yes"
    missing = store.missing_files(data, store.folder_of(data))
    return "no" if len(missing) == len(data.files) else "in part"


def _size(data: DataSet) -> str:
    return format_size(data.size) if data.files else "-"


def _report(message: str) -> None:
    print(message, file=sys.stderr)


def _name(text: str) -> str:
    return text if text == ALL else _dataset(text).name


def _dataset(text: str) -> DataSet:
    try:
        return find_dataset(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
