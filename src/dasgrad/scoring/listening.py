"""Scores for free: a training batch's scores out of its own backward pass."""

from typing import Any, Protocol

from torch import Tensor


class Weighted(Protocol):
    """A batch whose loss is (1/B) Σ w_b f_b, such as `dasgrad.WeightedBatch`."""

    @property
    def data(self) -> Any:
        """What ``losses(model, data)`` takes."""

    @property
    def weights(self) -> Tensor:
        """``[B]``, positive."""


class Heard:
    """What `ExampleScorer.listen` heard of a batch."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        """``[B]``, there once the block is left.

        Raises:
            RuntimeError: inside the block.
        """
        if self._scores is None:
            raise RuntimeError(
                "`scores` are there once the `with scorer.listen(batch)` block is left without an error."
            )
        return self._scores

    def fill(self, scores: Tensor) -> None:
        """Take the scores; the scorer's business."""
        self._scores = scores
