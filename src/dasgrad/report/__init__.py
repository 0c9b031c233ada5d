"""From records to what people read: a table for the terminal, a table for programs, figures, and a page.

`collect` reads a folder, `page` makes all that a page shows of it, `claims` judges the paper's, `html` is the file;
`writing` puts it all on disk, and `command` is the command. The command line knows its options without the extra, so
nothing that needs it is imported here.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasgrad.experiments.runner import Outcome

__all__ = ["write_report"]


def write_report(outcome: "Outcome", folder: Path) -> tuple[str, list[Path]]:
    """Write ``summary.csv`` and the figure into ``folder``.

    Returns:
        The summary as text of at most 100 columns, and the files written.
    """
    from dasgrad.experiments.statistics import summarise
    from dasgrad.report.figures import draw_figure, panels_of
    from dasgrad.report.tables import format_summary, write_csv

    summary = summarise(outcome.records, outcome.experiment.comparisons, outcome.experiment.reference)
    table = folder / "summary.csv"
    write_csv(summary, table)
    figures = draw_figure(panels_of(outcome), folder / outcome.experiment.name)
    return format_summary(summary, outcome), [table, *figures]
