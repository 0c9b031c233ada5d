"""Drawing an index in proportion to its mass, when masses keep changing.

The textbook way lays the masses end to end on a line, throws a dart at `u * total`, and looks up the segment
it hit: a cumulative sum and `torch.searchsorted`. That is fast until one mass changes, for then every
cumulative sum behind it changes too. A segment tree keeps the same line but stores sums over pairs, pairs of
pairs, and so on, like a knockout tournament. A changed mass touches only the sums above it, one a level, and
a dart finds its segment by going down from the root: left if it fell inside the left child's mass, otherwise
right, with the left mass taken off.

Two rules keep floating point honest. A sum is always recomputed from its two children and never corrected by
a difference, so a million updates leave the bits that a fresh build would. And the descent never enters a
child of mass zero, so neither rounding nor a dart at the very end of the line returns an index that must not
be drawn.

Layout: one float64 buffer, leaves first, root last. Level 0 holds the n leaves in their order, level k + 1
holds ceil(size of level k / 2) nodes, and every level but the root's is padded with a zero to an even length.
Node j of level k + 1 is the sum of nodes 2j and 2j + 1 of level k.

On a CPU the arithmetic is done in C++ where the package was built with it (`dasgrad.sampling.native`), and in torch
operations elsewhere: the same buffer, the same bits. On CUDA, draws come from a cumulative sum after all, until the
first update (`dasgrad.sampling.cumulative_sums`).
"""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dasgrad.sampling import cumulative_sums, native

__all__ = ["SegmentTree"]

_STATE_VERSION = 1
_INTEGER_DTYPES = {torch.int8, torch.int16, torch.int32, torch.int64}
_INTEGER_DTYPES |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}

# One lock for all trees, since calls are short, and since one lock can be held while a process forks: the child then
# finds it free, and no tree half written.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class SegmentTree:
    """Masses of n examples, to draw from in proportion and to change a few at a time.

    Index i is drawn with probability ``tree[i] / tree.total``; one of mass zero is never drawn. Building
    costs O(n), changing or drawing one example O(log n), memory about 16 bytes an example for any n. Sums are
    float64 whatever the dtype of `masses`, and the same `find(prefix)` gives the same index on every device.

    On CUDA, `sample` searches a cumulative sum, 8 bytes an example more, until the first `update` after all masses were
    given. Of the same uniforms, one that falls within rounding of the end of a segment may then draw the neighbour.

    A tree whose masses are all zero is valid and can be updated, but not drawn from. A call that raises
    leaves the tree as it was. `sample` and `find` never wait for a CUDA device; what checks values may. Threads
    may share a tree: calls wait for each other, and each sees the tree before or after an update, never between.

    Args:
        masses: 1-D tensor, array or sequence of n >= 1 real numbers, finite and non-negative, with a finite
            sum. Copied.
        device: where the tree lives; by default where `masses` are.

    Raises:
        TypeError: `masses` are not real numbers (bool and complex are not).
        ValueError: `masses` are not 1-D, empty, negative, NaN, infinite, or their sum overflows.

    Example:
        >>> tree = SegmentTree([1.0, 0.0, 2.0, 5.0])
        >>> tree
        SegmentTree(num_masses=4, total=8.0, device='cpu')
        >>> tree.find(torch.tensor([0.0, 0.5, 1.0, 2.5, 3.0, 8.0]))
        tensor([0, 0, 2, 2, 3, 3])
        >>> tree.update([3, 1], [0.0, 4.0])
        >>> tree.masses
        tensor([1., 4., 2., 0.], dtype=torch.float64)
        >>> indices, masses = tree.sample(1000, generator=torch.Generator().manual_seed(0))
        >>> bool((indices == 3).any()), torch.equal(masses, tree[indices])
        (False, True)
    """

    _sums: cumulative_sums.CumulativeSums | None

    def __init__(self, masses: Tensor | npt.ArrayLike, *, device: torch.device | str | None = None) -> None:
        argument = "SegmentTree(masses=...)"
        masses, largest = _as_masses(masses, argument)
        if len(masses) == 0:
            raise ValueError(f"`{argument}` must hold at least one mass, got 0.")
        self._allocate(len(masses), masses.device if device is None else torch.device(device))
        self._replace(masses, largest, argument, first=True)

    def __len__(self) -> int:
        return self._num_masses

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(num_masses={len(self)}, total={self._total!r}, device={str(self.device)!r})"

    def __reduce__(self) -> tuple[type[SegmentTree], tuple[Tensor]]:
        # Pickled by its leaves: the levels are views of one buffer, which pickle would tear apart.
        return type(self), (self.masses,)

    def __getitem__(self, index: slice | int | Tensor | npt.ArrayLike) -> Tensor:
        """Return a copy of the masses at `index`: an integer, a slice, or integers of any shape."""
        if isinstance(index, slice):
            selected = range(len(self))[index]
            backwards = selected.step < 0  # torch has no negative steps
            selected = selected[::-1] if backwards else selected
            masses = self._leaves[selected.start : selected.stop : selected.step]
            with LOCK:
                return masses.flip(0) if backwards else masses.clone()
        positions = _as_indices(index, -len(self), len(self), "SegmentTree[index]")
        with LOCK:
            return self._leaves.take(positions.to(self.device))

    def masses_of(self, found: Tensor) -> Tensor:
        """Return the masses at indices that `find` gave; unlike `tree[found]`, without waiting for a device."""
        with LOCK:
            return self._leaves.take(found)

    @property
    def device(self) -> torch.device:
        """Where the tree lives."""
        return self._device

    @property
    def has_mass(self) -> bool:
        """Whether any mass is positive, so that there is something to draw; no device is waited for."""
        return self._total > 0

    @property
    def settled(self) -> bool:
        """Whether all masses were given at once, with no `update` since: what cumulative sums are worth making for."""
        return self._settled

    @property
    def ends(self) -> Tensor:
        """Where each example's segment ends on the line [0, total], float64 of shape [n], made anew in O(n)."""
        with LOCK:
            return cumulative_sums.segment_ends(self._levels, len(self))

    @property
    def total(self) -> Tensor:
        """The sum of all masses, a 0-dim float64 tensor (a copy)."""
        with LOCK:
            return self._levels[-1][0].clone()

    @property
    def known_total(self) -> float:
        """The same as a number; no device is waited for."""
        return self._total

    @property
    def levels(self) -> tuple[Tensor, ...]:
        """The sums themselves, level by level, the leaves first and the root last; not to be written to."""
        return self._levels

    @property
    def masses(self) -> Tensor:
        """All masses, float64 of shape [n] (a copy)."""
        with LOCK:
            return self._leaves.clone()

    def rebuild(self, masses: Tensor | npt.ArrayLike) -> None:
        """Replace all n masses, in O(n), under the constructor's conditions."""
        argument = "SegmentTree.rebuild(masses=...)"
        self._replace(*_as_masses(masses, argument), argument)

    def update(self, indices: Tensor | npt.ArrayLike, masses: Tensor | npt.ArrayLike) -> None:
        """Set the masses at `indices`, in O(log n) each. Of an index given twice, the last mass counts.

        Args:
            indices: 1-D integers in [0, n). Negative ones are refused, being mostly sentinels.
            masses: as many masses, under the constructor's conditions.

        Raises:
            IndexError: an index is not in [0, n).
            TypeError: `indices` are not integers, or `masses` not real numbers.
            ValueError: lengths differ, a mass is negative, NaN or infinite, or the new sum overflows.
        """
        with LOCK:
            total = None if self.compiled is None else self.compiled.update(indices, masses)
            if total is None:  # anything but tensors in plain memory, or an error to be named
                total = self._update(indices, masses)
            if total < math.inf:
                self._total, self._settled, self._sums = total, False, None
                return
        raise ValueError(
            "`SegmentTree.update(masses=...)` must leave a finite sum of all masses, got one that overflows."
        )

    def _update(self, indices: Tensor | npt.ArrayLike, masses: Tensor | npt.ArrayLike) -> float:
        """Check what is given, write it, and return the total; if that is infinite, the tree is as it was."""
        if self.compiled is not None:  # what is checked must be what C++ gets, even if another thread writes meanwhile
            indices, masses = _own(indices), _own(masses)
        positions = _as_indices(indices, 0, len(self), "SegmentTree.update(indices=...)", vector=True)
        argument = "SegmentTree.update(masses=...)"
        masses, _ = _as_masses(masses, argument)
        if len(positions) != len(masses):
            raise ValueError(f"`{argument}` must be as many as indices, {len(positions)}, got {len(masses)}.")
        if len(positions) == 0:
            return self._total
        positions, masses = positions.to(self.device), masses.to(self.device)
        if self.compiled is not None:
            total = self.compiled.update(positions.contiguous(), masses.contiguous())
            assert total is not None
            return total
        # Every duplicate writes what the last of them brings, so the order of writing does not matter.
        positions, order = positions.sort(stable=True)
        last = torch.searchsorted(positions, positions, right=True).sub_(1)
        masses = masses[order[last]]
        previous = self._leaves[positions]
        total = self._write(positions, masses)
        if math.isinf(total):
            self._write(positions, previous)
        return total

    def sample(self, num: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `num` indices with replacement, each in proportion to its mass, in O(log n) each.

        Args:
            num: how many, 0 or more.
            generator: where the uniforms come from, on the tree's device. Required: torch's global generator
                is not ours to advance.

        Returns:
            The indices drawn (int64) and their masses (float64), both of shape [num].

        Raises:
            TypeError: `num` is not an integer, or `generator` no `torch.Generator`.
            ValueError: `num` is negative, `generator` lives elsewhere, or all masses are zero.
        """
        if type(num) is not int and (isinstance(num, bool) or not hasattr(num, "__index__")):
            raise TypeError(f"`SegmentTree.sample(num=...)` must be an integer, got {num!r}.")
        num = operator.index(num)
        if num < 0:
            raise ValueError(f"`SegmentTree.sample(num=...)` must be at least 0, got {num}.")
        argument = "SegmentTree.sample(generator=...)"
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"`{argument}` must be a torch.Generator, got {type(generator).__name__}.")
        with LOCK:
            if not self._total > 0:
                self._require_mass("sample")
            try:
                uniforms = torch.rand(num, generator=generator, dtype=torch.float64, device=self._device)
            except RuntimeError:
                if generator.device.type != self._device.type:
                    where = f"on {self.device}, got one on {generator.device}"
                    raise ValueError(f"`{argument}` must be {where}.") from None
                raise
            if self.compiled is not None:
                return self.compiled.sample_(uniforms, self._total)
            uniforms.mul_(self._total)
            if self._settled and cumulative_sums.are_faster_on(self._device):
                if self._sums is None:
                    self._sums = cumulative_sums.CumulativeSums(self.ends)
                indices = self._sums.find(uniforms)
            else:
                indices = self._descend_(uniforms)
            return indices, self._leaves.index_select(0, indices)

    def find(self, prefix: float | Tensor | npt.ArrayLike) -> Tensor:
        """Return the smallest index whose cumulative mass, its own included, exceeds `prefix`.

        This is where a dart at `prefix` lands. Where sums round, the segment's ends round with them; the
        index is one of positive mass all the same, also at `prefix` equal to the total.

        Args:
            prefix: numbers in [0, total], of any shape. Those on CUDA are not checked, since that would wait
                for the device: there NaN and negatives count as 0, and what exceeds the total as the total.

        Returns:
            Indices, int64, in the shape of `prefix` and on the tree's device.

        Raises:
            TypeError: `prefix` is not made of real numbers.
            ValueError: `prefix` is not in [0, total], or all masses are zero.
        """
        argument = "SegmentTree.find(prefix=...)"
        points = _as_tensor(prefix, torch.float64, argument)
        with LOCK:
            return self._find(points, argument)

    def _find(self, points: Tensor, argument: str) -> Tensor:
        self._require_mass("find")
        if self.device.type == "cpu" or points.device.type == "cpu":
            message = f"`{argument}` must be in [0, {self._total!r}]"
            _check_within(points, 0, self._total, ValueError, message)
        else:
            points = points.fmax(points.new_zeros(()))  # unlike clamp, fmax drops NaN
        if self.compiled is not None:
            return self.compiled.find(points.to(self.device)).reshape(points.shape)
        remainders = points.to(self.device, copy=True).reshape(-1)
        return self._descend_(remainders).reshape(points.shape)

    def to(self, device: torch.device | str) -> SegmentTree:
        """Return the same tree on `device`: itself if it is there already, else a copy, equal bit for bit."""
        leaves = self._leaves.to(device)
        return self if leaves is self._leaves else type(self)(leaves)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: its version, a copy of the masses, from which all sums follow, and `settled`."""
        with LOCK:
            return {"version": _STATE_VERSION, "masses": self.masses, "settled": self._settled}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the masses of a tree of the same length, from any device.

        Raises:
            TypeError: `state_dict` is no mapping, or its masses are no float64 tensor.
            ValueError: its version is unknown, or its masses are not n valid masses.
        """
        argument = "SegmentTree.load_state_dict(state_dict=...)"
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"`{argument}` must be a mapping, got {type(state_dict).__name__}.")
        version, masses = state_dict.get("version"), state_dict.get("masses")
        if version != _STATE_VERSION:
            raise ValueError(f"`{argument}` must have version {_STATE_VERSION}, got {version!r}.")
        if not isinstance(masses, Tensor) or masses.dtype != torch.float64:
            found = getattr(masses, "dtype", type(masses).__name__)
            raise TypeError(f"`{argument}` must have 'masses', a tensor of torch.float64, got {found}.")
        with LOCK:
            self._replace(*_as_masses(masses, argument), argument)
            self._settled = bool(state_dict.get("settled", True))  # absent from older states

    def _allocate(self, num_masses: int, device: torch.device) -> None:
        """Lay out a tree of unknown masses, as the module's docstring says, and keep views of its levels."""
        self._num_masses = num_masses
        sizes = [num_masses]
        while sizes[-1] > 1:
            sizes.append((sizes[-1] + 1) // 2)
        lengths = [size + size % 2 for size in sizes[:-1]] + [1]
        with torch.inference_mode(False):  # else a tree made while scoring could not be updated afterwards
            nodes = torch.empty(sum(lengths), dtype=torch.float64, device=device)
            self.compiled = native.bind(nodes, num_masses)  # before the first write
            self._levels = torch.split(nodes, lengths)
            self._leaves = self._levels[0][:num_masses]
            self._children = [(level[0::2], level[1::2]) for level in self._levels[:-1]]
            for size, level in zip(sizes, self._levels, strict=True):
                level[size:] = 0.0  # the padding, which nothing ever writes to again
        self._device = nodes.device
        self._total, self._settled = 0.0, True
        self._sums = None

    def _replace(self, masses: Tensor, largest: float, argument: str, *, first: bool = False) -> None:
        """Write masses that were checked, or leave the tree as it was if their number or sum is wrong."""
        if len(masses) != len(self):
            raise ValueError(f"`{argument}` must hold {len(self)} masses, got {len(masses)}.")
        # Only masses this large can overflow; for all others no copy is needed to go back to.
        may_overflow = largest > 1e307 / len(self) and not first
        with LOCK:
            previous = self.masses if may_overflow else None
            total = self._fill(masses)
            if math.isinf(total):
                if previous is not None:
                    self._fill(previous)
                raise ValueError(f"`{argument}` must have a finite sum, got one that overflows.")
            self._total, self._settled, self._sums = total, True, None

    def _write(self, positions: Tensor, masses: Tensor) -> float:
        """Write leaves, recompute the sums above them, and return the total."""
        self._leaves.index_copy_(0, positions, masses)
        if len(positions) * len(self._levels) > len(self):
            return self._sum_levels()  # cheaper than climbing from so many leaves, to the same bits
        for (left, right), parents in zip(self._children, self._levels[1:], strict=True):
            positions = positions >> 1
            sums = left.index_select(0, positions).add_(right.index_select(0, positions))
            parents.index_copy_(0, positions, sums)
        return float(self._levels[-1].item())  # brought to the host, so that no draw has to

    def _fill(self, masses: Tensor) -> float:
        """Write all leaves and sums, and return the total."""
        if self.compiled is not None:
            return self.compiled.fill(masses)
        self._leaves.copy_(masses)
        return self._sum_levels()

    def _sum_levels(self) -> float:
        """Recompute all sums from the leaves, and return the total."""
        for (left, right), parents in zip(self._children, self._levels[1:], strict=True):
            torch.add(left, right, out=parents[: len(left)])
        return float(self._levels[-1].item())

    def _require_mass(self, method: str) -> None:
        if not self.has_mass:
            raise ValueError(f"`SegmentTree.{method}` needs a positive mass, got a tree of zeros only.")

    def _descend_(self, remainders: Tensor) -> Tensor:
        """Return the leaf under each prefix of a 1-D tensor, which is used up."""
        positions = torch.zeros_like(remainders, dtype=torch.int64)
        for left, right in reversed(self._children):
            left_mass = left.index_select(0, positions)
            # The second condition reads `right > 0`: masses are not negative.
            go_right = (remainders >= left_mass).logical_and_(right.index_select(0, positions))
            remainders.sub_(left_mass.mul_(go_right))
            positions = torch.add(go_right, positions, alpha=2)
        return positions


def _as_tensor(values: Any, dtype: torch.dtype, argument: str, *, vector: bool = False) -> Tensor:
    """Return real numbers as float64, or integers as int64; anything else is refused."""
    real = dtype == torch.float64
    if isinstance(values, Tensor):
        accepted = values.dtype in _INTEGER_DTYPES or (real and values.dtype.is_floating_point)
    else:
        try:
            values = np.asarray(values)
        except (TypeError, ValueError) as error:  # ragged, or on a device numpy cannot read
            raise TypeError(f"`{argument}` must be an array of numbers: {error}") from error
        # Of `[]` numpy makes floats, which do as integers too.
        accepted = values.dtype.kind in "iu" or (values.dtype.kind == "f" and (real or values.size == 0))
    if not accepted:
        kind = "real numbers" if real else "integers"
        raise TypeError(f"`{argument}` must be {kind}, got dtype {values.dtype}.")
    if vector and values.ndim != 1:
        raise ValueError(f"`{argument}` must be 1-D, got shape {tuple(values.shape)}.")
    if isinstance(values, Tensor):
        if values.dtype is dtype and not values.requires_grad:
            return values.resolve_neg()
        return values.detach().resolve_neg().to(dtype)
    return torch.from_numpy(values.astype(np.float64 if real else np.int64))


def _own(values: Any) -> Any:
    """A copy of a tensor, as it lies in memory; anything else is copied when it is made one."""
    return values.detach().clone().as_subclass(Tensor) if isinstance(values, Tensor) else values


def _as_masses(values: Any, argument: str) -> tuple[Tensor, float]:
    """Return masses as float64, and a bound on the largest."""
    masses = _as_tensor(values, torch.float64, argument, vector=True)
    message = f"`{argument}` must be finite and non-negative"
    largest = _check_within(masses, 0, sys.float_info.max, ValueError, message)
    return masses, largest


def _as_indices(values: Any, low: int, high: int, argument: str, *, vector: bool = False) -> Tensor:
    indices = _as_tensor(values, torch.int64, argument, vector=vector)
    _check_within(indices, low, high - 1, IndexError, f"`{argument}` must be in [{low}, {high})")
    return indices


def _check_within(values: Tensor, low: float, high: float, error: type[Exception], message: str) -> float:
    """Raise for the first value not in [low, high]; NaN is not. Return the largest or, if not sought, `high`."""
    if values.numel() == 0 or native.within(values, low, high):
        return high
    smallest, largest = (bound.item() for bound in values.aminmax())
    if not (smallest >= low and largest <= high):
        values = values.flatten()
        position = int(((values >= low) & (values <= high)).logical_not_().nonzero()[0].item())
        raise error(f"{message}, got {values[position].item()!r} at index {position}.")
    return largest
