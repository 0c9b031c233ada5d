"""Which method of a run set is compared with which."""

from dasgrad.experiments.registry import EXPERIMENTS
from dasgrad.report.collect import RunSet, Series

MAX_COMPARISONS = 8


def comparisons_of(run_set: RunSet) -> list[tuple[Series, Series, list[int]]]:
    """Pairs (series, baseline, common seeds) worth a curve.

    Those the experiment names come first, then the paper's, then for methods not in either, all adaptive ones against
    all others; pairs without a common seed are left out.
    """
    known = EXPERIMENTS.get(run_set.experiment)
    wanted = [*(known.comparisons if known else ()), ("dasgrad", "amsgrad"), ("dasgrad", "adam")]
    everything = [(ours, other) for ours in run_set.series if ours.adaptive for other in run_set.series]
    pairs = [(o, b) for method, base in wanted for o, b in everything if (o.method, b.method) == (method, base)]
    compared = {series.name for pair in pairs for series in pair}
    pairs += [(o, b) for o, b in everything if not b.adaptive and (o.name not in compared or not pairs)]
    found: dict[tuple[str, str], tuple[Series, Series, list[int]]] = {}
    for ours, baseline in pairs:
        seeds = sorted(set(ours.seeds) & set(baseline.seeds))
        if seeds:
            found.setdefault((ours.name, baseline.name), (ours, baseline, seeds))
    return list(found.values())[:MAX_COMPARISONS]


def reference_of(run_set: RunSet) -> Series:
    """The baseline whose final loss is the mark to reach: the experiment's, AMSGrad, or the first there is."""
    known = EXPERIMENTS.get(run_set.experiment)
    wanted = (known.reference if known else "amsgrad", "amsgrad")
    others = [series for series in run_set.series if not series.adaptive] or list(run_set.series)
    return next((series for name in wanted for series in others if series.method == name), others[0])
