"""`WeightedBatch`: what a training loop gets: the data, which examples they are, and what they count."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad import nested
from dasgrad.optim import DASGrad


@dataclass(frozen=True, slots=True, eq=False)
class WeightedBatch:
    """B drawn examples with their importance weights.

    Attributes:
        data: whatever the ``collate_fn`` returned.
        indices: ``[B]`` int64, positions in the data set; an example drawn twice stands twice.
        weights: ``[B]`` importance weights w = π/p of the moment of the draw.

    Example:
        >>> import torch, dasgrad
        >>> batch = dasgrad.WeightedBatch(
        ...     (torch.zeros(2, 3), torch.zeros(2)), torch.tensor([7, 1]), torch.tensor([0.5, 2.0])
        ... )
        >>> batch.weighted_mean(torch.tensor([4.0, 1.0]))
        tensor(2.)
    """

    data: Any
    indices: Tensor
    weights: Tensor
    _shares: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def inputs(self) -> Any:
        """The first half of data that is a pair."""
        return self._pair("inputs")[0]

    @property
    def targets(self) -> Any:
        """The second half of data that is a pair."""
        return self._pair("targets")[1]

    def _pair(self, name: str) -> Any:
        data = self.data
        is_sequence = isinstance(data, (tuple, list))
        if is_sequence and len(data) == 2:
            return data
        shape = f" of length {len(data)}" if is_sequence else ""
        raise TypeError(
            f"`WeightedBatch.{name}` needs data that is a pair (inputs, targets), got {type(data).__name__}{shape}; "
            "use `.data`."
        )

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "WeightedBatch":
        """The batch on a device."""
        batch = WeightedBatch(
            nested.move(self.data, device, non_blocking),
            self.indices.to(device, non_blocking=non_blocking),
            self.weights.to(device, non_blocking=non_blocking),
        )
        return batch if self._shares is None else with_shares(batch, self._shares.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "WeightedBatch":
        """The batch in page-locked memory."""
        data = nested.map_leaves(lambda leaf: leaf.pin_memory(), self.data)
        return with_shares(WeightedBatch(data, self.indices.pin_memory(), self.weights.pin_memory()), self._shares)

    def weighted_mean(self, losses: Tensor) -> Tensor:
        """(1/B) Σ w_b f_b: an unbiased estimate of the target loss, and so is its gradient.

        The sum is divided by B, never by Σw, and taken in at least float32. Log this value: the plain mean
        over an adaptive batch is not the training loss.

        Raises:
            ValueError: when ``losses`` is not ``[B]``.
        """
        losses = self._check(losses)
        # One node in the graph, where a product and a mean would be two. Autocast leaves a dot product in float32.
        return torch.dot(losses, self._shares_like(losses))

    def _shares_like(self, losses: Tensor) -> Tensor:
        """w/B, of the weights as they are now."""
        shares, weights = self._shares, self.weights
        unwritten = shares is not None and not weights.is_inference() and weights._version == 0
        if shares is not None and unwritten and losses.dtype is shares.dtype and losses.device == shares.device:
            return shares
        return weights.mul(1 / losses.shape[0]).to(losses)

    def backward(self, losses: Tensor, optimizer: Optimizer, *, num_accumulated: int = 1) -> Tensor:
        """Add this batch's gradients to the parameters', as the optimizer's weighting asks for.

        With ``weighting="gradient"``, and for any other optimizer, this is
        ``weighted_mean(losses).backward()``. With ``weighting="update"`` the graph is run twice: the
        unweighted mean goes to ``param.grad``, the weighted one to the optimizer for its next step.

        Args:
            losses: ``[B]``, with their graph.
            optimizer: the one that will step.
            num_accumulated: how many batches make up one step; gradients are divided by it.

        Returns:
            The weighted mean loss, detached.
        """
        if not isinstance(num_accumulated, int) or num_accumulated < 1:
            raise ValueError(f"`backward(num_accumulated=...)` must be a positive integer, got {num_accumulated!r}.")
        losses = self._check(losses)
        weighted = self.weighted_mean(losses)
        share = weighted if num_accumulated == 1 else weighted / num_accumulated
        if isinstance(optimizer, DASGrad) and optimizer.weighting == "update":
            params = [param for group in optimizer.param_groups for param in group["params"]]
            wanted = [param for param in params if param.requires_grad]
            found = torch.autograd.grad(share, wanted, retain_graph=True, allow_unused=True)
            grads = dict(zip(wanted, found, strict=True))
            torch.autograd.backward(losses.mean() / num_accumulated)
            mean_weight = self.weights.mean() / num_accumulated
            optimizer.accumulate_update_grads([grads.get(param) for param in params], mean_weight)
        else:
            torch.autograd.backward(share)
        return weighted.detach()

    def _check(self, losses: Tensor) -> Tensor:
        if losses.shape != self.weights.shape:
            raise ValueError(
                f"`losses` must hold one value per example, shape ({len(self)},), got {tuple(losses.shape)}; "
                'build the loss with reduction="none".'
            )
        if losses.dtype is torch.float32:
            return losses
        return losses.to(torch.promote_types(losses.dtype, torch.float32))


def with_shares(batch: WeightedBatch, shares: Tensor | None) -> WeightedBatch:
    """The batch itself, with w/B in float32 at hand, if not None: then they need not be made in its step."""
    object.__setattr__(batch, "_shares", shares)
    return batch


def even_shares(batch_size: int, device: torch.device) -> Tensor:
    """1/B each, as of all uniform draws; good for training, wherever they were made."""
    with torch.inference_mode(False):
        return torch.full((batch_size,), 1 / batch_size, dtype=torch.float32, device=device)
