"""Draws of an `AdaptiveSampler` made for several batches at once, so that a batch costs little more than a copy.

The arithmetic of 32 draws takes two microseconds, the calls around it take ten times as long; on a GPU they are kernels
to be launched, longer still. So uniforms are made, and the draws they decide are looked up, for several batches in one
call. Nobody can tell: the uniforms are those made one batch at a time, and what was looked up is forgotten as soon as
scores change, so that every draw is that of the moment at which it is asked for.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

AHEAD = 16_384  # draws; with more, the calls around them are no longer worth saving
GOLDEN_SECTION = (math.sqrt(5) - 1) / 2

Lookup = Callable[..., tuple[Tensor, Tensor]]


def come_at_once(device: torch.device) -> bool:
    """Whether a generator gives the same numbers for several batches at once as one by one; a GPU's does not."""
    return device.type == "cpu"


class BatchDraws:
    """Draws of batch after batch, from uniforms that are spread over batch and pass as asked; no device is waited for.

    Args:
        batch_size: B.
        num_batches: K, of a pass.
        stratified: as for `AdaptiveSampler`.
        device: of uniforms and draws.
    """

    def __init__(self, batch_size: int, num_batches: int, stratified: str, device: torch.device) -> None:
        self._batch_size = batch_size
        self._device = device
        self._generator = torch.Generator(device)
        self._stratified = stratified != "none"
        self._cover = Cover(batch_size, num_batches, device) if stratified == "pass" else None
        self._max_ahead = max(1, AHEAD // batch_size)
        self._at_once = come_at_once(device)
        self._uniforms: Any  # rows of B made ahead; on the CPU in numpy, whose calls on a row cost half of torch's
        self._next: int  # the row of the next batch; those before it are used up
        self._end: int  # rows from the next one to this are looked up:
        self._looked_up: list[tuple[Tensor, Tensor]]  # the next one last
        self._num_to_make: int  # rows, the next time
        self._num_to_look_up: int
        self._forget_uniforms()

    # --- drawing --------------------------------------------------------------------------------------

    def draw_batch(self, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """The next B draws and their weights.

        Args:
            look_up: called as ``look_up(u, stratified=...)`` gives draws and weights for a vector of uniforms, which it
                may use up; stratified, it moves each into its slice.
        """
        if self._next == len(self._uniforms):
            self._make_ahead()
        if self._next == self._end:
            if self._num_to_look_up == 1:  # scores have just changed, and may after every batch
                draws = look_up(self._copy(self._next), stratified=False)
                self._next, self._end, self._num_to_look_up = self._next + 1, self._end + 1, min(2, self._max_ahead)
                return draws
            self._look_ahead(look_up)
        self._next += 1
        return self._looked_up.pop()

    def draw_batches(self, num: int, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """What as many calls of `draw_batch` give, ``[num, B]``, looked up in one call."""
        parts: list[Tensor] = []
        while num > 0:
            if self._next == len(self._uniforms):
                self._make_ahead()
            parts.append(torch.as_tensor(self._uniforms[self._next : self._next + num]))
            self._next += len(parts[-1])
            num -= len(parts[-1])
        self.forget_lookups()
        return self._look_up_rows(torch.cat(parts), look_up)  # cat copies, even of one part

    def draw_others(self, num: int, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """``num`` draws that are no batch, stratified by themselves."""
        self._put_back()
        return look_up(self._rand((num,)), stratified=self._stratified)

    def forget_lookups(self) -> None:
        """Look up anew what was not handed out yet, since scores have changed."""
        self._end = self._next
        self._num_to_look_up = 1

    def _look_ahead(self, look_up: Lookup) -> None:
        """Look up the next draws: for twice as many batches each time, until scores change."""
        indices, weights = self._look_up_rows(self._copy(slice(self._next, self._next + self._num_to_look_up)), look_up)
        self._looked_up = list(zip(indices.unbind(), weights.unbind(), strict=True))[::-1]
        self._end = self._next + len(indices)
        self._num_to_look_up = min(2 * self._num_to_look_up, self._max_ahead)

    @staticmethod
    def _look_up_rows(u: Tensor, look_up: Lookup) -> tuple[Tensor, Tensor]:
        indices, weights = look_up(u.flatten(), stratified=False)
        return indices.view_as(u), weights.view_as(u)

    # --- uniforms -------------------------------------------------------------------------------------

    def _copy(self, rows: int | slice) -> Tensor:
        """Some of those made ahead, to be used up."""
        u = self._uniforms[rows]
        return u.clone() if isinstance(u, Tensor) else torch.from_numpy(u.copy())

    def _make_ahead(self) -> None:
        """Make the next ones: for twice as many batches each time, or up to the end of an order."""
        if self._cover is not None:
            u = self._cover.take_rest()
        else:
            self._before = self._generator.get_state()
            u = self._make(self._num_to_make)
            self._num_to_make = min(2 * self._num_to_make, self._max_ahead)
        self._uniforms = u.numpy() if self._device.type == "cpu" else u
        self._next = self._end = 0

    def _make(self, num_batches: int) -> Tensor:
        """Those of as many batches, ``[num_batches, B]``, where stratified each within its slice of [0, 1]."""
        if self._at_once:
            u = self._rand((num_batches, self._batch_size))
        else:
            u = torch.stack([self._rand((self._batch_size,)) for _ in range(num_batches)])
        return _into_slices_(u) if self._stratified else u

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, device=self._device, generator=self._generator)

    def _put_back(self) -> None:
        """Bring generator and cover to where they stand when nothing is made ahead."""
        num_left = len(self._uniforms) - self._next
        if self._cover is not None:
            self._cover.position -= num_left
        elif num_left > 0:
            self._generator.set_state(self._before)
            if self._next > 0:
                self._make(self._next)
        self._forget_uniforms()

    def _forget_uniforms(self) -> None:
        self._uniforms = ()
        self._before = torch.empty(0)  # the generator's state before they were made
        self._next = 0
        self._num_to_make = 1
        self.forget_lookups()

    # --- state ----------------------------------------------------------------------------------------

    def restart(self, seed: int) -> None:
        """Begin anew as a function of the seed."""
        self._generator.manual_seed(seed)
        if self._cover is not None:
            self._cover.restart(seed)
        self._forget_uniforms()

    def state_dict(self) -> dict[str, Any]:
        """The states of generator and cover."""
        self._put_back()
        cover = {} if self._cover is None else {"cover": self._cover.state_dict()}
        return {"generator": self._generator.get_state(), **cover}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._generator.set_state(state_dict["generator"].cpu())
        if self._cover is not None:
            self._cover.load_state_dict(state_dict["cover"])
        self._forget_uniforms()


class Cover:
    """For each of B slices, an order in which its K finer slices are visited, one a batch; then a new order.

    All are entered at the same place: over a pass the points are evenly spaced, so that an interval of length p is hit
    ⌊BKp⌋ or ⌈BKp⌉ times. The first pass takes a random place, and each further one moves on by the golden section,
    which spreads the places of any number of passes in a row: an interval too short to be hit in every pass is hit at
    nearly regular ones, as often as it should be, so that over several passes, too, what one does wrong others undo.
    Each single point is uniform.
    """

    def __init__(self, num_slices: int, num_batches: int, device: torch.device) -> None:
        self._shape = (num_slices, num_batches)
        self._generator = torch.Generator(device)
        self._device = device

    def restart(self, seed: int) -> None:
        """Begin a new order at a new place as a function of the seed."""
        self._generator.manual_seed(seed)
        self._place = torch.rand((), dtype=torch.float64, device=self._device, generator=self._generator)
        self._shuffle()

    def _shuffle(self) -> None:
        self._before = self._generator.get_state()  # the order is a function of this, so it need not be saved
        order_KB = make_order(*self._shape, self._generator)
        self._points_KB = _into_slices_((order_KB + self._place).div_(self._shape[1]))
        self.position = 0

    def take_rest(self) -> Tensor:
        """Points of the batches left in this order, or of the next one where this is at its end, not to be changed.

        ``[at least 1, B]``, each within its slice of [0, 1]. Who uses fewer than all of them moves ``position`` back.
        """
        num_batches = self._shape[1]
        if self.position == num_batches:
            self._place = (self._place + GOLDEN_SECTION).frac_()
            self._shuffle()
        points = self._points_KB[self.position :]
        self.position = num_batches
        return points

    def state_dict(self) -> dict[str, Any]:
        """The generator's state before the current order was made, its place, and the position in it."""
        return {"generator": self._before.clone(), "place": self._place.clone(), "position": self.position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._generator.set_state(state_dict["generator"].cpu())
        self._place = state_dict["place"].to(self._device)
        self._shuffle()
        self.position = state_dict["position"]


def make_order(num_slices: int, num_batches: int, generator: torch.Generator) -> Tensor:
    """For each slice a random order of 0 … K-1, ``[K, B]``."""
    if generator.device.type != "cpu":
        keys = torch.rand((num_slices, num_batches), device=generator.device, generator=generator)
        return keys.argsort(dim=1).t().contiguous()
    # Five times as fast as sorting keys, which would cost more than all else that a large batch's draws do.
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device="cpu"))
    orders = np.tile(np.arange(num_batches), (num_slices, 1))
    shuffled = np.random.Generator(np.random.PCG64(seed)).permuted(orders, axis=1)
    return torch.from_numpy(np.ascontiguousarray(shuffled.T))


def _into_slices_(u_KB: Tensor) -> Tensor:
    """Move the i-th uniform of each row into the i-th of B slices, in place; the last may round to 1."""
    num_slices = u_KB.shape[1]
    return u_KB.add_(torch.arange(num_slices, dtype=torch.float64, device=u_KB.device)).div_(num_slices)
