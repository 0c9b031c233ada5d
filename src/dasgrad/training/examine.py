"""`examine`: what the draws of a loader that rescores at fixed steps are worth."""

import time
from typing import TYPE_CHECKING

from dasgrad.scoring.names import score_name
from dasgrad.training.costs import ScoringCosts
from dasgrad.training.diagnosis import Diagnosis
from dasgrad.training.evidence import Evidence

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader

_EXAMINED = 1024
"""Examples looked at."""
_GROWTH = 1.25
"""What was found is said again until there are so many times the steps."""


class Examiner:
    """Looks at a loader that rescores at fixed steps when asked, but not at every step of a progress bar."""

    def __init__(self) -> None:
        self._found: Diagnosis | None = None
        self._refreshed_at = 0

    def diagnose(self, loader: "AdaptiveLoader", refreshed_at: int) -> Diagnosis:
        """What was found since the refresh at that step, not long ago, or is now."""
        found, step = self._found, loader.num_steps + 1
        if found is None or self._refreshed_at != refreshed_at or not found.step <= step < _GROWTH * found.step:
            found = self._found = examine(loader)
            self._refreshed_at = refreshed_at
        return found


def examine(loader: "AdaptiveLoader") -> Diagnosis:
    """Look once, and say what the draws are worth; before the first refresh, what draws by fresh scores would be."""
    evidence = Evidence(ScoringCosts(None, time.perf_counter))
    step, step_seconds = loader.num_steps + 1, loader.step_seconds
    sample = evidence.sample(loader, step, _EXAMINED, step_seconds or 0.0)
    evidence.measure_noise(loader, sample.chosen, evidence.beliefs.noise)
    found = evidence.judge(sample, loader)
    score = score_name(loader.scorer) if loader.scorer is not None else ""
    scoring_seconds = evidence.seconds_of(score, loader)
    factor = larger = None
    if step_seconds is not None and loader.refresh_interval is not None:
        factor = found.noise.steps_factor(found.now if loader.sampler.refreshed else found.fresh)
        factor *= 1 + loader.share_lost * scoring_seconds / (loader.refresh_interval * step_seconds)
        larger = evidence.larger_batch_factor(found.noise, loader, step_seconds)
    return Diagnosis(
        step=step,
        decision="keep" if loader.sampler.refreshed else "off",
        step_seconds=step_seconds,
        scoring_seconds=scoring_seconds,
        score=score,
        noise_scale=found.noise.measured_scale,
        noise_left_fresh=found.fresh,
        noise_left=found.now,
        time_factor=factor,
        larger_batch_factor=larger,
        reason=f"rescored every {loader.refresh_interval} steps",
    )
