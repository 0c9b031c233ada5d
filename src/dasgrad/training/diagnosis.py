"""`Diagnosis`: whether adaptive draws pay here, and why, in numbers and in words."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Decision = Literal["refresh", "keep", "off", "wait"]
_WORDS = {
    "refresh": "all examples were scored anew",
    "keep": "the scores at hand still do, and were kept",
    "off": "draws are uniform: reshuffled passes with weights 1",
    "wait": "it is too early for scores to pay, and draws are uniform",
}


@dataclass(frozen=True)
class Diagnosis:
    """What was measured at one step of training on a small random set of examples, and what was decided."""

    step: int
    """The step, counted from 1, before whose draw this was."""
    decision: Decision
    step_seconds: float | None = None
    """Of a training step, without scoring."""
    scoring_seconds: float | None = None
    """Of scoring all examples by ``score``."""
    score: str = "dasgrad"
    """The tier of the score the decision was about."""
    noise_scale: float | None = None
    """N = tr Σ/‖μ‖²: the batch size beyond which noise is no longer what holds training up; None: not measured."""
    noise_left_fresh: float | None = None
    """The share of uniform draws' noise that fresh scores would leave, floor included; None: not measured."""
    noise_left: float = 1.0
    """The share that the draws leave from here on."""
    staleness: int | None = None
    """Steps since the scores in use were computed; None for uniform draws and where that is not known."""
    time_factor: float | None = 1.0
    """Predicted time to the same loss, relative to uniform draws, until the next look or scoring; below 1 is sooner.
    None: not known."""
    larger_batch_factor: float | None = None
    """The same of uniform draws in batches four times as large; None where the noise was not measured."""
    reason: str = ""
    """Where something else than the forecast decided: what."""

    @property
    def gain(self) -> float | None:
        """How many times less noise fresh scores would leave; None: not measured."""
        return _inverse(self.noise_left_fresh)

    @property
    def speedup(self) -> float | None:
        """Predicted, over uniform draws; 1 where these are the best choice, None where it is not known."""
        return _inverse(self.time_factor)

    @property
    def brief(self) -> str:
        """For a progress bar: ``bar.set_postfix_str(loader.diagnosis().brief)``."""
        words = ["adaptive draws" if self.decision in ("refresh", "keep") else "uniform draws"]
        if self.decision == "wait":
            known = f"scoring takes {self._num_steps}" if self._num_steps else self.reason
            words.append(known or "nothing measured yet")
        if self.gain is not None:
            words.append(f"gain {self.gain:.2g}")
        if self.speedup is not None and self.speedup != 1:
            words.append(f"speed-up {self.speedup:.2g}")
        if self.time_factor is None and self.reason:
            words.append(self.reason)
        return ", ".join(words)

    def scalars(self) -> dict[str, float]:
        """Numbers to log, by name, those that are known.

        ``writer.add_scalar(f"dasgrad/{name}", value, diagnosis.step)`` for each.
        """
        values: dict[str, Any] = {**asdict(self), "gain": self.gain, "speedup": self.speedup}
        values["adaptive"] = float(self.decision in ("refresh", "keep"))
        return {name: float(v) for name, v in values.items() if isinstance(v, (int, float)) and name != "step"}

    def __str__(self) -> str:
        lines = [
            f"Step {self.step}: {_WORDS[self.decision]}{f' ({self.reason})' if self.reason else ''}.",
            f"  Cost: a step takes {_seconds(self.step_seconds)}, scoring all examples by {self.score!r} "
            f"{_seconds(self.scoring_seconds)}{f', as long as {self._num_steps}' if self._num_steps else ''}.",
        ]
        if self.decision == "wait":
            return "\n".join(lines[: 1 if self.step_seconds is None else 2])
        if self.noise_left_fresh is None:
            return "\n".join(lines)
        lines += [
            f"  Gain: fresh scores would leave {self.noise_left_fresh:.0%} of the gradient's noise; "
            f"draws now leave {self.noise_left:.0%}{self._age()}.",
            f"  Noise scale: {self._noise()}.",
            f"  Forecast: {self._forecast()}.",
        ]
        return "\n".join(lines)

    @property
    def _num_steps(self) -> str:
        """That scoring takes as long as; empty where that is not known."""
        if not self.step_seconds or self.scoring_seconds is None:
            return ""
        return f"{self.scoring_seconds / self.step_seconds:.3g} steps"

    def _age(self) -> str:
        return "" if self.staleness is None else f", by scores {self.staleness} steps old"

    def _noise(self) -> str:
        if self.noise_scale is None:
            return "not measured"
        if self.noise_scale == float("inf"):
            return "so large that the mean gradient cannot be told from 0 on the examples looked at"
        return f"{self.noise_scale:.3g} examples; batches much larger than that would hardly help"

    def _forecast(self) -> str:
        if self.time_factor is None:
            return "not known"
        if self.decision == "off" and self.time_factor >= 1:
            words = "adaptive draws would not pay for themselves"
        else:
            when = "with scores, once they are made," if self.decision == "off" else "from here on"
            words = f"{when} the same loss in {self.time_factor:.0%} of the time of uniform draws"
        larger = self.larger_batch_factor
        if larger is None or larger >= 0.95:  # that it would not help is more than a look can tell
            return words
        more = "would do more" if larger < 0.9 * min(self.time_factor, 1.0) else "by itself"
        return f"{words}; a batch four times as large {more}, {larger:.0%}"


def _inverse(value: float | None) -> float | None:
    if value is None:
        return None
    return 1 / value if value > 0 else float("inf")


def _seconds(value: float | None) -> str:
    if value is None:
        return "an unknown time"
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1000:.3g} ms"
