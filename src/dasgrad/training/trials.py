"""What scoring takes, tried out on a few examples before all are scored."""

from collections.abc import Callable
from dataclasses import dataclass

_SMALLEST, _LARGEST, _STEPS, _GROWTH = 64, 512, 8, 8
"""Examples scored at once: so many, growing by a factor, until a trial is as large or takes more than so many steps."""


@dataclass(frozen=True)
class Trial:
    """Seconds of a chunk of examples."""

    once: float
    """Whatever its size."""
    each: float
    """More for one example more."""

    def seconds(self, num_examples: int, chunk_size: int) -> float:
        """Of so many examples in such chunks."""
        return -(-num_examples // chunk_size) * self.once + num_examples * self.each


def try_out(time_scores: Callable[[int], float], most: int, step_seconds: float) -> Trial:
    """Score chunks that grow, and tell the part of their time that does not grow with them.

    Args:
        time_scores: scores so many examples, and returns the seconds it took.
        most: examples in the largest chunk.
        step_seconds: of a training step, by which trials are short or long.
    """
    size, previous = min(_SMALLEST, most), (0, 0.0)
    time_scores(size)  # first use has costs of its own
    while True:
        # Twice: a compiler's time, or that of another program on this core, would be multiplied with all examples.
        seconds = min((t for t in (time_scores(size), time_scores(size)) if t > 0), default=0.0)
        enough = size >= _LARGEST or seconds > _STEPS * step_seconds
        if size == most or (previous[0] and enough):
            break
        size, previous = min(most, _GROWTH * size), (size, seconds)
    each = max((seconds - previous[1]) / (size - previous[0]), 0.1 * seconds / size)
    return Trial(max(0.0, seconds - each * size), each)
