"""Scoring must leave no trace: modes, random states and autograd settings are put back as they were."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn


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


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate the model freely inside; mode of every module and all random states come back after."""
    modes = [(module, module.training) for module in model.modules()]
    device = device_of(model)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_no_fast_attention())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
                if isinstance(module, nn.RNNBase):
                    _refresh_flat_weights(module)
            random.setstate(python_state)
            np.random.set_state(numpy_state)
