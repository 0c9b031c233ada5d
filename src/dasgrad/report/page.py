"""From run sets to all that the page shows, as a plain dictionary of numbers and text."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import dasgrad
from dasgrad.experiments.draws import Draws
from dasgrad.experiments.records import COLUMNS
from dasgrad.experiments.registry import EXPERIMENTS
from dasgrad.experiments.statistics import Band, Interval, first_reaching, stack
from dasgrad.report.claims import CLAIMS, Judgement, judge, variance_of
from dasgrad.report.collect import Collection, RunSet, Series
from dasgrad.report.comparisons import comparisons_of, reference_of
from dasgrad.report.paired import (
    AXES,
    QUANTITIES,
    axis_values,
    band_of,
    final_improvement,
    improvement_curve,
    interval_of,
)
from dasgrad.report.pictures import as_data_uri
from dasgrad.report.styles import STYLES, Style, assign_styles

MAX_SHOWN = 8
"""Methods drawn at first; more have their buttons, not pressed."""
DIAGNOSTICS = {
    "effective_sample_size": "effective sample size",
    "max_weight": "largest weight",
    "largest_weight": "largest weight",
    "entropy": "entropy of p",
    "gain": "gain",
    "variance_gain": "variance gain",
    "staleness": "staleness, steps",
}
"""Names of optional columns for people; a column that is not here goes by its own name."""


def build_page(collection: Collection, name: str) -> dict[str, Any]:
    """Everything on the page of a folder called ``name``; numbers that are not finite are None."""
    return {
        "name": name,
        "version": dasgrad.__version__,
        "claims": [_describe_judgement(judgement) for judgement in judge(CLAIMS, collection.sets)],
        "quantities": [
            {"column": q.column, "label": q.label, "relative": q.relative, "lessIsBetter": q.less_is_better}
            for q in QUANTITIES
        ],
        "sets": [
            _describe_set(run_set, f"set{k}", _is_folded(collection, k)) for k, run_set in enumerate(collection.sets)
        ],
        "trends": _describe_trends(collection.sets),
        "leftOut": [{"file": left.file, "reason": left.reason} for left in collection.left_out],
    }


def title_of(run_set: RunSet) -> str:
    """The experiment's title, and what sets this run set apart from others of its experiment."""
    known = EXPERIMENTS.get(run_set.experiment)
    if known is None:
        return run_set.name
    return known.title + run_set.name.removeprefix(run_set.experiment)


def styles_of(run_set: RunSet) -> dict[str, Style]:
    """A style for each series: the method's own for its first variant, the palette's for others."""
    styles = assign_styles(series.name for series in run_set.series)
    first: dict[str, str] = {}
    for series in run_set.series:
        if series.name not in STYLES and series.method in STYLES and series.method not in first:
            own = STYLES[series.method]
            styles[series.name] = Style(own.label + series.name.removeprefix(series.method), own.color, own.dash)
            first[series.method] = series.name
    return styles


def _is_folded(collection: Collection, position: int) -> bool:
    """Whether an experiment has so many sets that all but its first begin folded up."""
    mine = [k for k, s in enumerate(collection.sets) if s.experiment == collection.sets[position].experiment]
    return len(mine) > 2 and position != mine[0]


def _describe_trends(sets: Sequence[RunSet]) -> list[dict[str, Any]]:
    """For experiments run at several variances, the final improvement against the variance."""
    trends: dict[tuple[str, str], dict[tuple[str, str], dict[float, Interval]]] = {}
    styles: dict[str, Style] = {}
    for run_set in sets:
        variance = variance_of(run_set) if run_set.problem else None
        if variance is None or variance <= 0:
            continue
        styles |= styles_of(run_set)
        lines = trends.setdefault((run_set.experiment, str(run_set.problem.get("problem", ""))), {})
        for ours, baseline, seeds in comparisons_of(run_set):
            value = final_improvement(ours.at(seeds), baseline.at(seeds), QUANTITIES[0])
            lines.setdefault((ours.method, baseline.method), {})[variance] = value
    return [
        {
            "experiment": getattr(EXPERIMENTS.get(experiment), "title", experiment),
            "kind": kind,
            "lines": [_describe_trend(pair, dict(sorted(values.items())), styles) for pair, values in lines.items()],
        }
        for (experiment, kind), lines in trends.items()
        if max(len(values) for values in lines.values()) > 1
    ]


def _describe_trend(pair: tuple[str, str], values: dict[float, Interval], styles: dict[str, Style]) -> dict[str, Any]:
    own, other = (styles.get(name) or assign_styles([name])[name] for name in pair)
    band = Band(*(np.array([getattr(value, key) for value in values.values()]) for key in ("mean", "low", "high")))
    return {
        "name": "/".join(pair),
        "label": f"{own.label} over {other.label}",
        "color": own.color if pair[1] in ("amsgrad", "amsgrad-iid") else other.color,
        "dash": list(own.dash if pair[1] in ("amsgrad", "amsgrad-iid") else other.dash or (3.0, 1.0)),
        "x": _numbers(values),
        **_band(band),
    }


def _describe_set(run_set: RunSet, name: str, folded: bool) -> dict[str, Any]:
    config = run_set.series[0].runs[0].config
    comparisons, styles, reference = comparisons_of(run_set), styles_of(run_set), reference_of(run_set)
    extra = [c for c in dict.fromkeys(c for s in run_set.series for c in s.runs[0].curves) if c not in COLUMNS]
    mark = float(stack(reference.runs, "train_loss")[:, -1].mean())
    shown = {s.name for s in run_set.series}
    if len(shown) > MAX_SHOWN:
        shown = {s.name for pair in comparisons for s in pair[:2]} | {reference.name}
    return {
        "id": name,
        "name": run_set.name,
        "title": title_of(run_set),
        "folded": folded,
        "settings": {
            "experiment": run_set.experiment,
            "folder": run_set.folder,
            "steps": config.num_steps,
            "batch size": config.batch_size,
            "device": config.device,
            "seeds": len(reference.runs),
            "tuning runs": run_set.num_tuning_runs,
            **{key: _plain(value) for key, value in run_set.problem.items()},
        },
        "reference": reference.name,
        "series": [_describe_series(s, styles[s.name], s.name in shown, mark, extra) for s in run_set.series],
        "comparisons": [_describe_comparison(*comparison) for comparison in comparisons],
        "diagnostics": [{"column": c, "label": DIAGNOSTICS.get(c, c.replace("_", " "))} for c in extra],
        "draws": [_describe_draws(s.name, s.draws) for s in run_set.series if s.draws is not None],
        "options": _describe_options(run_set),
        "environments": _describe_environments(run_set),
    }


def _describe_series(series: Series, style: Style, shown: bool, mark: float, extra: Sequence[str]) -> dict[str, Any]:
    runs = series.runs
    means = {name: np.mean([run.curves[name] for run in runs], axis=0) for name in COLUMNS}
    reached = first_reaching(means["train_loss"], mark)
    bands = [*(q.column for q in QUANTITIES), *(c for c in extra if all(c in run.curves for run in runs))]
    positions = {axis: np.mean([axis_values(run, axis) for run in runs], axis=0) for axis in AXES}
    finals = {q.column: interval_of(stack(runs, q.column)[:, -1]) for q in QUANTITIES}
    finals["seconds"] = interval_of(stack(runs, "seconds")[:, -1])
    return {
        "name": series.name,
        "label": style.label,
        "color": style.color,
        "dash": list(style.dash),
        "shown": shown,
        "adaptive": series.adaptive,
        "seeds": len(runs),
        "lr": runs[0].config.lr,
        "refresh": runs[0].config.refresh,
        "x": {axis: _numbers(values) for axis, values in positions.items()},
        "bands": {column: _band(band_of(stack(runs, column))) for column in bands},
        "final": {column: _interval(value) for column, value in finals.items()},
        "cost": {
            "seconds": _number(means["seconds"][-1]),
            "scoringSeconds": _number(means["scoring_seconds"][-1]),
            "gradients": _number(means["gradient_evaluations"][-1]),
            "scored": _number(means["scored_examples"][-1]),
        },
        "reached": None if reached is None else {axis: _number(positions[axis][reached]) for axis in AXES},
    }


def _describe_comparison(ours: Series, baseline: Series, seeds: list[int]) -> dict[str, Any]:
    own, other = ours.at(seeds), baseline.at(seeds)
    curves: dict[str, dict[str, Any]] = {}
    for quantity in QUANTITIES:
        curves[quantity.column] = {}
        for axis in AXES:
            positions, band = improvement_curve(own, other, quantity, axis)
            # Points are evenly spaced, or those of the method itself: the page makes them again.
            known = np.array_equal(positions, own[0].curves[axis]) if axis == "step" else False
            where = {} if known else {"end": _number(positions[-1])}
            shares = Band(*(np.round(values, 5) for values in (band.mean, band.low, band.high)))
            curves[quantity.column][axis] = {**where, **_band(shares)}
    finals = {q.column: _interval(final_improvement(own, other, q)) for q in QUANTITIES}
    return {"ours": ours.name, "baseline": baseline.name, "seeds": len(seeds), "curves": curves, "final": finals}


def _describe_judgement(judgement: Judgement) -> dict[str, Any]:
    claim = judgement.claim
    return {
        "name": claim.name,
        "text": claim.text,
        "source": claim.source,
        "needs": list(claim.experiments),
        "note": claim.note,
        "verdict": judgement.verdict,
        "sets": judgement.sets,
        "findings": [
            {"text": f.text, "unit": f.unit, "supports": f.supports, **_interval(f.value)} for f in judgement.findings
        ],
    }


def _describe_draws(name: str, draws: Draws) -> dict[str, Any]:
    pictures = None if draws.pictures is None else [as_data_uri(picture) for picture in draws.pictures]
    return {
        "series": name,
        "steps": _numbers(draws.steps),
        "numExamples": draws.num_examples,
        "levels": _numbers(draws.levels),
        "quantiles": [_numbers(column) for column in draws.quantiles.T],
        "indices": [int(index) for index in draws.indices],
        "labels": None if draws.labels is None else [int(label) for label in draws.labels],
        "ratios": [_numbers(column, 3) for column in draws.ratios.T],
        "weights": [_numbers(column, 3) for column in draws.weights.T],
        "counts": [[int(count) for count in column] for column in draws.counts.T],
        "pictures": pictures,
    }


def _describe_options(run_set: RunSet) -> dict[str, Any]:
    """Options that all series share, and by series those in which they differ."""
    plain = [{"lr": s.runs[0].config.lr, "refresh": s.runs[0].config.refresh} for s in run_set.series]
    rows = [
        {key: _plain(value) for key, value in {**own, **s.runs[0].config.options}.items()}
        for own, s in zip(plain, run_set.series, strict=True)
    ]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    common = [key for key in keys if all(key in row and row[key] == rows[0][key] for row in rows)]
    return {
        "common": {key: rows[0][key] for key in common},
        "columns": [key for key in keys if key not in common],
        "rows": [
            {"series": s.name, **{key: value for key, value in row.items() if key not in common}}
            for s, row in zip(run_set.series, rows, strict=True)
        ],
    }


def _describe_environments(run_set: RunSet) -> list[dict[str, Any]]:
    found: Counter[str] = Counter()
    for series in run_set.series:
        for run in series.runs:
            found[json.dumps([run.versions, run.machine], sort_keys=True, default=str)] += 1
    environments = []
    for text, num_runs in found.most_common():
        versions, machine = json.loads(text)
        plain = {"versions": versions, "machine": machine}
        environments.append({"runs": num_runs, **{k: {a: _plain(b) for a, b in v.items()} for k, v in plain.items()}})
    return environments


def _band(band: Band) -> dict[str, Any]:
    own = {"mean": _numbers(band.mean)}
    if np.isnan(band.low).all():  # one seed
        return own
    return {**own, "low": _numbers(band.low, 4), "high": _numbers(band.high, 4)}


def _interval(interval: Interval) -> dict[str, float | None]:
    return {"mean": _number(interval.mean), "low": _number(interval.low), "high": _number(interval.high)}


def _numbers(values: Any, digits: int = 5) -> list[float | None]:
    return [_number(value, digits) for value in values]


def _number(value: float, digits: int = 6) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _plain(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value) if not isinstance(value, dict) else json.dumps(value, sort_keys=True)
