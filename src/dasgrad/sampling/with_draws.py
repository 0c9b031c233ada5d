"""`WithDraws`: a dataset that hands each example back with its index and importance weight."""

from typing import Any

from torch.utils.data import Dataset

from dasgrad.sampling.sampler import Draw


class WithDraws(Dataset[Any]):
    """Wraps a map-style dataset for a plain ``DataLoader`` whose batch sampler is an `AdaptiveSampler`.

    Each item is ``(example, index, weight)``; the weight is the one of the moment of the draw, however long
    a worker kept it waiting.

    Example:
        >>> import torch, dasgrad
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> dataset = TensorDataset(torch.arange(6.0).reshape(6, 1), torch.zeros(6))
        >>> sampler = dasgrad.AdaptiveSampler(6, batch_size=3, seed=0)
        >>> for (inputs, targets), indices, weights in DataLoader(
        ...     dasgrad.WithDraws(dataset), batch_sampler=sampler
        ... ):
        ...     batch = dasgrad.WeightedBatch((inputs, targets), indices, weights)
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draw: int) -> tuple[Any, int, float]:
        return self.dataset[int(draw)], int(draw), _weight_of(draw)

    def __getitems__(self, draws: list[int]) -> list[tuple[Any, int, float]]:
        if hasattr(self.dataset, "__getitems__"):
            examples = self.dataset.__getitems__([int(draw) for draw in draws])
        else:
            examples = [self.dataset[int(draw)] for draw in draws]
        return [(ex, int(draw), _weight_of(draw)) for ex, draw in zip(examples, draws, strict=True)]


def _weight_of(draw: int) -> float:
    if not isinstance(draw, Draw):
        raise TypeError(
            f"`WithDraws` must be indexed by the draws of an `AdaptiveSampler`, got {type(draw).__name__} {draw!r}."
        )
    return draw.weight
