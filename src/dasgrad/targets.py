"""Target distributions π: what the objective averages over.

Training minimises Σ πᵢ fᵢ(θ). The default is uniform, the plain mean over the training set. Another π aims
the same training set at another population: the class mix of a test set, one task of several. Each function
here returns a float64 vector on the simplex for `AdaptiveSampler(target=...)`; any such vector will do.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral

import torch
from torch import Tensor


def uniform(num_examples: int) -> Tensor:
    """πᵢ = 1/n.

    >>> uniform(4)
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    if not isinstance(num_examples, int) or num_examples < 1:
        raise ValueError(f"`uniform(num_examples=...)` must be a positive integer, got {num_examples!r}.")
    return torch.full((num_examples,), 1.0 / num_examples, dtype=torch.float64)


def from_label_frequencies(
    labels: Tensor | Sequence[int], frequencies: Mapping[int, float] | Tensor | Sequence[float]
) -> Tensor:
    """πᵢ = frequency(labelᵢ) / count(labelᵢ): the training set with another population's class mix.

    Args:
        labels: ``[n]`` integer label of each training example.
        frequencies: share of each class in the target population, by label or by position; non-negative, of
            sum 1 (to 1e-6, so that float32 will do). Counts are not shares: pass ``counts / counts.sum()``.

    Raises:
        ValueError: when frequencies do not sum to 1, or give mass to a class without training examples
            (no weighting can make up for a class that is not there).

    Example:
        >>> from_label_frequencies([0, 0, 0, 1], [0.5, 0.5])
        tensor([0.1667, 0.1667, 0.1667, 0.5000], dtype=torch.float64)
    """
    return _spread(labels, frequencies, "from_label_frequencies", "labels", "frequencies", "class")


def from_task_mixture(tasks: Tensor | Sequence[int], mixture: Mapping[int, float] | Tensor | Sequence[float]) -> Tensor:
    """πᵢ = mixture(taskᵢ) / count(taskᵢ): a training set of several tasks aimed at a chosen mixture.

    Args:
        tasks: ``[n]`` integer task of each training example.
        mixture: share of each task in the objective, by task or by position; non-negative, of sum 1.

    Example:
        >>> from_task_mixture([0, 0, 1, 2], {1: 1.0})
        tensor([0., 0., 1., 0.], dtype=torch.float64)
    """
    return _spread(tasks, mixture, "from_task_mixture", "tasks", "mixture", "task")


def _spread(
    keys: Tensor | Sequence[int],
    shares: Mapping[int, float] | Tensor | Sequence[float],
    function: str,
    keys_name: str,
    shares_name: str,
    noun: str,
) -> Tensor:
    """Each key's share spread evenly over its examples."""
    keys = torch.as_tensor(keys)
    if keys.dim() != 1 or keys.numel() == 0 or keys.is_floating_point():
        raise ValueError(
            f"`{function}({keys_name}=...)` must be a non-empty 1-D sequence of integers, "
            f"got {keys.dtype} of shape {tuple(keys.shape)}."
        )
    if isinstance(shares, Mapping):
        if any(not isinstance(key, Integral) for key in shares):
            raise ValueError(f"`{function}({shares_name}=...)` must have integer keys, got {list(shares)[:8]}.")
        by_key = {int(key): float(share) for key, share in shares.items()}
    else:
        by_position = torch.as_tensor(shares, dtype=torch.float64)
        if by_position.dim() != 1:
            raise ValueError(f"`{function}({shares_name}=...)` must be 1-D, got shape {tuple(by_position.shape)}.")
        by_key = dict(enumerate(by_position.tolist()))
    listed = torch.tensor(list(by_key.values()), dtype=torch.float64)
    check_simplex(listed, f"{function}({shares_name}=...)", tolerance=1e-6)
    present, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    held = set(present.tolist())
    absent = sorted(key for key, share in by_key.items() if share > 0 and key not in held)
    if absent:
        raise ValueError(
            f"`{function}({shares_name}=...)` must give mass only to a {noun} that `{keys_name}` holds, got "
            f"{by_key[absent[0]]} for {noun} {absent[0]}, which has no example."
        )
    each = torch.tensor([by_key.get(key, 0.0) for key in present.tolist()], dtype=torch.float64)
    target: Tensor = (each / listed.sum() / counts.cpu())[inverse.cpu()]
    return target


def check_simplex(target: Tensor, name: str, tolerance: float = 1e-9) -> None:
    """Refuse a vector that is not a distribution.

    Raises:
        ValueError: naming ``name``, when an entry is negative or not finite, or the sum is not 1 to the
            tolerance.
    """
    bad = ~(torch.isfinite(target) & (target >= 0))
    if bad.any():
        index = int(bad.nonzero()[0])
        raise ValueError(f"`{name}` must be finite and non-negative, got {float(target[index])} at index {index}.")
    total = float(target.sum())
    if abs(total - 1.0) > tolerance:
        raise ValueError(f"`{name}` must sum to 1, got {total}.")
