"""Losses against seconds, one panel a problem: ``python -m benchmarks.wallclock.figure ROWS.json FIGURE.svg``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parts.report import Row

STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw(rows: Sequence[Row], path: Path, schedule: str = "constant") -> None:
    """One panel a problem and rule for batch sizes; lines differ in dash and marker as well as in shade.

    Raises:
        ImportError: without matplotlib; the message has the command.
        ValueError: when no row has that schedule.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("a figure needs matplotlib: pip install matplotlib.") from error
    rows = [row for row in rows if row["schedule"] == schedule]
    panels = list(dict.fromkeys((row["title"], row["batches"]) for row in rows))
    if not panels:
        raise ValueError(f"`draw(rows=...)` must have rows of the schedule {schedule!r}, got none.")
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(8, 3.6 * len(panels)), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        own = [row for row in rows if (row["title"], row["batches"]) == panel]
        first = own[0]
        lines = {
            f"best uniform ({first['peer_name'].split(',')[0]}, batch {first['peer_batch_size']})": first["peer_curve"]
        }
        lines |= {f"{row['method']}, batch {row['batch_size']}": row["curve"] for row in own}
        for number, (label, curve) in enumerate(lines.items()):
            axis.plot(
                curve["seconds"][1:],
                curve["train_loss"][1:],
                label=label,
                color="black"
                if number == 0
                else pyplot.get_cmap("viridis")(0.85 * (number - 1) / max(1, len(lines) - 2)),
                linewidth=2.4 if number == 0 else 1.2,
                linestyle="-" if number == 0 else STYLES[number % len(STYLES)],
                marker=None if number == 0 else MARKERS[number % len(MARKERS)],
                markevery=(number % 5, 5),
                markersize=4,
            )
        axis.axhline(first["target"], color="grey", linewidth=0.8)
        axis.annotate("target", (0, first["target"]), xytext=(2, 2), textcoords="offset points", fontsize=8)
        axis.set(
            title=f"{panel[0]}; {panel[1]}", xlabel="seconds of training, scoring included", ylabel="training loss"
        )
        axis.set_yscale("log")
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf8")), Path(sys.argv[2]))
