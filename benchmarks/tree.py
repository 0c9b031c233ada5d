"""How fast is the segment tree? Drawing and updating 256 of n examples, against the trees of others.

Peers are those that import: ``torch.multinomial`` always, tianshou's tree (compiled by numba), cpprb's prioritized
buffer and TorchRL's tree where they are installed (``pip install 'dasgrad[bench]'``). Each does what ours does: draw
256 indices in proportion to float64 masses, from fresh uniforms, and say their masses; or take 256 new masses, some
indices twice. All are timed in turns within one process on one thread, and the median of all calls counts, in
microseconds: once in turns of 1000 calls, where each finds its own data in the caches, and once in turns of 100, where
it finds more of the others'. Every peer's row is there; the fastest is the one to beat.

The rest is no race: sums after ten million updates against those of a fresh build (``ours`` is how many of the nodes
differ, which must be 0), and a tree of 10⁸ leaves against a cumulative sum with ``torch.searchsorted``, in
milliseconds, and in bytes a leaf at the peak of a fresh process (Linux only). Building is there twice, in new memory,
where page faults count, and in memory that was there before.
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dasgrad
from dasgrad.sampling import native

SIZES, NUM = (60_000, 10**6), 256
CALLS, STREAKS, NUM_BATCHES = 8000, (100, 1000), 1000
DRIFT_UPDATES, DRIFT_SIZE = 10**7, 10**6
HUGE = 10**8

# The masses are one number seen 10⁸ times, so that the memory is the tree's alone.
PEAK_MEMORY = f"""
import re, torch, dasgrad
def peak():  # of this program; getrusage counts what forked it, too
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
dasgrad.SegmentTree(torch.ones(1000)).sample(1, generator=torch.Generator())
before = peak()
tree = dasgrad.SegmentTree(torch.ones(1, dtype=torch.float64).expand({HUGE}))
indices, masses = tree.sample({NUM}, generator=torch.Generator().manual_seed(0))
tree.update(indices, masses / 2)
print(peak() - before)
"""

Call = Callable[[int], object]


class Ours:
    """`dasgrad.SegmentTree`."""

    name = "dasgrad"

    def __init__(self, masses: torch.Tensor) -> None:
        self.tree = dasgrad.SegmentTree(masses)
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, turn: int) -> object:
        """256 indices and their masses."""
        return self.tree.sample(NUM, generator=self.generator)

    def updating(self, indices: torch.Tensor, masses: torch.Tensor) -> Call | None:
        """A call that writes the given batches in turn."""
        rows, values = list(indices), list(masses)
        return lambda turn: self.tree.update(rows[turn % NUM_BATCHES], values[turn % NUM_BATCHES])


class Multinomial:
    """`torch.multinomial` on float64 masses, which keeps no tree: an update would be an assignment."""

    name = "torch.multinomial"

    def __init__(self, masses: torch.Tensor) -> None:
        self.masses = masses.clone()
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, turn: int) -> object:
        """256 indices and their masses."""
        indices = torch.multinomial(self.masses, NUM, replacement=True, generator=self.generator)
        return indices, self.masses[indices]

    def updating(self, indices: torch.Tensor, masses: torch.Tensor) -> Call | None:
        """Nothing to compare."""
        return None


class Tianshou:
    """tianshou's tree, a numpy heap walked level by level in numba."""

    name = "tianshou"

    def __init__(self, masses: torch.Tensor) -> None:
        from tianshou.data import SegmentTree

        self.tree = SegmentTree(len(masses))
        self.tree[np.arange(len(masses))] = masses.numpy()
        self.generator = np.random.default_rng(0)

    def sample(self, turn: int) -> object:
        """256 indices and their masses."""
        indices = self.tree.get_prefix_sum_idx(self.generator.random(NUM) * self.tree.reduce())
        return indices, self.tree[indices]

    def updating(self, indices: torch.Tensor, masses: torch.Tensor) -> Call | None:
        """A call that writes the given batches in turn."""
        rows, values = list(indices.numpy()), list(masses.numpy())
        return lambda turn: self.tree.__setitem__(rows[turn % NUM_BATCHES], values[turn % NUM_BATCHES])


class Cpprb:
    """cpprb's prioritized buffer over one integer column; its tree cannot be had alone."""

    name = "cpprb"

    def __init__(self, masses: torch.Tensor) -> None:
        from cpprb import PrioritizedReplayBuffer

        self.buffer = PrioritizedReplayBuffer(len(masses), {"index": {"dtype": np.int64}}, alpha=1.0, eps=0.0)
        self.buffer.add(index=np.arange(len(masses)), priorities=masses.numpy())

    def sample(self, turn: int) -> object:
        """256 indices and their weights."""
        return self.buffer.sample(NUM, beta=1.0)

    def updating(self, indices: torch.Tensor, masses: torch.Tensor) -> Call | None:
        """A call that writes the given batches in turn."""
        rows, values = list(indices.numpy()), list(masses.numpy())
        return lambda turn: self.buffer.update_priorities(rows[turn % NUM_BATCHES], values[turn % NUM_BATCHES])


class TorchRL:
    """TorchRL's C++ tree; its wheels import only beside the torch they were built for."""

    name = "torchrl"

    def __init__(self, masses: torch.Tensor) -> None:
        from torchrl._torchrl import SumSegmentTreeFp64

        self.tree, self.size = SumSegmentTreeFp64(len(masses)), len(masses)
        self.tree[torch.arange(len(masses))] = masses
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, turn: int) -> object:
        """256 indices and their masses."""
        total = self.tree.query(0, self.size)
        uniforms = torch.rand(NUM, generator=self.generator, dtype=torch.float64)
        indices = self.tree.scan_lower_bound(uniforms * total)
        return indices, self.tree[indices]

    def updating(self, indices: torch.Tensor, masses: torch.Tensor) -> Call | None:
        """A call that writes the given batches in turn."""
        rows, values = list(indices), list(masses)
        return lambda turn: self.tree.__setitem__(rows[turn % NUM_BATCHES], values[turn % NUM_BATCHES])


def importable(masses: torch.Tensor) -> list[Any]:
    """Every peer that is installed and loads, holding the masses."""
    found: list[Any] = []
    for peer in (Multinomial, Tianshou, Cpprb, TorchRL):
        try:
            found.append(peer(masses))
        except ImportError as error:
            print(f"{peer.name} left out: {str(error).splitlines()[0][:100]}", flush=True)
    return found


def interleaved(calls: dict[str, Call], turns: int, streak: int) -> dict[str, float]:
    """Median seconds of each call, in turns of `streak` calls each, after one turn to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            for repeat in range(streak):
                start = time.perf_counter()
                call(turn * streak + repeat)
                elapsed = time.perf_counter() - start
                if turn > 0:
                    seconds[name].append(elapsed)
    return {name: float(np.median(measured)) for name, measured in seconds.items()}


def row(metric: str, ours: float, peer: float, peer_name: str) -> dict[str, Any]:
    """One line of the result."""
    ratio = ours / peer if peer else float(ours != 0)
    return {"metric": metric, "ours": ours, "peer": peer, "peer_name": peer_name, "ratio": ratio}


def race(size: int) -> list[dict[str, Any]]:
    """Drawing and updating, ours against every peer and so against the fastest."""
    generator = torch.Generator().manual_seed(size)
    masses = torch.rand(size, generator=generator, dtype=torch.float64)
    indices = torch.randint(size, (NUM_BATCHES, NUM), generator=generator)
    indices[:, -1] = indices[:, 0]
    new_masses = torch.rand((NUM_BATCHES, NUM), generator=generator, dtype=torch.float64)
    ours = Ours(masses)
    peers = importable(masses)
    rows = []
    for verb, streak in itertools.product(("sample", "update"), STREAKS):
        calls = {}
        for tree in (ours, *peers):
            call = tree.sample if verb == "sample" else tree.updating(indices, new_masses)
            if call is not None:
                calls[tree.name] = call
        medians = interleaved(calls, CALLS // streak, streak)
        mine = medians.pop(ours.name)
        for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
            metric = f"{verb} {NUM} of {size:,}, turns of {streak}, µs"
            rows.append(row(metric, mine * 1e6, seconds * 1e6, name))
    return rows


def drift() -> dict[str, Any]:
    """How many nodes differ from a fresh build after ten million updates over thirty orders of magnitude."""
    generator = torch.Generator().manual_seed(1)
    tree = dasgrad.SegmentTree(torch.zeros(DRIFT_SIZE))
    for _ in range(DRIFT_UPDATES // NUM + 1):
        indices = torch.randint(DRIFT_SIZE, (NUM,), generator=generator)
        tree.update(indices, 10.0 ** (torch.rand(NUM, generator=generator, dtype=torch.float64) * 30 - 15))
    fresh = dasgrad.SegmentTree(tree.masses)
    different = sum(int((a != b).sum()) for a, b in zip(tree._levels, fresh._levels, strict=True))
    return row(f"nodes that differ after {DRIFT_UPDATES:,} updates", different, 0.0, "a fresh build")


def huge() -> list[dict[str, Any]]:
    """A tree of 10⁸ equal leaves against a cumulative sum, which one update makes anew."""
    masses = torch.ones(HUGE, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    indices, values = torch.randint(HUGE, (NUM,), generator=generator), torch.rand(NUM, dtype=torch.float64)
    builders: dict[str, Call] = {"ours": lambda _: dasgrad.SegmentTree(masses), "peer": lambda _: masses.cumsum(0)}
    build = interleaved(builders, 9, 1)
    tree, cumulative = dasgrad.SegmentTree(masses), masses.cumsum(0)
    rebuilders: dict[str, Call] = {
        "ours": lambda _: tree.rebuild(masses),
        "peer": lambda _: torch.cumsum(masses, 0, out=cumulative),
    }
    rebuild = interleaved(rebuilders, 9, 1)
    missed = int((tree.find(indices.double() + 0.5) != indices).sum())

    def search(turn: int) -> object:
        uniforms = torch.rand(NUM, generator=generator, dtype=torch.float64) * cumulative[-1]
        found = torch.searchsorted(cumulative, uniforms, right=True)
        return found, masses[found]

    def rewrite(turn: int) -> None:
        masses[indices] = values
        torch.cumsum(masses, 0, out=cumulative)

    sample = interleaved({"ours": lambda turn: tree.sample(NUM, generator=generator), "peer": search}, 5, 20)
    update = interleaved({"ours": lambda turn: tree.update(indices, values)}, 5, 20)
    update |= interleaved({"peer": rewrite}, 3, 1)
    peer = "cumsum + searchsorted"
    return [
        row(f"of {NUM} prefixes among {HUGE:,} equal masses, found elsewhere", missed, 0.0, "arithmetic"),
        row(f"build {HUGE:,} in new memory, ms", build["ours"] * 1e3, build["peer"] * 1e3, peer),
        row(f"rebuild {HUGE:,} in place, ms", rebuild["ours"] * 1e3, rebuild["peer"] * 1e3, peer),
        row(f"sample {NUM} of {HUGE:,}, ms", sample["ours"] * 1e3, sample["peer"] * 1e3, peer),
        row(f"update {NUM} of {HUGE:,}, ms", update["ours"] * 1e3, update["peer"] * 1e3, peer),
    ]


def peak_memory() -> dict[str, Any]:
    """How much more memory a fresh process has had at most, after it built, sampled and updated 10⁸ equal leaves."""
    result = subprocess.run([sys.executable, "-c", PEAK_MEMORY], capture_output=True, text=True, check=True)
    peer = "masses and their cumulative sum"
    return row(f"peak memory of {HUGE:,}, bytes a leaf", int(result.stdout) / HUGE, 16.0, peer)


def run() -> list[dict[str, Any]]:
    """Rows of every size and peer, of the drift, and of the largest tree."""
    torch.set_num_threads(1)
    print(f"native core: {native.available()}, torch {torch.__version__}", flush=True)
    rows = [line for size in SIZES for line in race(size)]
    rows = [*rows, drift(), *huge()]
    return [*rows, peak_memory()] if sys.platform == "linux" else rows
