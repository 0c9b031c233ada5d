"""Rows → tables of markdown, one a problem, schedule and rule for batch sizes."""

import math
from collections.abc import Sequence

from benchmarks.parts.report import Row
from benchmarks.wallclock.campaign import FIXED

HEAD = (
    "method",
    "optimizer, lr, batch",
    "seconds to target",
    "× uniform [95 %]",
    "× best fixed J [95 %]",
    "budget × [95 %]",
    "held-out × [95 %]",
    "scoring",
    "training loss",
    "held-out loss",
    "accuracy",
    "accuracy at the target",
    "accuracy, stopped early",
)

LOSSES = {"train_loss": "training loss", "test_loss": "tuned for held-out loss, which is"}


def make_table(rows: Sequence[Row]) -> list[str]:
    """Tables, each under a line that says what uniform did."""
    lines = [
        "Ratios below 1 are sooner than the best uniform configuration; ∞ never got there within twice its budget. The "
        "first line of each table is uniform against itself on other seeds. Held-out × is the ratio of the times to "
        "uniform's held-out loss after its budget. Losses and accuracy are those at the moment when uniform's budget "
        "is over, with the paired difference from uniform [95 %]; accuracy at the target is that when a method has "
        "uniform's loss, less uniform's when it has it; stopped early, that at the evaluation of least validation loss "
        "within uniform's budget, on both sides, and when that was. Under cosine decay the seconds are the budget that "
        "ends at the target, ≤ where the smallest one tried already did. Every J steps all examples are scored where "
        "that is fixed; the best of such intervals was chosen in tuning. Scoring: how often all examples were scored "
        "in a run of twice uniform's budget, and by the wall clock its share of the time. * marks a rate at the "
        "edge of its grid.",
        "",
    ]
    groups = dict.fromkeys((row["problem"], row["schedule"], row["batches"]) for row in rows)
    for group in groups:
        chosen = [row for row in rows if (row["problem"], row["schedule"], row["batches"]) == group]
        first = chosen[0]
        budget = " (budget)" if "budget_ratio" in first else ""
        lines += [
            f"**{first['title']}**, {group[1]}, {group[2]}{budget}. Uniform: {first['peer_name'].split(',')[0]}, "
            f"lr {first['peer_lr']:g}{'*' if first['peer_lr_at_edge'] else ''}, batch {first['peer_batch_size']}; "
            f"{LOSSES[first['goal']]} {first['target']:.4g} after a budget of {first['equal_seconds']:.3g} s, reached "
            f"after {first['peer']:.3g} s ({first['soonest_optimizer']}, lr {first['soonest_lr']:g}, batch "
            f"{first['soonest_batch_size']}, was the soonest in tuning); "
            f"held-out loss {first['peer_test_loss']:.4g}, accuracy {first['peer_test_accuracy']:.4f}; "
            f"{first['num_seeds']} seeds{'; processor time of one thread' if first['clock'] == 'cpu' else ''}.",
            "",
        ]
        found = [_cells(row) for row in chosen]
        keep = [k for k in range(len(HEAD)) if any(cells[k] for cells in found)]
        table = [list(HEAD), ["---"] * len(HEAD), *found]
        lines += ["| " + " | ".join(cells[k] for k in keep) + " |" for cells in table] + [""]
    return lines[:-1]


def _cells(row: Row) -> list[str]:
    sign = "≤ " if row["at_most"] else ""
    interval = row["draws"].partition(":")[2]
    return [
        row["method"],
        f"{row['optimizer']}, {row['lr']:g}{'*' if row['lr_at_edge'] else ''}, {row['batch_size']}"
        + (f", J = {interval}" if row["method"] == FIXED else ""),
        f"{sign}{show(row['ours'])}",
        f"{sign}{show(row['ratio'])} [{show(row['low'])}, {show(row['high'])}]",
        _ratio(row, "fixed"),
        _ratio(row, "budget"),
        _ratio(row, "held_out"),
        f"{row['scoring_times']:.3g} ×" + ("" if row["scoring_share"] is None else f", {row['scoring_share']:.0%}"),
        _difference(row, "train_loss"),
        _difference(row, "test_loss"),
        _difference(row, "test_accuracy"),
        _signed(row, "accuracy_at_target"),
        _stopped(row),
    ]


def _ratio(row: Row, name: str) -> str:
    """Empty where it is not among the row's."""
    if f"{name}_ratio" not in row:
        return ""
    return "{} [{}, {}]".format(*(show(row[f"{name}_{end}"]) for end in ("ratio", "low", "high")))


def _difference(row: Row, name: str) -> str:
    return f"{row[name]:.4g} ({row[f'{name}_difference']:+.2g} [{row[f'{name}_low']:+.2g}, {row[f'{name}_high']:+.2g}])"


def _signed(row: Row, name: str) -> str:
    if row[f"{name}_difference"] is None:
        return "–"
    return "{:+.2g} [{:+.2g}, {:+.2g}]".format(*(row[f"{name}_{end}"] for end in ("difference", "low", "high")))


def _stopped(row: Row) -> str:
    if row["stopped_seconds"] is None:
        return "–"
    when = f"{show(row['stopped_seconds'])} s, uniform {show(row['peer_stopped_seconds'])} s"
    return f"{_signed(row, 'accuracy_stopped')}, {when}"


def show(value: float) -> str:
    """Three digits, or ∞."""
    return "∞" if math.isinf(value) else f"{value:.3g}"
