"""The report of a folder on disk: a page, a table and figures."""

import re
from pathlib import Path

from dasgrad import atomic
from dasgrad.report.collect import Collection, RunSet
from dasgrad.report.comparisons import comparisons_of
from dasgrad.report.figures import Panels, draw_figure
from dasgrad.report.html import render_page
from dasgrad.report.page import build_page, styles_of, title_of
from dasgrad.report.tables import write_page_csv
from dasgrad.report.theory import has_bounds
from dasgrad.report.theory_figures import draw_bounds


def write_page(collection: Collection, name: str, path: Path) -> list[Path]:
    """Write the page of all that was collected to ``path``, and beside it a CSV file and a folder of figures.

    Args:
        collection: of a folder of records.
        name: what the page calls that folder.
        path: ends in ``.html``.

    Returns:
        The files written, the page first.
    """
    page = build_page(collection, name)
    table = path.with_suffix(".csv")
    figures: list[Path] = []
    names: set[str] = set()
    for run_set in collection.sets:
        stem = _file_stem(run_set.name, names)
        panels, place = _panels(run_set), figures_folder(path) / stem
        several = all(len(runs) > 1 for runs in panels.records.values())
        if has_bounds(panels.records) and several:
            figures += draw_bounds(panels.title, panels.records, panels.styles, place)
        else:
            figures += draw_figure(panels, place)
    write_page_csv(page, table)
    atomic.write(path, render_page(page).encode())
    return [path, table, *figures]


def figures_folder(path: Path) -> Path:
    """Where the figures of a page go."""
    return path.with_name(f"{path.stem}-figures")


def _panels(run_set: RunSet) -> Panels:
    config = run_set.series[0].runs[0].config
    title = f"{title_of(run_set)}: {config.num_steps:,} steps, batch {config.batch_size}; mean and 95 % band over seeds"
    pairs = [(ours.name, baseline.name, seeds) for ours, baseline, seeds in comparisons_of(run_set) if len(seeds) > 1]
    return Panels(title, {series.name: series.runs for series in run_set.series}, styles_of(run_set), pairs)


def _file_stem(name: str, taken: set[str]) -> str:
    """A file name that every system takes, made of a run set's, and not given out before."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:80] or "runs"
    stem = next(s for k in range(1, len(taken) + 2) if (s := plain if k == 1 else f"{plain}-{k}").lower() not in taken)
    taken.add(stem.lower())
    return stem
