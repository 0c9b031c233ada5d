"""Losses against seconds, one panel a problem: ``python -m benchmarks.wallclock.figure ROWS.json FIGURE.svg``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parts.report import Row

STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")


def choose_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By title, the rows of the first schedule that was measured, any batch size where there is a choice.

    Raises:
        ValueError: for no rows at all.
    """
    if not rows:
        raise ValueError("`choose_rows(rows=...)` must have at least one row, got none.")
    panels: dict[str, list[Row]] = {}
    for title in dict.fromkeys(row["title"] for row in rows):
        own = [row for row in rows if row["title"] == title]
        panels[title] = [
            row for row in own if all(row[name] == own[0][name] for name in ("schedule", "batches"))
        ]  # any batch comes first
    return panels


def find_window(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Least and largest loss and seconds to show: to the end of uniform's runs, and not the first fall."""
    uniform = rows[0]["peer_curve"]
    end = 1.05 * uniform["seconds"][-1]
    early = next(loss for t, loss in zip(uniform["seconds"], uniform["train_loss"], strict=True) if t > 0.08 * end)
    curves = [uniform, *(row["curve"] for row in rows)]
    shown = [loss for c in curves for t, loss in zip(c["seconds"], c["train_loss"], strict=True) if t <= end]
    return min(shown), early, end


def draw(rows: Sequence[Row], path: Path) -> None:
    """One panel a problem; lines differ in dash and marker as well as in shade.

    Raises:
        ImportError: without matplotlib; the message has the command.
        ValueError: for no rows at all.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("a figure needs matplotlib: pip install matplotlib.") from error
    panels = choose_rows(rows)
    num_columns = min(2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    size = (6 * num_columns, 4 * num_rows)
    figure, axes = pyplot.subplots(num_rows, num_columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    shades = pyplot.get_cmap("viridis")
    methods = list(dict.fromkeys(row["method"] for own in panels.values() for row in own))  # one line in all panels
    for axis, (title, own) in zip(axes.flat[: len(panels)], panels.items(), strict=True):
        first = own[0]
        best = f"best uniform: {first['peer_name'].split(',')[0]}, batch {first['peer_batch_size']}"
        axis.plot(
            first["peer_curve"]["seconds"][1:],
            first["peer_curve"]["train_loss"][1:],
            label=best,
            color="black",
            linewidth=2.4,
        )
        for row in own:
            number = methods.index(row["method"])
            axis.plot(
                row["curve"]["seconds"][1:],
                row["curve"]["train_loss"][1:],
                label=f"{row['method']}, batch {row['batch_size']}",
                color=shades(0.85 * number / max(1, len(methods) - 1)),
                linewidth=1.2,
                linestyle=STYLES[(number + 1) % len(STYLES)],
                marker=MARKERS[number % len(MARKERS)],
                markevery=(number % 4, 4),
                markersize=4,
            )
        if first.get("goal", "train_loss") == "train_loss":  # another one is not on this axis
            axis.axhline(first["target"], color="grey", linewidth=0.8)
            place = axis.get_yaxis_transform()
            axis.text(0.99, first["target"], "target", transform=place, ha="right", va="bottom", fontsize=8)
        what = "seconds of training, scoring included"
        low, high, end = find_window(own)
        log = high > 4 * low
        axis.set(title=f"{title}; {first['schedule']}", xlabel=what, ylabel="training loss")
        axis.set(xlim=(0, end), ylim=(low / 1.05, high) if log else (low - 0.05 * (high - low), high))
        if log:
            axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:.3g}")
        axis.yaxis.set_minor_formatter("{x:.2g}")
        axis.tick_params(labelsize=7, which="both")
        axis.title.set_fontsize(9)
        axis.legend(fontsize=7, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wallclock.figure", description=__doc__)
    parser.add_argument("rows", type=Path, metavar="ROWS.json", help="what `--json` of the benchmark wrote")
    parser.add_argument("figure", type=Path, metavar="FIGURE", help="where to draw it: .svg, .png or .pdf")
    given = parser.parse_args()
    draw(json.loads(given.rows.read_text(encoding="utf8")), given.figure)
