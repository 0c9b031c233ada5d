"""The global generators of torch, numpy and Python, together: seeded for a worker, saved and put back for a run."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def mix(seed: int, *path: int) -> int:
    """A seed of 64 bits that depends on ``seed`` and on every number of the path."""
    return int(np.random.SeedSequence(seed, spawn_key=path).generate_state(1, np.uint64)[0])


def seed_all(seed: int, *path: int) -> None:
    """Start the global generators of torch (CPU), numpy and Python from a seed and a path.

    ``torch.manual_seed`` would seed accelerators, too, at a hundred times the cost, for every batch of a worker.
    """
    words = np.random.SeedSequence(seed, spawn_key=path).generate_state(3, np.uint64)
    torch.default_generator.manual_seed(int(words[0]))
    np.random.seed([int(words[1]) & 0xFFFFFFFF, int(words[1]) >> 32])
    random.seed(int(words[2]))


def get_states() -> dict[str, Any]:
    """The states of all global generators, as tensors and plain values; CUDA's where CUDA is in use."""
    numpy_state = dict(np.random.get_state(legacy=False))
    inner = dict(numpy_state["state"])
    if isinstance(inner.get("key"), np.ndarray):
        inner["key"] = inner["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": {**numpy_state, "state": inner},
        "python": random.getstate(),
    }


def are_equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two states of `get_states` are the same."""
    if len(a["cuda"]) != len(b["cuda"]):
        return False
    pairs = [(a["torch"], b["torch"]), *zip(a["cuda"], b["cuda"], strict=True)]
    plain = all(a[name] == b[name] for name in ("numpy", "python"))
    return plain and all(torch.equal(x, y) for x, y in pairs)


def set_states(states: Mapping[str, Any]) -> None:
    """Put `get_states` back; states of CUDA devices that this machine lacks are left out."""
    torch.set_rng_state(states["torch"])
    for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
        torch.cuda.set_rng_state(state, device)
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
