"""The model's losses as a function of its parameters, one value an example."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dasgrad import nested

Losses = Callable[[Any, Any], Tensor]
"""``losses(model, data) -> [B]``."""


LARGEST_COPY = 2**27
"""Parameters up to which a model is copied to float64 for a check: 1 GiB."""


class LossShapeError(ValueError):
    """The loss is not one value per example."""


@dataclass(frozen=True)
class LossesOfPairs:
    """``loss_fn(outputs, targets)`` on data that is a pair (inputs, targets); errors name the owner."""

    loss_fn: Callable[[Any, Any], Tensor]
    owner: str = "ExampleScorer"

    def __call__(self, model: Any, data: Any) -> Tensor:
        """One loss an example."""
        if not (isinstance(data, tuple | list) and len(data) == 2):
            raise TypeError(
                f"`{self.owner}(loss_fn=...)` needs data that is a pair (inputs, targets), got "
                f"{type(data).__name__}; use `losses=` for other data."
            )
        inputs, targets = data
        return self.loss_fn(model(inputs), targets)


class LossFunction(nn.Module):
    """`losses` with parameters and buffers as arguments; the model's own tensors are never written to.

    For a model as it is now: another one is made when it has changed.
    """

    def __init__(self, model: nn.Module, losses: Losses, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self.losses = losses
        self.dtype = dtype

    def forward(self, data: Any, then: Callable[[Tensor], None] | None = None) -> Tensor:
        """One loss an example, ``[B]``; ``then`` is called with them."""
        values = self.losses(self.model, data)
        expected = (nested.count_examples(data),)
        if not isinstance(values, Tensor) or tuple(values.shape) != expected:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise LossShapeError(
                f"the loss must be one value per example, shape {expected}, got {got}; build it with "
                'reduction="none" and average over all but the first dimension.'
            )
        if then is not None:
            then(values)
        return values

    def precise(self) -> "LossFunction":
        """The same in float64, where gradients can be compared; itself for a model too large to be copied so."""
        if self.dtype == torch.float64 or sum(param.numel() for param in self.parameters()) > LARGEST_COPY:
            return self
        return LossFunction(self.model, self.losses, torch.float64)

    def cast(self, tensor: Any) -> Any:
        """A floating tensor in the scorer's dtype, another one as it is; both fit for autograd, and no part of it."""
        if isinstance(tensor, Tensor):
            tensor = tensor.clone() if tensor.is_inference() else tensor.detach()
        return tensor.to(self.dtype) if self.dtype is not None and tensor.is_floating_point() else tensor

    def tensors(self) -> dict[str, Tensor]:
        """Detached parameters, those of the first call, and copies of the buffers, by the names `call` takes."""
        params, shortened, buffers = self._held
        copies = {name: params[name].clone() for name in shortened}
        return {**params, **copies, **{name: self.cast(buffer.detach()).clone() for name, buffer in buffers}}

    @cached_property
    def _needs_copies(self) -> bool:
        """Whether the model is in another precision, or its forward pass may write to tensors."""
        other = (
            param.is_floating_point() and param.dtype != (self.dtype or param.dtype) for param in self.parameters()
        )
        return any(True for _ in self.buffers()) or bool(self._limited) or any(other)

    @cached_property
    def _limited(self) -> list[str]:
        """Modules whose rows are shortened when they are looked up, by a forward pass."""
        return [path for path, module in self.named_modules() if getattr(module, "max_norm", None) is not None]

    @cached_property
    def _held(self) -> tuple[dict[str, Tensor], list[str], list[tuple[str, Tensor]]]:
        """Parameters; which of them a forward pass writes to; buffers."""
        params = {name: self.cast(param.detach()) for name, param in self.named_parameters()}
        shortened = [f"{path}.weight" for path in self._limited if f"{path}.weight" in params]
        return params, shortened, list(self.named_buffers())

    def now(self, data: Any) -> Tensor:
        """The losses as the model is now, which is left as it is; no gradient goes through them."""
        with torch.no_grad():
            values: Tensor = self.call(self.tensors(), data) if self._needs_copies else self(data)
        return values.detach()

    def call(self, tensors: Mapping[str, Tensor], data: Any, then: Callable[[Tensor], None] | None = None) -> Tensor:
        """The losses under the given parameters and buffers; these are in place while ``then(losses)`` runs."""
        values: Tensor = torch.func.functional_call(self, dict(tensors), (data, then))
        return values
