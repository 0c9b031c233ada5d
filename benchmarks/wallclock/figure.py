"""Losses against seconds, one panel a problem: ``python -m benchmarks.wallclock.figure ROWS.json FIGURE.svg``."""

import json
import sys
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
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False, layout="constrained")
    shades = pyplot.get_cmap("viridis")
    for axis, (title, own) in zip(axes[:, 0], panels.items(), strict=True):
        first = own[0]
        best = f"best uniform: {first['peer_name'].split(',')[0]}, batch {first['peer_batch_size']}"
        axis.plot(
            first["peer_curve"]["seconds"][1:],
            first["peer_curve"]["train_loss"][1:],
            label=best,
            color="black",
            linewidth=2.4,
        )
        for number, row in enumerate(own):
            axis.plot(
                row["curve"]["seconds"][1:],
                row["curve"]["train_loss"][1:],
                label=f"{row['method']}, batch {row['batch_size']}",
                color=shades(0.85 * number / max(1, len(own) - 1)),
                linewidth=1.2,
                linestyle=STYLES[(number + 1) % len(STYLES)],
                marker=MARKERS[number % len(MARKERS)],
                markevery=(number % 4, 4),
                markersize=4,
            )
        axis.axhline(first["target"], color="grey", linewidth=0.8)
        place = axis.get_yaxis_transform()
        axis.text(0.99, first["target"], "target", transform=place, ha="right", va="bottom", fontsize=8)
        what = "seconds of training, scoring included"
        axis.set(title=f"{title}; {first['schedule']}", xlabel=what, ylabel="training loss", yscale="log")
        axis.title.set_fontsize(9)
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf8")), Path(sys.argv[2]))
