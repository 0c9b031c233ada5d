"""Regret against its bounds: a table and a figure for each problem, from records that hold both.

Only means over seeds are held against a bound, by their one-sided 95 % limit; nothing is said of a single seed.
"""

import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasgrad import atomic, theory
from dasgrad.experiments.methods import METHODS
from dasgrad.experiments.records import Record
from dasgrad.experiments.statistics import stack
from dasgrad.report.tables import align

Array = NDArray[np.float64]
TERMS = ("potential_term", "error_term", "momentum_term", "distance_term")
TOLERANCE = 1e-10
"""Relative: a larger violation of a theorem's inequality is no rounding."""
STATEMENTS = {
    ("sgd", False): "1.1",
    ("sgd", True): "2.1",
    ("adagrad", False): "Duchi",
    ("amsgrad", False): "3.1",
    ("amsgrad", True): "4.1",
}


def has_bounds(records: Mapping[str, Sequence[Record]]) -> bool:
    """Whether all runs are of the theory's kind."""
    return all("regret" in run.curves for runs in records.values() for run in runs)


@dataclass(frozen=True)
class Row:
    """A method on a problem; NaN where there is no such number."""

    method: str
    statement: str
    """The corollary, or ``"–"``."""
    lr: float
    regret: theory.Estimate
    terms: float
    """The theorem's right-hand side."""
    derived: float
    printed: float
    vacuous: bool
    exponent: theory.Estimate | None
    """Of log R over log t on the last decade; None where that cannot be fitted."""
    violation: float
    """The largest over all steps and seeds, relative."""

    @property
    def slack(self) -> float:
        """The bound over the regret's upper limit: at least 1 where the bound holds."""
        return self.derived / self.regret.upper_limit

    @property
    def printed_fails(self) -> bool:
        """Whether the regret is surely above the printed bound."""
        return self.regret.low > self.printed


def summarise_bounds(records: Mapping[str, Sequence[Record]]) -> list[Row]:
    """One row for each method, of at least two seeds."""
    return [_summarise(method, runs) for method, runs in records.items()]


def _summarise(method: str, runs: Sequence[Record]) -> Row:
    def mean(column: str) -> float:
        return float(np.mean([run.final(column) for run in runs])) if column in runs[0].curves else math.nan

    known = METHODS.get(runs[0].config.method)
    scheme = None if known is None else known.scheme
    statement = "–" if scheme is None else STATEMENTS.get((scheme.moments, scheme.adaptive), "–")
    return Row(
        method=method,
        statement=statement,
        lr=runs[0].config.lr,
        regret=theory.estimate([run.final("regret") for run in runs]),
        terms=sum(mean(term) for term in TERMS),
        derived=mean("derived_bound"),
        printed=mean("printed_bound"),
        vacuous=mean("vacuous") == 1.0,
        exponent=_fit(runs),
        violation=max(run.final("violation") for run in runs),
    )


def _fit(runs: Sequence[Record]) -> theory.Estimate | None:
    try:
        slopes = [theory.fit_exponent(run.curves["step"][1:], run.curves["regret"][1:]) for run in runs]
    except ValueError:  # too few points, or a regret of exactly 0
        return None
    return theory.estimate(slopes)


def format_bounds(title: str, records: Mapping[str, Sequence[Record]]) -> str:
    """The table of a problem, in at most 100 columns, and what it says."""
    rows = summarise_bounds(records)
    runs = next(iter(records.values()))
    cells = [["method", "α", "R(T)", "95 % limit", "bound", "derived", "slack", "printed", "growth of R"]]
    for row in rows:
        growth = (
            "–" if row.exponent is None else f"{row.exponent.mean:.2f} [{row.exponent.low:.2f},{row.exponent.high:.2f}]"
        )
        cells.append(
            [
                row.method.removesuffix("-theory"),
                f"{row.lr:g}",
                f"{row.regret.mean:.3g}",
                f"{row.regret.upper_limit:.3g}",
                row.statement,
                _number(row.derived) + ("*" if row.vacuous else ""),
                _number(row.slack),
                _number(row.printed) + ("!" if row.printed_fails else ""),
                growth,
            ]
        )
    head = (
        f"{title}: {runs[0].config.num_steps:,} steps, {len(runs)} paired seeds. Bounds are on the mean, and\n"
        "slack is the derived one over the one-sided 95 % limit of the mean; growth is the exponent of R on\n"
        "the last decade, with its 95 % t-interval: below 1 is sub-linear."
    )
    return "\n\n".join([head, align(cells), "\n".join(_verdicts(rows))])


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """What the numbers say, whichever way they fall."""
    bounded = [row for row in rows if not math.isnan(row.derived)]
    broken = [row for row in bounded if not row.slack >= 1]
    found = f"NOT shown for {_names(broken)}, whose limit is above" if broken else "the limit is below all of them"
    lines = [f"Derived bounds: {found}."]
    worst = max(row.violation for row in rows)
    held = "held" if worst <= TOLERANCE else "FAILED"
    lines.append(f"Theorems, given the past, at every step of every seed: {held} (worst violation {worst:.1g}).")
    if any(row.vacuous for row in rows):
        lines.append("* vacuous: with a constant β₁ the bound grows like T^(3/2).")
    failing = [row for row in rows if row.printed_fails]
    if failing:
        lines.append(f"! as printed the bound FAILS: {_names(failing)}.")
    promised = [row for row in bounded if not row.vacuous and row.exponent is not None]
    linear = [row for row in promised if row.exponent is not None and not row.exponent.high < 1]
    lines.append(
        f"Sub-linear where promised: {'NOT shown for ' + _names(linear) if linear else 'all of them'}."
        if promised
        else "Too few steps to say how regret grows."
    )
    others = [row for row in rows if row not in promised and row.exponent is not None and row.exponent.high >= 1]
    if others:
        lines.append(f"Nothing promised, and not sub-linear here: {_names(others)}.")
    return [textwrap.fill(line, 100, subsequent_indent="  ") for line in lines]


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(row.method.removesuffix("-theory") for row in rows)


def write_bounds_csv(cases: Mapping[str, Mapping[str, Sequence[Record]]], path: Path) -> Path:
    """One row for each problem and method, atomically."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    named = ["case", "method", "statement", "lr", "seeds", "regret", "regret_upper_limit", "terms", "derived_bound"]
    named += ["slack", "vacuous", "printed_bound", "printed_fails", "exponent", "exponent_low", "exponent_high"]
    writer.writerow([*named, "largest_violation"])
    for case, records in cases.items():
        for row in summarise_bounds(records):
            fitted = row.exponent
            growth = (math.nan, math.nan, math.nan) if fitted is None else (fitted.mean, fitted.low, fitted.high)
            numbers = [row.regret.mean, row.regret.upper_limit, row.terms, row.derived, row.slack]
            cells = [case, row.method, row.statement, f"{row.lr:g}", len(records[row.method]), *map(_cell, numbers)]
            cells += [int(row.vacuous), _cell(row.printed), int(row.printed_fails), *map(_cell, growth)]
            writer.writerow([*cells, _cell(row.violation)])
    atomic.write(path, buffer.getvalue().encode())
    return path


def mean_curve(runs: Sequence[Record], column: str) -> Array:
    """Over seeds, without the point before the first step."""
    mean: Array = stack(runs, column).mean(0)[1:]
    return mean


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.9g}"
