"""`CapturedLoop`: training steps, draws included, as replays of one CUDA graph.

The step of a small model on a GPU is mostly work of the host: dozens of kernels are launched one after the other, and
each runs for less time than its launch takes. A CUDA graph launches all of them at once. So that one graph serves all
steps, the draws of many batches stand in a table on the device, made between refreshes in one call; the step reads the
row that a counter on the device names, and advances the counter. The host has nothing to do but to ask for the next
replay, and to rescore where an ordinary loop would.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasgrad import nested
from dasgrad.scoring.isolation import device_of
from dasgrad.scoring.losses import Losses, LossesOfPairs
from dasgrad.training.batch import WeightedBatch
from dasgrad.training.loader import AdaptiveLoader
from dasgrad.training.step_graph import StepGraph

MOST_STEPS, MOST_DRAWS = 256, 2**20
"""Steps whose draws are made at once, and draws: with more, the calls around them are no longer worth saving."""


class Schedule(Protocol):
    """A learning-rate scheduler, or anything else to be called after each optimizer step."""

    def step(self) -> object:
        """Set what the next optimizer step uses."""


class CapturedLoop:
    """The training loop over an `AdaptiveLoader`, each step of it one launch of a CUDA graph.

    ``loop.run(1000)`` takes the steps that this loop would take, by the same draws and weights::

        for batch in loader:  # pass after pass
            optimizer.zero_grad()
            batch.backward(losses(model, batch.data), optimizer)
            optimizer.step()
            scheduler.step()  # if there is one

    Refreshes come before the same steps, by ``refresh="auto"``, too, and are no part of the graph. Between two runs
    everything is as after that loop: evaluate, save a checkpoint or load one, change options, go on with that loop.
    The first steps are taken one operation at a time, then one is captured; what a graph cannot follow (a state that
    was loaded, other options, another mode of the model) lets the next run begin so again.

    In a replay no Python runs: hooks on modules and on the optimizer, and whatever else the loss does, run in the first
    steps and at the capture alone, and what they do to tensors is repeated. Random numbers on the device (dropout) go
    on from step to step. ``param.grad`` is memory of the graph; after a run it holds the last step's gradient. A
    learning rate becomes a tensor on the device, which schedulers fill in place.

    On any other device than CUDA the same steps are taken without a graph: `captured` says which.

    Args:
        loader: of tensors in memory, on the model's device, without workers and ``collate_fn``.
        model: by default the scorer's.
        loss_fn: ``loss_fn(outputs, targets) -> [B]``, for data that is a pair; by default the scorer's loss.
        optimizer: by default the one whose steps the loader counts. On CUDA it must be built with ``capturable=True``,
            ``torch.optim.SGD`` excepted.
        losses: ``losses(model, data) -> [B]``, the general form, instead of ``loss_fn``; the place for autocast.
        scheduler: its ``step()`` is called after every optimizer step. It may change learning rates alone, and those of
            SGD only with ``fused=True``.

    Raises:
        ValueError: for what is missing, data or parameters elsewhere than the model, data that are no dense tensors (on
            CUDA), an optimizer that cannot be captured, or one whose steps the loader does not count although it counts
            another's.

    Example:
        >>> import torch, dasgrad
        >>> data = torch.randn(100, 3), torch.randint(0, 2, (100,))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = dasgrad.DASGrad(model.parameters(), capturable=True)
        >>> scorer = dasgrad.ExampleScorer(model, torch.nn.CrossEntropyLoss(reduction="none"), optimizer)
        >>> loader = dasgrad.AdaptiveLoader(data, batch_size=10, scorer=scorer, refresh=20)
        >>> loop = dasgrad.CapturedLoop(loader)
        >>> loop.run(50).shape
        torch.Size([50])
    """

    def __init__(
        self,
        loader: AdaptiveLoader,
        model: nn.Module | None = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        optimizer: Optimizer | None = None,
        *,
        losses: Losses | None = None,
        scheduler: Schedule | None = None,
    ) -> None:
        scorer = loader.scorer
        if loss_fn is not None and losses is not None:
            raise ValueError("`CapturedLoop` needs one of `loss_fn` and `losses`, got both.")
        if losses is None:
            losses = scorer.losses if loss_fn is None and scorer is not None else None
            losses = LossesOfPairs(loss_fn, "CapturedLoop") if loss_fn is not None else losses
        model = scorer.model if model is None and scorer is not None else model
        optimizer = loader.optimizer if optimizer is None else optimizer
        if model is None or losses is None or optimizer is None:
            given = {"model": model, "loss_fn": losses, "optimizer": optimizer}
            missing = ", ".join(f"`{name}`" for name, value in given.items() if value is None)
            raise ValueError(f"`CapturedLoop` needs {missing}: the loader has no scorer that knows.")
        if loader.optimizer not in (None, optimizer):
            raise ValueError("`CapturedLoop(optimizer=...)` must be the one whose steps the loader counts.")
        device = device_of(model)
        _check_data(loader, device)
        self.loader = loader
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._losses = losses
        self._device = device
        counter = None if loader.optimizer is None else loader.counter
        self._graph = StepGraph(model, optimizer, counter, device) if device.type == "cuda" else None
        shape = (max(1, min(MOST_STEPS, MOST_DRAWS // loader.batch_size)), loader.batch_size)
        self._indices_KB = torch.zeros(shape, dtype=torch.int64, device=device)
        self._weights_KB = torch.zeros(shape, dtype=torch.float64, device=device)
        self._row = torch.zeros(1, dtype=torch.int64, device=device)  # of the table, for the next step
        self._means_K: Tensor | None = None  # weighted mean losses, by rows of the table

    @property
    def captured(self) -> bool:
        """Whether steps are replays of a graph by now."""
        return self._graph is not None and self._graph.is_captured

    def run(self, num_steps: int | None = None) -> Tensor:
        """Take steps; returns their weighted mean losses, ``[num_steps]``, on the device, which is not waited for.

        Args:
            num_steps: 0 or more; None is up to the end of the pass. The next run, or the next ``for batch in loader``,
                goes on in the middle of a pass.

        Raises:
            ValueError: for losses that are not one value an example, a scheduler that changes what the graph keeps as
                a number, and as the constructor. Draws of steps not taken are the loader's next ones again.
            RuntimeError: inside ``torch.autocast``, which keeps casts of the parameters while they change, and where a
                step cannot be captured.
        """
        num_steps = self.loader.num_left if num_steps is None else num_steps
        if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 0:
            raise ValueError(f"`CapturedLoop.run(num_steps=...)` must be a non-negative integer, got {num_steps!r}.")
        if torch.is_autocast_enabled(self._device.type):
            raise RuntimeError("`CapturedLoop.run` must be called outside autocast: enter it in `losses`.")
        parts = []
        with torch.cuda.device(self._device) if self._graph is not None else nullcontext():
            if self._graph is not None:
                self._graph.begin()
            while num_steps > 0:
                indices, weights = self.loader.take_draws(min(num_steps, len(self._indices_KB)))
                parts.append(self._take_steps(indices, weights))
                num_steps -= len(indices)
            if self._graph is not None:
                self._graph.end()
        return torch.cat(parts) if parts else torch.zeros(0, device=self._device)

    def _take_steps(self, indices: Tensor, weights: Tensor) -> Tensor:
        """One step with each row of draws; returns the losses."""
        num_steps, num_taken = len(indices), 0
        self._indices_KB[:num_steps].copy_(indices)
        self._weights_KB[:num_steps].copy_(weights)
        self._row.zero_()
        try:
            while num_taken < num_steps:
                self.loader.start_step()
                if self._graph is None:
                    self._step()
                else:
                    self._graph.take_step(self._step)
                num_taken += 1
                if self.scheduler is not None:
                    self.scheduler.step()
                    if self._graph is not None:
                        self._graph.check_options()
        finally:
            if num_taken < num_steps:
                self.loader.put_back(indices[num_taken:], weights[num_taken:])
        assert self._means_K is not None
        return self._means_K[:num_steps].clone()

    def _step(self) -> None:
        """One step with the draws in the table's next row, which depends on nothing that the host does in between."""
        indices = self._indices_KB.index_select(0, self._row).view(-1)
        weights = self._weights_KB.index_select(0, self._row).view(-1)
        batch = WeightedBatch(nested.take_rows(self.loader.columns, indices), indices, weights)
        self.optimizer.zero_grad()
        loss = batch.backward(self._losses(self.model, batch.data), self.optimizer)
        self.optimizer.step()
        if self._means_K is None:
            self._means_K = loss.new_zeros(len(self._indices_KB))
        self._means_K.index_copy_(0, self._row, loss.view(1))
        self._row.add_(1)


def _check_data(loader: AdaptiveLoader, device: torch.device) -> None:
    if loader.columns is None:
        raise ValueError(
            "`CapturedLoop(loader=...)` needs tensors in memory (a TensorDataset, a tuple or dict of tensors), without "
            f"workers and `collate_fn`, got a loader of {type(loader.dataset).__name__} that fetches its examples."
        )
    for leaf in nested.leaves(loader.columns):
        if leaf.device != device:
            raise ValueError(
                f"`CapturedLoop(loader=...)` needs its data on the model's device, {device}, got {leaf.device}: move "
                "the tensors before the loader is built."
            )
        if device.type == "cuda" and not isinstance(leaf, Tensor):
            raise ValueError(
                f"`CapturedLoop(loader=...)` needs dense tensors on a GPU, got {type(leaf).__name__}: the size of its "
                "batches differs, and a graph repeats one size."
            )
    elsewhere = loader.device is not None and (
        loader.device.type != device.type or loader.device.index not in (None, device.index)
    )
    if elsewhere:
        raise ValueError(
            f"`AdaptiveLoader(device=...)` must be the model's, {device}, or None for a `CapturedLoop`, "
            f"got {loader.device}."
        )
