"""The figure of an experiment: training loss, accuracy, and paired improvement over the baselines."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from dasgrad import atomic
from dasgrad.experiments.methods import METHODS
from dasgrad.experiments.records import Record
from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import Band, mean_band, relative_improvement_band, stack


@dataclass(frozen=True)
class Style:
    """How a method is drawn: told apart by dash and lightness as well as by hue, so also in grey."""

    label: str
    color: str
    dash: str | tuple[int, tuple[float, ...]]


# Okabe and Ito's colours, which colour-blind readers tell apart: blue where AMSGrad's moments are used, vermillion
# where Adam's are; solid where examples are drawn by importance, dashed where they are reshuffled.
STYLES = {
    "dasgrad": Style("AMSGrad, adaptive (DASGrad)", "#0072B2", "-"),
    "amsgrad": Style("AMSGrad, reshuffled", "#56B4E9", (0, (5.0, 1.5))),
    "dasgrad-adam": Style("Adam, adaptive", "#A23B00", "-"),
    "adam": Style("Adam, reshuffled", "#E69F00", (0, (1.2, 1.2))),
}
SPARE = ("#009E73", "#7A3E8E", "#CC79A7", "#333333", "#7F7F00", "#004D40", "#8C564B", "#5C6BC0")
"""For methods without a style of their own: solid where draws are adaptive, dashed or dotted elsewhere."""
EARLY_SHARE = 0.05
"""Of the steps, those in which accuracy climbs from chance; the accuracy panel does not zoom out to them."""


def style_of(method: str) -> Style:
    """A method's own style, or one by its place among all methods."""
    if method in STYLES:
        return STYLES[method]
    known = METHODS[method]
    others = [name.removesuffix("-iid") for name in METHODS if name not in STYLES]
    color = SPARE[list(dict.fromkeys(others)).index(method.removesuffix("-iid")) % len(SPARE)]
    dash: str | tuple[int, tuple[float, ...]] = "-"
    if not known.adaptive:
        dash = (0, (5.0, 1.5)) if known.draws == "reshuffled" else (0, (1.2, 1.2))
    return Style(known.label, color, dash)


def draw_figure(outcome: Outcome, stem: Path) -> list[Path]:
    """Draw the three panels and write them to ``stem`` with .png and .svg, atomically; returns the files."""
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "dasgrad"}):
        figure = Figure(figsize=(12.5, 4.2), layout="constrained")
        loss, accuracy, improvement = figure.subplots(1, 3)
        _draw_loss(loss, outcome)
        _draw_accuracy(accuracy, outcome)
        _draw_improvement(improvement, outcome)
        for axes in (loss, accuracy, improvement):
            axes.set_xlabel("steps")
            axes.set_xlim(0, outcome.settings.num_steps)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, linewidth=0.6)
        settings = outcome.settings
        figure.suptitle(
            f"{outcome.title}: batch {settings.batch_size}, refresh every {settings.refresh} steps; "
            f"mean and 95 % band over {settings.num_seeds} paired seeds",
            fontsize=11,
        )
        return [_save(figure, stem.with_suffix(suffix)) for suffix in (".png", ".svg")]


def draw_cases(outcomes: Sequence[Outcome], stem: Path) -> list[Path]:
    """Draw the relative improvement of each comparison over the cases, with intervals; files as `draw_figure`."""
    experiment, settings = outcomes[0].experiment, outcomes[0].settings
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "dasgrad"}):
        figure = Figure(figsize=(2.0 + 0.9 * len(outcomes), 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0.0, color="#555555", linewidth=1.0)
        for k, (method, baseline) in enumerate(experiment.comparisons):
            bands = [relative_improvement_band(o.records[baseline], o.records[method]) for o in outcomes]
            mean, low, high = (np.array([getattr(band, end)[-1] for band in bands]) for end in ("mean", "low", "high"))
            places = np.arange(len(outcomes)) + 0.12 * (k - (len(experiment.comparisons) - 1) / 2)
            spread = np.maximum(np.stack([mean - low, high - mean]), 0.0)
            label = f"{style_of(method).label} over {style_of(baseline).label}"
            axes.errorbar(places, mean, spread, fmt="osD^v"[k % 5], color=style_of(baseline).color, label=label, ms=4)
        axes.set_xticks(range(len(outcomes)), [outcome.case for outcome in outcomes])
        axes.set_ylabel("final training loss below the baseline's")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.legend(frameon=False, fontsize=7)
        title = f"{experiment.title}: {settings.num_steps:,} steps, mean and 95 % interval over"
        figure.suptitle(f"{title} {settings.num_seeds} paired seeds", fontsize=10)
        return [_save(figure, stem.with_suffix(suffix)) for suffix in (".png", ".svg")]


def _draw_loss(axes: Axes, outcome: Outcome) -> None:
    for method, runs in outcome.records.items():
        style = style_of(method)
        label = f"{style.label}, α = {outcome.learning_rates[method]:g}"
        _draw_band(axes, runs, mean_band(stack(runs, "train_loss")), style, label)
    axes.set_yscale("log")
    axes.set_title("Training loss")
    axes.set_ylabel("objective: cross-entropy and L2 term")
    axes.legend(frameon=False, fontsize=10 if len(outcome.records) < 6 else 6)


def _draw_accuracy(axes: Axes, outcome: Outcome) -> None:
    widths = {"train_accuracy": 2.4, "test_accuracy": 1.1}
    settled = []
    for method, runs in outcome.records.items():
        steps, style = runs[0].curves["step"], style_of(method)
        for column, width in widths.items():
            mean = stack(runs, column).mean(0)
            axes.plot(steps, mean, color=style.color, linestyle=style.dash, linewidth=width)
            settled.append(mean[steps >= EARLY_SHARE * steps[-1]].min())
    axes.set_ylim(max(0.0, min(settled) - 0.01), 1.002)  # the first steep rise would hide all that follows
    axes.set_title("Accuracy")
    axes.set_ylabel("examples classified correctly")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    kinds = zip(("training set", "test set"), widths.values(), strict=True)
    handles = [Line2D([], [], color="black", linewidth=width, label=label) for label, width in kinds]
    axes.legend(handles=handles, frameon=False, loc="lower right")


def _draw_improvement(axes: Axes, outcome: Outcome) -> None:
    axes.axhline(0.0, color="#555555", linewidth=1.0)
    for method, baseline in outcome.experiment.comparisons:
        runs = outcome.records[method]
        band = relative_improvement_band(outcome.records[baseline], runs)
        _draw_band(axes, runs, band, style_of(method), f"over {style_of(baseline).label}")
    axes.set_title("Paired improvement by adaptive draws")
    axes.set_ylabel("training loss below the baseline's")
    few = len(outcome.experiment.comparisons) < 4
    if outcome.experiment.comparisons:
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.06), fontsize=10 if few else 6)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.margins(y=0.12)
    for edge, height, word in (("top", 0.97, "better"), ("bottom", 0.03, "worse")):
        axes.text(0.98, height, word, transform=axes.transAxes, ha="right", va=edge, style="italic", color="#555555")


def _draw_band(axes: Axes, runs: Sequence[Record], band: Band, style: Style, label: str) -> None:
    steps = runs[0].curves["step"]
    axes.plot(steps, band.mean, color=style.color, linestyle=style.dash, linewidth=2.0, label=label)
    axes.fill_between(steps, band.low, band.high, color=style.color, alpha=0.18, linewidth=0)


def _save(figure: Figure, path: Path) -> Path:
    buffer = io.BytesIO()
    kind = path.suffix[1:]
    # No date in the file: the same records give the same bytes.
    figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    atomic.write(path, buffer.getvalue())
    return path
