"""From records to what people read: a table for the terminal, a table for programs, and a figure."""

from pathlib import Path

from dasgrad.experiments.arguments import missing_extras
from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import summarise
from dasgrad.report.tables import format_summary, write_csv

__all__ = ["write_report"]


def write_report(outcome: Outcome, folder: Path) -> tuple[str, list[Path]]:
    """Write ``summary.csv`` and, where matplotlib is installed, the figure into ``folder``.

    Files of an experiment's case have its name in theirs.

    Returns:
        The summary as text of at most 100 columns, and the files written.
    """
    summary = summarise(outcome.records, outcome.experiment.comparisons, outcome.experiment.reference)
    suffix = outcome.case and f"-{outcome.case}"
    table = folder / f"summary{suffix}.csv"
    write_csv(summary, table)
    figures: list[Path] = []
    if not missing_extras(["matplotlib"]):
        from dasgrad.report.figures import draw_figure

        figures = draw_figure(outcome, folder / f"{outcome.experiment.name}{suffix}")
    return format_summary(summary, outcome), [table, *figures]
