"""The figure of an experiment with several cases: the improvement against the case."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dasgrad.experiments.runner import Outcome
from dasgrad.experiments.statistics import relative_improvement_band
from dasgrad.report.figures import save
from dasgrad.report.styles import assign_styles

MARKERS = "osD^v"


def draw_cases(outcomes: Sequence[Outcome], stem: Path) -> list[Path]:
    """Draw the relative improvement of each comparison over the cases, with intervals, as .png and .svg."""
    experiment, settings = outcomes[0].experiment, outcomes[0].settings
    styles = assign_styles(experiment.methods)
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "dasgrad"}):
        figure = Figure(figsize=(2.0 + 0.9 * len(outcomes), 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0.0, color="#555555", linewidth=1.0)
        for k, (method, baseline) in enumerate(experiment.comparisons):
            bands = [relative_improvement_band(o.records[baseline], o.records[method]) for o in outcomes]
            mean, low, high = (np.array([getattr(band, end)[-1] for band in bands]) for end in ("mean", "low", "high"))
            places = np.arange(len(outcomes)) + 0.12 * (k - (len(experiment.comparisons) - 1) / 2)
            spread = np.maximum(np.stack([mean - low, high - mean]), 0.0)
            label = f"{styles[method].label} over {styles[baseline].label}"
            color = styles[baseline].color
            axes.errorbar(places, mean, spread, fmt=MARKERS[k % len(MARKERS)], color=color, label=label, ms=4)
        axes.set_xticks(range(len(outcomes)), [outcome.case for outcome in outcomes])
        axes.set_ylabel("final training loss below the baseline's")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.legend(frameon=False, fontsize=7)
        title = f"{experiment.title}: {settings.num_steps:,} steps, mean and 95 % interval over"
        figure.suptitle(f"{title} {settings.num_seeds} paired seeds", fontsize=10)
        return [save(figure, stem.with_suffix(suffix)) for suffix in (".png", ".svg")]
