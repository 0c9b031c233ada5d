"""From records to what people read: a table for the terminal, a table for programs, and a figure."""

from pathlib import Path

from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import summarise
from dasgrad.report.figures import draw_figure
from dasgrad.report.tables import format_summary, write_csv

__all__ = ["write_report"]


def write_report(outcome: Outcome, folder: Path) -> tuple[str, list[Path]]:
    """Write ``summary.csv`` and the figure into ``folder``.

    Returns:
        The summary as text of at most 100 columns, and the files written.
    """
    summary = summarise(outcome.records, outcome.experiment.comparisons, outcome.experiment.reference)
    table = folder / "summary.csv"
    write_csv(summary, table)
    figures = draw_figure(outcome, folder / outcome.experiment.name)
    return format_summary(summary, outcome), [table, *figures]
