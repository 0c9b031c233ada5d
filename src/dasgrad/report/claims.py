"""The paper's claims as data, and what the records say about each.

A claim rests on findings. A finding is a number that must be above 0, with its 95 % interval over paired seeds: it
supports the claim when the whole interval is above 0, speaks against it when the whole interval is below, and is
unclear otherwise. All findings support: reproduced. Some do: partly. None does: not reproduced.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dasgrad.experiments.statistics import LEVEL, Interval, resample_shares
from dasgrad.report.collect import RunSet, Series
from dasgrad.report.comparisons import comparisons_of
from dasgrad.report.paired import (
    Array,
    Quantity,
    final_gains,
    final_improvement,
    find_quantity,
    interval_of,
    saved_steps,
)
from dasgrad.report.theory import Row, has_bounds, summarise_bounds

REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_RUN = "reproduced", "partly", "not reproduced", "not run"
BASELINES = ("adam", "amsgrad")
"""Those that the paper compares with; a name after a dash or a space is a variant."""
NOT_THE_PAPERS = ("dasgrad-adam", "amsgrad-weighted")
"""Methods of these families that the paper does not have."""


@dataclass(frozen=True)
class Finding:
    """A number that a claim needs above 0."""

    text: str
    value: Interval
    unit: str = "share"
    """``"share"`` is shown in per cent, ``"points"`` in percentage points, ``"number"`` as it is."""

    @property
    def supports(self) -> str:
        """``"yes"``, ``"no"`` or ``"unclear"``."""
        if self.value.low > 0:
            return "yes"
        return "no" if self.value.high < 0 else "unclear"


Evidence = Callable[[Sequence[RunSet]], list[Finding]]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, where it stands, and how records speak to it."""

    name: str
    text: str
    source: str
    experiments: tuple[str, ...]
    """All of them are needed, and none means any; an experiment also goes by its name with more after a dash."""
    find: Evidence
    note: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    findings: list[Finding]
    sets: list[str]
    """Names of the run sets it rests on."""


def judge(claims: Sequence[Claim], sets: Sequence[RunSet]) -> list[Judgement]:
    """What the records say about each claim."""
    judgements = []
    for claim in claims:
        wanted = claim.experiments
        mine = [run_set for run_set in sets if not wanted or any(_is_of(run_set, name) for name in wanted)]
        complete = all(any(_is_of(run_set, name) for run_set in mine) for name in wanted)
        findings = claim.find(mine) if complete else []
        used = [run_set.name for run_set in mine] if findings else []
        judgements.append(Judgement(claim, decide(findings), findings, used))
    return judgements


def decide(findings: Sequence[Finding]) -> str:
    """The verdict on a claim that needs all of its findings."""
    supported = [finding.supports == "yes" for finding in findings]
    if not supported:
        return NOT_RUN
    return REPRODUCED if all(supported) else PARTLY if any(supported) else NOT_REPRODUCED


# --- findings -----------------------------------------------------------------------------------------


def outperforms(*columns: str) -> Evidence:
    """DASGrad ends better than each baseline in each column."""

    def find(sets: Sequence[RunSet]) -> list[Finding]:
        found = []
        for run_set in sets:
            for ours, baseline, seeds in pairs(run_set):
                for quantity in map(find_quantity, columns):
                    value = final_improvement(ours.at(seeds), baseline.at(seeds), quantity)
                    found.append(Finding(_describe(run_set, sets, ours, baseline, quantity), value, _unit(quantity)))
        return found

    return find


def reaches_sooner(sets: Sequence[RunSet]) -> list[Finding]:
    """DASGrad reaches each baseline's final training loss in fewer steps."""
    found = []
    for run_set in sets:
        for ours, baseline, seeds in pairs(run_set):
            value, reached = saved_steps(ours.at(seeds), baseline.at(seeds))
            text = (
                f"{_where(run_set, sets)}{ours.name}: steps saved to {baseline.name}'s final training loss, "
                f"reached in {reached} of {len(seeds)} seeds"
            )
            found.append(Finding(text, value))
    return found


def improves_more(larger: str, smaller: str) -> Evidence:
    """The relative improvement in training loss is larger in one experiment than in another."""

    def find(sets: Sequence[RunSet]) -> list[Finding]:
        quantity = find_quantity("train_loss")
        found = []
        for over in BASELINES:
            gains = []
            for experiment in (larger, smaller):
                chosen = _first_pair([s for s in sets if _is_of(s, experiment)], over)
                if chosen:
                    ours, baseline, seeds = chosen
                    gains.append(final_gains(ours.at(seeds), baseline.at(seeds), quantity))
            if len(gains) == 2 and min(map(len, gains)) > 1:
                value = _difference_of_means(gains[0], gains[1])
                means = f"{gains[0].mean():.1%} against {gains[1].mean():.1%}"
                text = f"relative improvement over {over} in {larger} less that in {smaller} ({means})"
                found.append(Finding(text, value, "points"))
        return found

    return find


def grows_with_variance(kind: str) -> Evidence:
    """The improvement in training loss rises with the variance of the features, where it is made in one way.

    Learning is online, so the baselines draw independently where there are such runs.
    """

    def find(sets: Sequence[RunSet]) -> list[Finding]:
        quantity = find_quantity("train_loss")
        mine = [s for s in sets if str(s.problem.get("problem", "")) == kind]
        found = []
        for over in BASELINES:
            gains: dict[float, Array] = {}
            for run_set in mine:
                variance, chosen = variance_of(run_set), _first_pair([run_set], over, prefer="-iid")
                if variance is not None and chosen and len(chosen[2]) > 1:
                    gains[variance] = final_gains(chosen[0].at(chosen[2]), chosen[1].at(chosen[2]), quantity)
            for low, high in itertools.pairwise(sorted(gains)):
                means = f"{gains[high].mean():.1%} against {gains[low].mean():.1%}"
                text = f"improvement over {over} at variance {high:g} less that at {low:g} ({means})"
                found.append(Finding(text, _difference_of_means(gains[high], gains[low]), "points"))
        return found

    return find


def is_slower(sets: Sequence[RunSet]) -> list[Finding]:
    """A run with scoring takes more seconds than the baseline's of as many steps."""
    found = []
    for run_set in sets:
        if has_bounds({series.name: series.runs for series in run_set.series}):
            continue  # on that clock is what was measured, too
        for ours, baseline, seeds in pairs(run_set):
            both = zip(ours.at(seeds), baseline.at(seeds), strict=True)
            ratios = [own.final("seconds") / other.final("seconds") - 1.0 for own, other in both]
            text = f"{_where(run_set, sets)}{ours.name}: more seconds than {baseline.name} for as many steps"
            found.append(Finding(text, interval_of(ratios)))
    return found


def stays_below(sets: Sequence[RunSet]) -> list[Finding]:
    """The mean regret stays below the derived bound; the interval is the t-interval of the mean over seeds."""
    found = []
    for run_set, row in _rows_with_bounds(sets):
        value = Interval(*(1 - regret / row.derived for regret in (row.regret.mean, row.regret.high, row.regret.low)))
        text = f"{_where(run_set, sets)}{row.method}: mean regret below the derived bound ({row.statement}) by"
        found.append(Finding(text, value))
    return found


def stays_below_print(sets: Sequence[RunSet]) -> list[Finding]:
    """The mean regret stays below the bound as printed: the printed bound less the regret."""
    found = []
    for run_set, row in _rows_with_bounds(sets):
        if math.isfinite(row.printed):
            value = Interval(*(row.printed - regret for regret in (row.regret.mean, row.regret.high, row.regret.low)))
            text = f"{_where(run_set, sets)}{row.method}: bound of Corollary {row.statement} as printed less the regret"
            found.append(Finding(text, value, "number"))
    return found


def grows_slower_than_time(sets: Sequence[RunSet]) -> list[Finding]:
    """1 less the exponent of the regret on the last decade, where a bound promises that it is below 1."""
    found = []
    for run_set, row in _rows_with_bounds(sets):
        if row.exponent is not None and not row.vacuous:
            value = Interval(1 - row.exponent.mean, 1 - row.exponent.high, 1 - row.exponent.low)
            text = f"{_where(run_set, sets)}{row.method}: 1 less the exponent of the regret's growth"
            found.append(Finding(text, value, "number"))
    return found


def _rows_with_bounds(sets: Sequence[RunSet]) -> Iterator[tuple[RunSet, Row]]:
    for run_set in sets:
        records = {series.name: series.runs for series in run_set.series if len(series.runs) > 1}
        if records and has_bounds(records):
            yield from ((run_set, row) for row in summarise_bounds(records) if math.isfinite(row.derived))


def pairs(run_set: RunSet) -> Iterator[tuple[Series, Series, list[int]]]:
    """Of the comparisons of a run set, those of DASGrad with a baseline of the paper over at least two seeds."""
    for ours, baseline, seeds in comparisons_of(run_set):
        is_the_papers = not {ours.method, baseline.method} & set(NOT_THE_PAPERS)
        if is_the_papers and _base(ours.method) == "dasgrad" and _base(baseline.method) in BASELINES and len(seeds) > 1:
            yield ours, baseline, seeds


def variance_of(run_set: RunSet) -> float | None:
    """The variance of the features that a run set was made with: an option, or a number at the end of its name."""
    for key in ("variance", "feature_variance"):
        if isinstance(run_set.problem.get(key), (int, float)):
            return float(run_set.problem[key])
    number = re.search(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)$", run_set.experiment)
    return float(number[1]) if number else None


def _first_pair(sets: Sequence[RunSet], over: str, prefer: str = "") -> tuple[Series, Series, list[int]] | None:
    """The comparison with the most seeds; of equals, one with a baseline of a preferred ending, else the first."""
    found = [pair for run_set in sets for pair in pairs(run_set) if _base(pair[1].method) == over]
    return max(found, key=lambda pair: (len(pair[2]), bool(prefer) and pair[1].method.endswith(prefer)), default=None)


def _difference_of_means(larger: Array, smaller: Array) -> Interval:
    resampled = resample_shares(len(larger)) @ larger - resample_shares(len(smaller)) @ smaller
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(larger.mean() - smaller.mean()), float(low), float(high))


def _describe(run_set: RunSet, sets: Sequence[RunSet], ours: Series, baseline: Series, quantity: Quantity) -> str:
    word = "below" if quantity.less_is_better else "above"
    return f"{_where(run_set, sets)}{ours.name}: final {quantity.label} {word} {baseline.name}'s by"


def _where(run_set: RunSet, sets: Sequence[RunSet]) -> str:
    return f"{run_set.name}; " if len(sets) > 1 else ""


def _unit(quantity: Quantity) -> str:
    return "share" if quantity.relative else "points"


def _base(method: str) -> str:
    return re.split(r"[-_ .(]", method, maxsplit=1)[0]


def _is_of(run_set: RunSet, experiment: str) -> bool:
    return run_set.experiment == experiment or run_set.experiment.startswith(f"{experiment}-")


# --- the claims ---------------------------------------------------------------------------------------

_FIGURE_1 = outperforms("train_loss", "train_accuracy")
CLAIMS = (
    Claim(
        "mnist",
        "On MNIST (logistic regression) DASGrad outperforms Adam and AMSGrad in training loss and accuracy.",
        "section 5, figure 1, first row",
        ("mnist",),
        _FIGURE_1,
    ),
    Claim(
        "imdb",
        "On IMDB (logistic regression on sparse features) DASGrad outperforms Adam and AMSGrad.",
        "section 5, figure 1, second row",
        ("imdb",),
        _FIGURE_1,
    ),
    Claim(
        "cifar10",
        "On CIFAR-10 (a small convolutional network) DASGrad continues to outperform Adam and AMSGrad.",
        "section 5, figure 1, third row",
        ("cifar10",),
        _FIGURE_1,
    ),
    Claim(
        "sparse-features",
        "The improvement is more significant on IMDB than on MNIST.",
        "section 5",
        ("imdb", "mnist"),
        improves_more("imdb", "mnist"),
    ),
    Claim(
        "complexity",
        "The benefits increase with the complexity of data and models.",
        "sections 5 and 7",
        ("cifar10", "mnist"),
        improves_more("cifar10", "mnist"),
        "Judged by the network on CIFAR-10 against the linear model on MNIST.",
    ),
    *(
        Claim(
            f"{experiment}-steps",
            f"On {title} DASGrad needs fewer iterations for the performance of Adam and AMSGrad.",
            "section 7",
            (experiment,),
            reaches_sooner,
        )
        for experiment, title in (("mnist", "MNIST"), ("imdb", "IMDB"), ("cifar10", "CIFAR-10"))
    ),
    *(
        Claim(
            f"variance-{kind}",
            f"The greater the variance of the gradients, the greater the benefit (online centroid learning, {how}).",
            "section 6, figure 2",
            ("centroid",),
            grows_with_variance(kind),
            "The paper does not say how it raised the variance; reproduced only if every rise raises the improvement.",
        )
        for kind, how in (("tail", "some examples far from the rest"), ("scale", "all features scaled alike"))
    ),
    Claim(
        "shift",
        "With importance weights to the test distribution DASGrad generalises under domain shift (unbalanced MNIST).",
        "section 6, figure 3, top row",
        ("shift",),
        outperforms("test_accuracy", "test_loss"),
        "The paper shows training accuracy; what is claimed is about the test distribution, so that is judged.",
    ),
    Claim(
        "multitask",
        "Importance weights match the distribution of a chosen task in multi-task learning.",
        "section 6, figure 3, bottom row",
        ("multitask",),
        outperforms("train_loss", "test_loss"),
        "Judged by the losses on the chosen task.",
    ),
    Claim(
        "bounds",
        "The expected regret of SGD, ap-SGD, AMSGrad and DASGrad is below Corollaries 1.1 to 4.1.",
        "section 3",
        ("theory",),
        stays_below,
        "Judged by the bounds as derived; AdaGrad's is Duchi et al.'s.",
    ),
    Claim(
        "printed-bounds",
        "The same for the corollaries to the letter.",
        "section 3, as printed",
        ("theory",),
        stays_below_print,
        "Where it fails is in docs/errata.md, with the smallest cases.",
    ),
    Claim(
        "sub-linear",
        "Regret is sub-linear, so that the methods converge on average.",
        "sections 2 and 3",
        ("theory",),
        grows_slower_than_time,
        "Over the last decade of steps, where β₁ falls or is 0.",
    ),
    Claim(
        "rate",
        "DASGrad improves the convergence over AMSGrad with uniform sampling.",
        "section 3",
        ("theory",),
        outperforms("train_loss"),
        "The loss is the regret per step, and draws of both are independent.",
    ),
    Claim(
        "cost",
        "The cost of computing, updating and sampling from the probabilities may counteract the benefits.",
        "section 6, a caveat",
        (),
        is_slower,
        "The paper's own caveat: reproduced means that scoring makes a run slower.",
    ),
    Claim(
        "digits",
        "The claim about MNIST on a small data set that needs no download: DASGrad outperforms Adam and AMSGrad.",
        "not in the paper: a quick check",
        ("digits",),
        _FIGURE_1,
    ),
)
