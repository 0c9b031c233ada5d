"""The figure of a problem of the theory: regret per step, a theorem term by term, and all bounds at the end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dasgrad.experiments.records import Record
from dasgrad.experiments.statistics import stack
from dasgrad.report.figures import save
from dasgrad.report.paired import band_of
from dasgrad.report.styles import Style
from dasgrad.report.theory import TERMS, mean_curve, summarise_bounds

SHOWN = ("dasgrad-paper-theory", "dasgrad-theory", "amsgrad-theory")
"""Whose terms are drawn: the first of these that was run, or else the first of all."""
TERM_STYLES = {
    "potential_term": ("potential", "#0072B2", (5.0, 1.5)),
    "error_term": ("error", "#D55E00", (2.0, 1.0)),
    "momentum_term": ("moving average, m", "#7A3E8E", (1.0, 1.2)),
    "distance_term": ("moving average, θ − θ*", "#009E73", (6.0, 1.5, 1.2, 1.5)),
}


def draw_bounds(
    title: str, records: Mapping[str, Sequence[Record]], styles: Mapping[str, Style], stem: Path
) -> list[Path]:
    """Draw the three panels and write them to ``stem`` with .png and .svg, atomically; returns the files."""
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "dasgrad"}):
        figure = Figure(figsize=(14.5, 5.2), layout="constrained")
        per_step, terms, bounds = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.1))
        _draw_per_step(per_step, records, styles)
        chosen = next((name for name in SHOWN if name in records), next(iter(records)))
        _draw_terms(terms, records[chosen], styles[chosen])
        _draw_bounds_at_the_end(bounds, records, styles)
        for axes in (per_step, terms, bounds):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, linewidth=0.6)
        figure.suptitle(title, fontsize=11)
        return [save(figure, stem.with_name(stem.name + suffix)) for suffix in (".png", ".svg")]


def _draw_per_step(axes: Axes, records: Mapping[str, Sequence[Record]], styles: Mapping[str, Style]) -> None:
    for method, runs in records.items():
        steps, style = runs[0].curves["step"][1:], styles[method]
        band = band_of(stack(runs, "train_loss")[:, 1:])
        axes.plot(steps, band.mean, color=style.color, linestyle=style.linestyle, label=style.label, linewidth=1.8)
        axes.fill_between(steps, band.low, band.high, color=style.color, alpha=0.1, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("Regret per step, R(t)/t")
    axes.set_xlabel("steps t")
    axes.set_ylabel("mean and 95 % band over seeds")
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


def _draw_terms(axes: Axes, runs: Sequence[Record], style: Style) -> None:
    steps = runs[0].curves["step"][1:]
    if "derived_bound" in runs[0].curves:
        axes.plot(steps, mean_curve(runs, "derived_bound"), color="black", linewidth=2.2, label="corollary, as derived")
    total = sum(mean_curve(runs, term) for term in TERMS)
    axes.plot(steps, total, color="#777777", linewidth=2.2, label="theorem: sum of the terms")
    for column, (label, color, dash) in TERM_STYLES.items():
        values = mean_curve(runs, column)
        if (values > 0).any():
            shown = np.where(values > 0, values, math.nan)
            axes.plot(steps, shown, color=color, linestyle=(0, dash), linewidth=1.6, label=label)
    axes.plot(
        steps, mean_curve(runs, "regret"), color="#CC0000", linewidth=1.2, marker="o", markevery=6, ms=3, label="R(t)"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"Term by term: {style.label}", fontsize=10)
    axes.set_xlabel("steps t")
    axes.set_ylabel("sums up to t, means over seeds")
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


def _draw_bounds_at_the_end(axes: Axes, records: Mapping[str, Sequence[Record]], styles: Mapping[str, Style]) -> None:
    rows = summarise_bounds(records)
    places = np.arange(len(rows))[::-1]
    kinds = {
        "R(T), measured": ("regret", "o", "#CC0000", 6),
        "theorem: sum of the terms": ("terms", "|", "#555555", 12),
        "corollary, as derived": ("derived", "D", "black", 5),
        "corollary, as printed": ("printed", "x", "#0072B2", 6),
    }
    for label, (name, marker, color, size) in kinds.items():
        values = np.array([row.regret.mean if name == "regret" else getattr(row, name) for row in rows])
        shown = np.where(values > 0, values, math.nan)
        axes.plot(shown, places, marker, color=color, ms=size, label=label, linestyle="none")
    for row, place in zip(rows, places, strict=True):
        if row.printed_fails:
            text = "print fails" if row.printed > 0 else "print is below 0"
            axes.annotate(
                text, (row.regret.mean, place), (2, 5), textcoords="offset points", color="#0072B2", fontsize=7
            )
        if row.vacuous:
            axes.annotate("vacuous", (row.derived, place), (-6, 5), textcoords="offset points", fontsize=7, ha="right")
    axes.set_xscale("log")
    axes.set_yticks(places, [f"{styles[row.method].label} ({row.statement})" for row in rows], fontsize=8)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_title("At the last step")
    axes.set_xlabel("regret and its bounds")
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=2)
