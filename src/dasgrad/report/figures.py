"""The figure of an experiment: training loss, accuracy, and paired improvement over the baselines."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from dasgrad import atomic
from dasgrad.experiments.records import Record
from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import Band, relative_improvement_band, stack
from dasgrad.report.paired import band_of
from dasgrad.report.styles import Style, assign_styles

EARLY_SHARE = 0.05
"""Of the steps, those of the first steep change, which would hide all that follows; panels do not zoom out to them."""
DASHES: tuple[tuple[float, ...], ...] = ((), (1.2, 1.2), (5.0, 1.5), (6.0, 1.5, 1.2, 1.5))
"""By baseline, among the comparisons of one method."""
FEW = 5
"""Up to so many entries a legend fits into its panel."""


@dataclass(frozen=True, eq=False)
class Panels:
    """What a figure shows."""

    title: str
    records: Mapping[str, Sequence[Record]]
    """The runs of each method, by seed."""
    styles: Mapping[str, Style]
    comparisons: Sequence[tuple[str, str, Sequence[int]]]
    """Method, baseline, and the seeds both have, at least two."""


def panels_of(outcome: Outcome) -> Panels:
    """The figure of an experiment that was just run."""
    settings, seeds = outcome.settings, range(outcome.settings.num_seeds)
    return Panels(
        f"{outcome.title}: batch {settings.batch_size}, refresh every {settings.refresh} steps; "
        f"mean and 95 % band over {settings.num_seeds} paired seeds",
        outcome.records,
        assign_styles(outcome.records),
        [(method, baseline, seeds) for method, baseline in outcome.experiment.comparisons],
    )


def draw_figure(panels: Panels, stem: Path) -> list[Path]:
    """Draw the three panels and write them to ``stem`` with .png and .svg, atomically; returns the files."""
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "dasgrad"}):
        rows = max(len(panels.comparisons), len(panels.records) if len(panels.records) > FEW else 0)
        figure = Figure(figsize=(12.5, 4.0 + 0.16 * rows), layout="constrained")
        loss, accuracy, improvement = figure.subplots(1, 3)
        _draw_loss(loss, panels)
        _draw_accuracy(accuracy, panels)
        _draw_improvement(improvement, panels)
        last = max(float(run.curves["step"][-1]) for runs in panels.records.values() for run in runs)
        for axes in (loss, accuracy, improvement):
            axes.set_xlabel("steps")
            axes.set_xlim(0, last)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, linewidth=0.6)
        figure.suptitle(_literally(panels.title), fontsize=11)
        return [save(figure, stem.with_name(stem.name + suffix)) for suffix in (".png", ".svg")]


def _draw_loss(axes: Axes, panels: Panels) -> None:
    for method, runs in panels.records.items():
        style = panels.styles[method]
        label = f"{style.label}, α = {runs[0].config.lr:g}"
        _draw_band(axes, runs, band_of(stack(runs, "train_loss")), style, label)
    if any((stack(runs, "train_loss") > 0).any() for runs in panels.records.values()):
        axes.set_yscale("log")
    settled = _settled(panels, "train_loss")
    if settled and min(settled) > 0:
        axes.set_ylim(min(settled) * 0.97, max(settled) * 1.03)
    axes.set_title("Training loss")
    axes.set_ylabel("objective: loss and L2 term")
    if len(panels.records) <= FEW:
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    else:
        axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _settled(panels: Panels, column: str) -> list[float]:
    """All finite means after the first steps."""
    means = [(runs[0].curves["step"], stack(runs, column).mean(0)) for runs in panels.records.values()]
    late = [float(value) for steps, mean in means for value in mean[steps >= EARLY_SHARE * steps[-1]]]
    return [value for value in late if math.isfinite(value)]


def _draw_accuracy(axes: Axes, panels: Panels) -> None:
    widths = {"train_accuracy": 2.4, "test_accuracy": 1.1}
    for method, runs in panels.records.items():
        steps, style = runs[0].curves["step"], panels.styles[method]
        for column, width in widths.items():
            mean = stack(runs, column).mean(0)
            axes.plot(steps, mean, color=style.color, linestyle=style.linestyle, linewidth=width)
    settled = [value for column in widths for value in _settled(panels, column)]
    if settled:
        axes.set_ylim(max(0.0, min(settled) - 0.01), min(1.002, max(settled) + 0.01))
    axes.set_title("Accuracy")
    axes.set_ylabel("examples classified correctly")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    kinds = zip(("training set", "test set"), widths.values(), strict=True)
    handles = [Line2D([], [], color="black", linewidth=width, label=label) for label, width in kinds]
    axes.legend(handles=handles, frameon=False, loc="lower right")


def _draw_improvement(axes: Axes, panels: Panels) -> None:
    axes.axhline(0.0, color="#555555", linewidth=1.0)
    several = len({method for method, _, _ in panels.comparisons}) < len(panels.comparisons)
    drawn: Counter[str] = Counter()
    settled: list[float] = []
    for method, baseline, seeds in panels.comparisons:
        own, before = ([run for run in panels.records[name] if run.config.seed in seeds] for name in (method, baseline))
        style = replace(panels.styles[method], dash=DASHES[drawn[method] % len(DASHES)])
        label = f"over {panels.styles[baseline].label}"
        band = relative_improvement_band(before, own)
        late = own[0].curves["step"] >= EARLY_SHARE * own[0].curves["step"][-1]
        settled += [float(v) for edge in (band.low, band.high) for v in edge[late] if math.isfinite(v)]
        _draw_band(axes, own, band, style, f"{panels.styles[method].label} {label}" if several else label)
        drawn[method] += 1
    axes.set_title("Paired improvement by adaptive draws")
    axes.set_ylabel("training loss below the baseline's")
    if panels.comparisons:
        size = 9 if len(panels.comparisons) <= 2 else 7
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=size)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if settled:
        low, high = min(0.0, *settled), max(0.0, *settled)
        space = 0.15 * (high - low) or 0.01
        axes.set_ylim(low - space, high + space)
    for edge, height, word in (("top", 0.97, "better"), ("bottom", 0.03, "worse")):
        axes.text(0.98, height, word, transform=axes.transAxes, ha="right", va=edge, style="italic", color="#555555")


def _draw_band(axes: Axes, runs: Sequence[Record], band: Band, style: Style, label: str) -> None:
    steps = runs[0].curves["step"]
    axes.plot(steps, band.mean, color=style.color, linestyle=style.linestyle, linewidth=2.0, label=_literally(label))
    axes.fill_between(steps, band.low, band.high, color=style.color, alpha=0.18, linewidth=0)


def _literally(text: str) -> str:
    """Text in which matplotlib sees no formula, and which it does not leave out of a legend."""
    return text.replace("$", r"\$").lstrip("_")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the path's ending, atomically; returns the path."""
    buffer = io.BytesIO()
    kind = path.suffix[1:]
    # No date in the file: the same records give the same bytes.
    figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    atomic.write(path, buffer.getvalue())
    return path
