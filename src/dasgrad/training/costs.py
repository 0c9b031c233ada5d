"""`Costs`: what `AutoRefresh` reckons with where it is not to measure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds, given instead of measured: decisions then depend on the random seed alone, and can be repeated."""

    step: float
    """A training step."""
    example: float
    """Scoring one example."""
    lost: float = 1.0
    """The share of its time that scoring beside training takes from training; for ``overlap`` alone."""

    def __post_init__(self) -> None:
        for name, value in (("step", self.step), ("example", self.example)):
            if not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"`Costs({name}=...)` must be a positive number of seconds, got {value!r}.")
        if not (isinstance(self.lost, (int, float)) and 0 <= self.lost <= 1):
            raise ValueError(f"`Costs(lost=...)` must be in [0, 1], got {self.lost!r}.")
