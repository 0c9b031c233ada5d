"""The summary as aligned text and as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dasgrad import atomic
from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import Improvement, Interval, MethodSummary, Summary, summarise


def format_summary(summary: Summary, outcome: Outcome) -> str:
    """The comparison in at most 100 columns, with what it costs and whether it paid."""
    settings, runs = outcome.settings, outcome.records[summary.reference]
    machine = runs[0].machine
    methods = list(summary.methods.values())
    blocks = [
        f"{outcome.title}: {settings.num_steps:,} steps, batch {settings.batch_size}, refresh every "
        f"{settings.refresh} steps,\n{summary.num_seeds} paired seeds, means with 95 % bootstrap intervals over seeds; "
        "learning rates α/√t tuned on\nother seeds." + _describe_stored(outcome),
        align(_final_rows(methods)),
        align(_cost_rows(methods, summary.reference)),
        "\n".join(_verdicts(summary)),
        f"Timed on {machine['cpu']}, {machine['cores']} cores, one thread a run, "
        f"{machine.get('processes', 1)} at a time.",
    ]
    if outcome.at_grid_edge:
        blocks.append(
            f"The best learning rate of {', '.join(outcome.at_grid_edge)} is at the edge of the grid tried:\n"
            "a wider one might do better."
        )
    return "\n\n".join(blocks)


def _describe_stored(outcome: Outcome) -> str:
    """What stored learning rates were chosen for, where that is another setting than this run's."""
    kept, settings = outcome.stored_with, outcome.settings
    if not kept:
        return ""
    told = {"num_steps": "steps", "batch_size": "batch", "refresh": "refresh", "scores": "scores"}
    other = [f"{word} {kept.get(name)}" for name, word in told.items() if kept.get(name) != getattr(settings, name)]
    return f" They are stored ones, tuned for {', '.join(other)}." if other else " They are stored ones."


def format_cases(outcomes: Sequence[Outcome]) -> str:
    """The relative improvement of each comparison, case by case."""
    rows = [["case", *(f"{ours} over {baseline}" for ours, baseline in outcomes[0].experiment.comparisons)]]
    for outcome in outcomes:
        experiment = outcome.experiment
        found = summarise(outcome.records, experiment.comparisons, experiment.reference).improvements
        rows.append([outcome.case, *(f"{_interval(_times(i.relative, 100), 1)} %" for i in found)])
    return f"Final training loss below the baseline's, relative, by case:\n\n{align(rows)}"


def write_csv(summary: Summary, path: Path) -> None:
    """One row for each method and quantity: ``method, lr, quantity, mean, low, high``, atomically.

    Quantities without an interval leave ``low`` and ``high`` empty; a mark never reached leaves ``mean`` empty.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "lr", "quantity", "mean", "low", "high"])
    for own in summary.methods.values():
        quantities: dict[str, Interval | float | None] = {
            **{f"final_{name}" if name != "seconds" else name: value for name, value in own.finals.items()},
            "scoring_share": own.scoring_share,
            "gradient_evaluations": own.gradient_evaluations,
            "scored_examples": own.scored_examples,
            f"steps_to_{summary.reference}": own.steps_to_reference,
            f"seconds_to_{summary.reference}": own.seconds_to_reference,
            f"evaluations_to_{summary.reference}": own.evaluations_to_reference,
            **{f"final_{name}": value for name, value in (own.draws | own.extras).items()},
        }
        for improvement in summary.improvements:
            if improvement.method == own.method:
                quantities[f"improvement_over_{improvement.baseline}"] = improvement.difference
                quantities[f"relative_improvement_over_{improvement.baseline}"] = improvement.relative
        for quantity, value in quantities.items():
            writer.writerow([own.method, f"{own.lr:g}", quantity, *_csv_cells(value)])
    atomic.write(path, buffer.getvalue().encode())


def write_page_csv(page: dict[str, Any], path: Path) -> None:
    """The numbers of a page: ``set, method, baseline, seeds, quantity, mean, low, high``, atomically.

    Rows of improvements name their baseline; rows of claims have the claim as set and the verdict as quantity.
    Text that a spreadsheet would take for a formula is quoted.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["set", "method", "baseline", "seeds", "quantity", "mean", "low", "high"])

    def row(*cells: Any, value: dict[str, Any]) -> None:
        writer.writerow([*map(_csv_text, cells), *(_csv_number(value.get(key)) for key in ("mean", "low", "high"))])

    for claim in page["claims"]:
        for finding in claim["findings"]:
            row(f"claim {claim['name']}", finding["text"], "", "", claim["verdict"], value=finding)
    for own in page["sets"]:
        for series in own["series"]:
            about = (own["name"], series["name"], "", series["seeds"])
            for column, value in series["final"].items():
                row(*about, f"final_{column}" if column != "seconds" else column, value=value)
            for name, cost in (("scoring_seconds", "scoringSeconds"), ("gradients", "gradients"), ("scored", "scored")):
                row(*about, name, value={"mean": series["cost"][cost]})
            for axis, value in (series["reached"] or {}).items():
                row(*about, f"{axis}_to_{own['reference']}", value={"mean": value})
        for compared in own["comparisons"]:
            for column, value in compared["final"].items():
                about = (own["name"], compared["ours"], compared["baseline"], compared["seeds"])
                row(*about, f"improvement_{column}", value=value)
    atomic.write(path, buffer.getvalue().encode("utf-8", "replace"))


def _csv_text(value: Any) -> str:
    text = str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _csv_number(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


def _csv_cells(value: Interval | float | None) -> list[str]:
    if isinstance(value, Interval):
        return [f"{value.mean:.9g}", f"{value.low:.9g}", f"{value.high:.9g}"]
    return ["" if value is None else f"{value:.9g}", "", ""]


def _final_rows(methods: Sequence[MethodSummary]) -> list[list[str]]:
    rows = [["method", "lr", "train loss", "test loss", "train acc. %", "test acc. %"]]
    for own in methods:
        losses = [_interval(own.finals["train_loss"], 4), _interval(own.finals["test_loss"], 3)]
        accuracies = [_interval(_times(own.finals[name], 100), 1) for name in ("train_accuracy", "test_accuracy")]
        rows.append([own.method, f"{own.lr:g}", *losses, *accuracies])
    return rows


def _cost_rows(methods: Sequence[MethodSummary], reference: str) -> list[list[str]]:
    rows = [["method", "seconds", "of it scoring", "gradients", "scored", f"steps to {reference}'s loss", "seconds"]]
    for own in methods:
        steps, seconds = own.steps_to_reference, own.seconds_to_reference
        rows.append(
            [
                own.method,
                _interval(own.finals["seconds"], 2),
                f"{own.scoring_share:.0%}",
                f"{own.gradient_evaluations:,.0f}",
                f"{own.scored_examples:,.0f}",
                "not reached" if steps is None else f"{steps:,}",
                "–" if seconds is None else f"{seconds:.2f}",
            ]
        )
    return rows


def _verdicts(summary: Summary) -> list[str]:
    """What the numbers say, whichever way they fall."""
    lines = []
    for improvement in summary.improvements:
        lines.append(_loss_verdict(improvement))
        ours, baseline = summary.methods[improvement.method], summary.methods[improvement.baseline]
        lines += [_test_verdict(ours, baseline), _clock_verdict(ours, baseline)]
    return lines


def _loss_verdict(improvement: Improvement) -> str:
    gained, relative = improvement.difference, improvement.relative
    sign = 1.0 if gained.mean >= 0 else -1.0
    word = "lower" if gained.mean >= 0 else "HIGHER"
    sure = "" if gained.low > 0 or gained.high < 0 else "\n  The interval includes 0: no clear difference."
    low, high = sorted((sign * relative.low, sign * relative.high))
    return (
        f"{improvement.method} against {improvement.baseline}: final training loss {word} by {abs(gained.mean):.4f} "
        f"({sign * relative.mean:.0%} [{low:.0%}, {high:.0%}]).{sure}"
    )


def _test_verdict(ours: MethodSummary, baseline: MethodSummary) -> str:
    own, other = ours.finals["test_loss"], baseline.finals["test_loss"]
    word = "lower" if own.high < other.low else "HIGHER" if own.low > other.high else "about the same"
    return f"  Test loss {word}: {own.mean:.3f} against {other.mean:.3f}."


def _clock_verdict(ours: MethodSummary, baseline: MethodSummary) -> str:
    own, other = ours.finals["seconds"].mean, baseline.finals["seconds"].mean
    if own > other:
        return f"  On the clock SLOWER: {own:.2f} s a run against {other:.2f} s ({own / other:.1f}×), scoring included."
    return f"  On the clock faster: {own:.2f} s a run against {other:.2f} s ({own / other:.2f}×), scoring included."


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.mean * factor, interval.low * factor, interval.high * factor)


def _interval(interval: Interval, digits: int) -> str:
    return f"{interval.mean:.{digits}f} [{interval.low:.{digits}f},{interval.high:.{digits}f}]"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first flush left, numbers flush right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
