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


def examine(loader: "AdaptiveLoader") -> Diagnosis:
    """Look once at a loader that rescores at fixed steps, and say what the draws it makes are worth."""
    evidence = Evidence(ScoringCosts(None, time.perf_counter))
    step, step_seconds = loader.num_steps + 1, loader.step_seconds
    sample = evidence.sample(loader, step, _EXAMINED, step_seconds or 0.0)
    evidence.measure_noise(loader, sample.chosen, evidence.beliefs.noise)
    found = evidence.judge(sample, loader)
    score = score_name(loader.scorer) if loader.scorer is not None else ""
    scoring_seconds = evidence.seconds_of(score, loader)
    factor, larger = found.noise.steps_factor(found.now), None
    if step_seconds is not None and loader.refresh_interval is not None:
        factor *= 1 + loader.share_lost * scoring_seconds / (loader.refresh_interval * step_seconds)
    if step_seconds is not None:
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
        time_factor=factor if loader.sampler.refreshed else 1.0,
        larger_batch_factor=larger,
        reason=f"rescored every {loader.refresh_interval} steps",
    )
