"""The command ``dasgrad report``: a page of all the runs in a folder."""

import argparse
import sys
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  dasgrad report runs                       runs/report.html, with a CSV file and figures beside it
  dasgrad report runs/digits                one experiment alone
  dasgrad report runs --out mine/page.html  elsewhere

The page needs no network and no other file: send it, or open it from a disk."""
MAX_NAMED = 20


def add_report_parser(commands: Any) -> None:
    """Add ``report`` to the commands."""
    parser = commands.add_parser(
        "report",
        help="build a page of the runs in a folder",
        description="Read every record in a folder and build one page: figures, the paper's claims with our verdicts, "
        "what was drawn, what it cost, and how it was run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUNS", type=_folder, help="a folder of records, as `dasgrad run` leaves it")
    parser.add_argument(
        "--out", type=_page, metavar="PAGE", help="the page, ending in .html; default: RUNS/report.html"
    )


def run_report_command(options: argparse.Namespace) -> int:
    """Build the page and say what was left out; 0, or 1 when there is nothing to report or nowhere to write."""
    # Imported here, after the extra was found to be installed.
    from dasgrad.report.collect import LeftOut, NothingToReport, collect
    from dasgrad.report.writing import figures_folder, write_page

    folder: Path = options.runs
    path: Path = options.out or folder / "report.html"
    pages = (path, folder / "report.html")
    earlier = [part for page in pages for part in (page, page.with_suffix(".csv"), figures_folder(page))]

    def name(left_out: list[LeftOut]) -> None:
        for left in left_out[:MAX_NAMED]:
            print(f"dasgrad: left out {left.file}: {left.reason}", file=sys.stderr)
        if len(left_out) > MAX_NAMED:
            print(f"dasgrad: left out {len(left_out) - MAX_NAMED} more files; the page names them", file=sys.stderr)

    try:
        collection = collect(folder, ignore=earlier)
    except NothingToReport as nothing:
        name(nothing.left_out)
        print(f"dasgrad: {nothing}", file=sys.stderr)
        return 1
    name(collection.left_out)
    try:
        files = write_page(collection, folder.resolve().name, path)
    except OSError as error:
        print(f"dasgrad: {error}. The records are as they were.", file=sys.stderr)
        return 1
    num_runs = sum(len(series.runs) for run_set in collection.sets for series in run_set.series)
    print(f"{path}: {num_runs} runs of {'; '.join(run_set.name for run_set in collection.sets)}")
    print(f"Beside it: {files[1]}, and {len(files) - 2} figures in {figures_folder(path)}")
    return 0


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder, got {text!r}, which is not one")
    return path


def _page(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".html" or path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file ending in .html, got {text!r}")
    return path
