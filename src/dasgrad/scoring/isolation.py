"""Scoring must leave no trace: modes, random states and autograd settings are put back as they were."""

import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
_this_thread = threading.local()


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile`` and (distributed) data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU for a model with neither."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def training_batch_norms(model: nn.Module) -> list[str]:
    """Names of the BatchNorm modules that are in training mode."""
    kind = nn.modules.batchnorm._BatchNorm
    return [name or "(the model itself)" for name, m in model.named_modules() if isinstance(m, kind) and m.training]


def _refresh_flat_weights(module: nn.RNNBase) -> None:
    """Make a recurrent module's second list of its weights hold its parameters again.

    ``torch.func.functional_call`` swaps parameters and swaps them back without telling that list, which is
    left with tensors of a transform that has ended.
    """
    for name, param in list(module.named_parameters(recurse=False, remove_duplicate=False)):
        setattr(module, name, param)


@contextmanager
def _no_fast_attention() -> Iterator[None]:
    """Without the inference path of attention layers, which hides their parts and answers otherwise on padding."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _PlainAttention(TorchFunctionMode):
    """The same for one thread alone: attention layers take their plain path wherever functions are watched."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call through."""
        return func(*args, **(kwargs or {}))


@contextmanager
def beside_training() -> Iterator[None]:
    """Scoring in this thread leaves alone whatever threads share, for another one trains meanwhile.

    Random states, warning filters, the compiler's stance, the switch of attention's inference path and the cache of
    autocast belong to the whole process: to set them and put them back would undo what training did in between. The
    model scored must be one that nobody else uses.
    """
    _this_thread.beside = True
    try:
        yield
    finally:
        _this_thread.beside = False


def is_beside_training() -> bool:
    """Whether this thread scores while another one trains."""
    return getattr(_this_thread, "beside", False)


@contextmanager
def ignoring(message: str) -> Iterator[None]:
    """Without warnings that begin so; beside training they may come, for filters are those of all threads."""
    if is_beside_training():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate the model freely inside; mode of every module and all random states come back after."""
    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        stack.enter_context(_apart(model) if is_beside_training() else _undone(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
                if isinstance(module, nn.RNNBase):
                    _refresh_flat_weights(module)


@contextmanager
def _undone(model: nn.Module) -> Iterator[None]:
    """Set what the process shares as scoring needs it, and put it back after."""
    device = device_of(model)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_no_fast_attention())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def _apart(model: nn.Module) -> Iterator[None]:
    """What of it a thread can have for itself; one of its own starts without autocast."""
    with ExitStack() as stack:
        if any(isinstance(module, _ATTENTION) for module in model.modules()):
            stack.enter_context(_PlainAttention())
        yield
