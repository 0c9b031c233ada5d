"""From records to what people read: a table for the terminal, a table for programs, figures, and a page.

`collect` reads a folder, `page` makes all that a page shows of it, `claims` judges the paper's, `html` is the file;
`writing` puts it all on disk, and `command` is the command. The command line knows its options without the extra, so
nothing that needs it is imported here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dasgrad.experiments.arguments import missing_extras

if TYPE_CHECKING:
    from dasgrad.experiments.runner import Outcome

__all__ = ["write_report", "write_reports"]


def write_reports(outcomes: Sequence["Outcome"], folder: Path) -> tuple[str, list[Path]]:
    """As `write_report`, for all cases of an experiment: a table of each, and one figure that compares them."""
    from dasgrad.report.tables import format_cases
    from dasgrad.report.theory import has_bounds

    if all(has_bounds(outcome.records) for outcome in outcomes):
        return _write_bounds(outcomes, folder)
    if len(outcomes) == 1:
        return write_report(outcomes[0], folder)
    texts, files = [], []
    for outcome in outcomes:
        text, written = _write_tables(outcome, folder)
        texts.append(text)
        files += written
    if outcomes[0].experiment.comparisons:
        texts.append(format_cases(outcomes))
        if not missing_extras(["matplotlib"]):
            from dasgrad.report.cases import draw_cases

            files += draw_cases(outcomes, folder / outcomes[0].experiment.name)
    return "\n\n\n".join(texts), files


def _write_bounds(outcomes: Sequence["Outcome"], folder: Path) -> tuple[str, list[Path]]:
    from dasgrad.report.theory import format_bounds, write_bounds_csv

    texts = [format_bounds(f"Regret on {outcome.case}", outcome.records) for outcome in outcomes]
    files = [write_bounds_csv({outcome.case: outcome.records for outcome in outcomes}, folder / "summary.csv")]
    if not missing_extras(["matplotlib"]):
        from dasgrad.report.styles import assign_styles
        from dasgrad.report.theory_figures import draw_bounds

        for outcome in outcomes:
            title = (
                f"Regret on {outcome.case}: {outcome.settings.num_steps:,} steps, {outcome.settings.num_seeds} seeds"
            )
            stem = folder / f"{outcome.experiment.name}-{outcome.case}"
            files += draw_bounds(title, outcome.records, assign_styles(outcome.records), stem)
    return "\n\n\n".join(texts), files


def write_report(outcome: "Outcome", folder: Path) -> tuple[str, list[Path]]:
    """Write ``summary.csv`` and, where matplotlib is installed, the figure into ``folder``.

    Files of an experiment's case have its name in theirs.

    Returns:
        The summary as text of at most 100 columns, and the files written.
    """
    text, files = _write_tables(outcome, folder)
    if not missing_extras(["matplotlib"]):
        from dasgrad.report.figures import draw_figure, panels_of

        stem = folder / f"{outcome.experiment.name}{outcome.case and '-' + outcome.case}"
        files += draw_figure(panels_of(outcome), stem)
    return text, files


def _write_tables(outcome: "Outcome", folder: Path) -> tuple[str, list[Path]]:
    from dasgrad.experiments.statistics import summarise
    from dasgrad.report.tables import format_summary, write_csv

    summary = summarise(outcome.records, outcome.experiment.comparisons, outcome.experiment.reference)
    table = folder / f"summary{outcome.case and '-' + outcome.case}.csv"
    write_csv(summary, table)
    return format_summary(summary, outcome), [table]
