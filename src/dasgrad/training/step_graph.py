"""One training step as a CUDA graph: when it is captured, what it may depend on, and when it is captured anew."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from dasgrad.training.refresh import StepCounter

NUM_EAGER = 3
"""Steps taken before the capture: they make the optimizer's state, and let libraries choose and load their kernels."""
_WHAT_CANNOT_BE_CAPTURED = (
    "`CapturedLoop`: this step could not be captured in a CUDA graph, and was not taken. Model, loss and optimizer "
    "must not make the host wait for the device (`.item()`, `.cpu()`, `if` on a tensor's value), nor have shapes that "
    "depend on values; and nothing may hold outputs or losses of earlier steps with their graph."
)


class StepGraph:
    """Takes a step by replaying a CUDA graph of it, after a few that are taken as they are.

    Args:
        model: whose tensors the step reads and writes.
        optimizer: steps inside.
        counter: of the optimizer's steps, by a hook; None where they are not counted.
        device: of all tensors.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, counter: StepCounter | None, device: torch.device
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._counter = counter
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._rates: dict[int, Tensor] = {}  # the learning rates of param groups
        self._forget()
        self._check_optimizer()

    def _forget(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_eager = 0
        self._grads: list[tuple[Tensor, Tensor | None]] = []
        self._options: list[dict[str, Any]] = []
        self._places: list[Any] = []

    @property
    def is_captured(self) -> bool:
        """Whether the next step is a replay."""
        return self._graph is not None

    # --- stepping -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a run: learning rates go where a graph reads them, and a graph of what is no more is forgotten."""
        self._check_optimizer()
        self._place_rates()
        if self._graph is not None and (self._options, self._places) != (self._read_options(), self._read_places()):
            self._forget()

    def end(self) -> None:
        """After a run: ``param.grad`` is the gradient of the last step, whatever was done to it since the capture."""
        for param, grad in self._grads:
            param.grad = grad

    def take_step(self, step: Callable[[], None]) -> None:
        """Take a step, by the graph as soon as there is one."""
        if self._graph is None and self._num_eager < NUM_EAGER:
            self._take_eagerly(step)
            return
        if self._graph is None:
            self._graph = self._capture(step)
        self._graph.replay()
        if self._counter is not None:
            self._counter.count()

    def _take_eagerly(self, step: Callable[[], None]) -> None:
        """On the stream of the capture, so that libraries have their workspaces there.

        The last one is a rehearsal: what waits for the device raises, which a capture would not allow either. But
        torch's random generator does not outlive a capture that fails.
        """
        outside, mode = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            try:
                if self._num_eager == NUM_EAGER - 1:
                    torch.cuda.set_sync_debug_mode("error")
                step()
            except RuntimeError as error:
                if "synchronizing CUDA operation" in str(error):
                    error.add_note(_WHAT_CANNOT_BE_CAPTURED)
                raise
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        outside.wait_stream(self._stream)
        self._num_eager += 1

    def _capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """A graph of the step, which is not taken by that."""
        graph, outside = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._optimizer.zero_grad()  # gradients must be new tensors inside: a replay then overwrites them
        with self._counter.paused() if self._counter is not None else nullcontext():
            try:
                with torch.cuda.graph(graph, stream=self._stream):
                    step()
            except Exception as error:
                torch.cuda.set_stream(outside)  # torch stays on the other when the end of a capture fails
                self._optimizer.zero_grad()
                error.add_note(_WHAT_CANNOT_BE_CAPTURED)
                raise
        self._grads = [(param, param.grad) for param in self._params()]
        self._options, self._places = self._read_options(), self._read_places()
        if self._counter is not None:
            self._counter.stopwatch.restart()  # a replay takes another time
        return graph

    # --- what a graph depends on ----------------------------------------------------------------------

    def check_options(self) -> None:
        """Refuse a change of what the graph keeps as it was."""
        if self._graph is None:
            return
        for k, (before, now) in enumerate(zip(self._options, self._read_options(), strict=True)):
            if before != now:
                names = ", ".join(repr(key) for key in now if before.get(key) != now[key])
                raise ValueError(
                    "`CapturedLoop(scheduler=...)` must change learning rates alone, and fill their tensors in place, "
                    f"got a change of {names} in param group {k}, which the graph keeps as it was."
                )

    def _check_optimizer(self) -> None:
        for k, group in enumerate(self._optimizer.param_groups):
            for param in group["params"]:
                if param.device != self._device:
                    raise ValueError(
                        "`CapturedLoop(optimizer=...)` must have its parameters on the model's device, "
                        f"{self._device}, got one on {param.device} in param group {k}."
                    )
            if not group.get("capturable") and not isinstance(self._optimizer, SGD):
                got = f"capturable={group['capturable']!r}" if "capturable" in group else "an optimizer without it"
                raise ValueError(
                    f"`CapturedLoop(optimizer=...)` must be built with capturable=True on a GPU, got {got} in param "
                    f"group {k} of {type(self._optimizer).__name__}."
                )

    def _place_rates(self) -> None:
        """Make learning rates tensors on the device, the same ones in every run, where the optimizer can read them."""
        for k, group in enumerate(self._optimizer.param_groups):
            lr = group["lr"]
            if isinstance(lr, Tensor) and lr.device == self._device:
                self._rates[k] = lr
            elif group.get("capturable") or group.get("fused"):
                rate = self._rates.setdefault(k, torch.zeros((), device=self._device))
                group["lr"] = rate.fill_(float(lr))

    def _params(self) -> list[Tensor]:
        stepped = (param for group in self._optimizer.param_groups for param in group["params"])
        return list(dict.fromkeys((*self._model.parameters(), *stepped)))

    def _read_options(self) -> list[dict[str, Any]]:
        """Options of the param groups; tensors among them by their place."""
        return [
            {
                key: value.data_ptr() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key not in ("params", "initial_lr")
            }
            for group in self._optimizer.param_groups
        ]

    def _read_places(self) -> list[Any]:
        """Where all tensors are that a step reads and writes, which of them are trained, and the modules' modes."""
        states = (value for state in self._optimizer.state.values() for value in state.values())
        tensors = [*self._params(), *self._model.buffers(), *(value for value in states if isinstance(value, Tensor))]
        modes = [module.training for module in self._model.modules()]
        return [*((tensor.data_ptr(), tensor.requires_grad) for tensor in tensors), *modes]
