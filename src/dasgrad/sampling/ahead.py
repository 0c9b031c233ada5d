"""Draws of an `AdaptiveSampler` made for several batches at once, so that a batch costs little more than a copy.

The arithmetic of 32 draws takes two microseconds, the calls around it take ten times as long. So uniforms are made, and
the draws they decide are looked up, for several batches in one call. Nobody can tell: the generator gives the same
numbers one batch at a time, and what was looked up is forgotten as soon as scores change, so that every draw is that of
the moment at which it is asked for.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasgrad.sampling import cumulative_sums

AHEAD = 16_384  # draws; with more, the calls around them are no longer worth saving

Lookup = Callable[..., tuple[Tensor, Tensor]]


class BatchDraws:
    """Draws of batch after batch, from uniforms that are spread over batch and pass as asked.

    On the CPU alone: elsewhere uniforms and draws are made batch by batch, unless several are asked for at once.

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
        self._searched = cumulative_sums.are_faster_on(device)
        self._max_ahead = max(1, AHEAD // batch_size) if device.type == "cpu" and not self._searched else 1
        self._uniforms: Any  # rows of B made ahead, in numpy, whose calls on a row cost half of torch's
        self._next: int  # the row of the next batch; those before it are used up
        self._end: int  # rows from the next one to this are looked up:
        self._looked_up: list[tuple[Tensor, Tensor]]  # the next one last
        self._num_ahead: int  # rows to look up the next time
        self._forget_uniforms()

    # --- drawing --------------------------------------------------------------------------------------

    def draw_batch(self, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """The next B draws and their weights.

        Args:
            look_up: called as ``look_up(u, stratified=...)`` gives draws and weights for a vector of uniforms, which it
                may use up; stratified, it moves each into its slice.
        """
        if self._searched:
            if self._cover is not None:
                return look_up(self._cover.take_over_all(1).view(-1), stratified=False)
            return look_up(self._rand((self._batch_size,)), stratified=self._stratified)
        if self._max_ahead == 1:
            return look_up(self._make_uniforms(1)[0], stratified=self._stratified)
        if self._next == len(self._uniforms):
            self._make_ahead()
        if self._next == self._end and self._num_ahead == 1:  # scores have just changed, and may after every batch
            u = torch.from_numpy(self._uniforms[self._next].copy())
            self._next, self._end, self._num_ahead = self._next + 1, self._end + 1, 2
            return look_up(u, stratified=self._stratified)
        if self._next == self._end:
            self._look_ahead(look_up)
        self._next += 1
        return self._looked_up.pop()

    def draw_batches(self, num: int, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """What as many calls of `draw_batch` give, ``[num, B]``; where that is faster, looked up in one call."""
        if not self._searched:
            batches = [self.draw_batch(look_up) for _ in range(num)]
            return torch.stack([indices for indices, _ in batches]), torch.stack([weights for _, weights in batches])
        if self._cover is not None:
            u = self._cover.take_over_all(num)
        else:  # batch by batch: a GPU's generator gives other numbers when it is asked for all of them at once
            u = torch.stack([self._rand((self._batch_size,)) for _ in range(num)])
            if self._stratified:
                slices = torch.arange(self._batch_size, dtype=torch.float64, device=self._device)
                u = u.add_(slices).div_(self._batch_size)
        indices, weights = look_up(u.flatten(), stratified=False)
        return indices.view_as(u), weights.view_as(u)

    def draw_others(self, num: int, look_up: Lookup) -> tuple[Tensor, Tensor]:
        """``num`` draws that are no batch, stratified by themselves."""
        self._put_back()
        return look_up(self._rand((num,)), stratified=self._stratified)

    def forget_lookups(self) -> None:
        """Look up anew what was not handed out yet, since scores have changed."""
        self._end = self._next
        self._num_ahead = 1

    def _look_ahead(self, look_up: Lookup) -> None:
        """Look up the next draws: for twice as many batches each time, until scores change."""
        u = torch.from_numpy(self._uniforms[self._next : self._next + self._num_ahead])
        slices = torch.arange(self._batch_size, device=self._device)
        placed = (u + slices) / self._batch_size if self._stratified else u.clone()
        indices, weights = look_up(placed.flatten(), stratified=False)
        rows = zip(indices.view_as(u).unbind(), weights.view_as(u).unbind(), strict=True)
        self._looked_up = list(rows)[::-1]
        self._end = self._next + len(u)
        self._num_ahead = min(2 * self._num_ahead, self._max_ahead)

    # --- uniforms -------------------------------------------------------------------------------------

    def _make_ahead(self) -> None:
        self._before = self._generator.get_state()
        self._uniforms = self._make_uniforms(self._max_ahead).numpy()
        self._next = self._end = 0

    def _make_uniforms(self, num_batches: int) -> Tensor:
        """Those of that many batches, or of fewer where a pass ends, ``[at most num_batches, B]``."""
        if self._cover is not None:
            return self._cover.take(min(num_batches, self._cover.num_left()))
        return self._rand((num_batches, self._batch_size))

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, device=self._device, generator=self._generator)

    def _put_back(self) -> None:
        """Bring generator and cover to where they stand when nothing is made ahead."""
        if self._next < len(self._uniforms):
            if self._cover is not None:
                self._cover.position -= len(self._uniforms) - self._next
            else:
                self._generator.set_state(self._before)
                self._rand((self._next, self._batch_size))
        self._forget_uniforms()

    def _forget_uniforms(self) -> None:
        self._uniforms = ()
        self._before = torch.empty(0)  # the generator's state before they were made
        self._next = 0
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

    All are entered at the same place, drawn anew for each order: over a pass the points are evenly spaced, so that an
    interval of length p is hit ⌊BKp⌋ or ⌈BKp⌉ times. Each single point is uniform.
    """

    def __init__(self, num_slices: int, num_batches: int, device: torch.device) -> None:
        self._shape = (num_slices, num_batches)
        self._generator = torch.Generator(device)
        self._device = device

    def restart(self, seed: int) -> None:
        """Begin a new order as a function of the seed."""
        self._generator.manual_seed(seed)
        self._shuffle()

    def _shuffle(self) -> None:
        self._before = self._generator.get_state()  # the order is a function of this, so it need not be saved
        self._order_KB = self._make_order()
        self._place = torch.rand((), dtype=torch.float64, device=self._device, generator=self._generator)
        self._points_KB: Tensor | None = None
        self.position = 0

    def _make_order(self) -> Tensor:
        if self._device.type != "cpu":
            keys = torch.rand(self._shape, device=self._device, generator=self._generator)
            return keys.argsort(dim=1).t().contiguous()
        # Five times as fast as sorting keys, which would cost more than all else that a large batch's draws do.
        seed = int(torch.randint(2**63 - 1, (), generator=self._generator))
        orders = np.tile(np.arange(self._shape[1]), (self._shape[0], 1))
        shuffled = np.random.Generator(np.random.PCG64(seed)).permuted(orders, axis=1)
        return torch.from_numpy(np.ascontiguousarray(shuffled.T))

    def num_left(self) -> int:
        """How many batches are left in this order, or in the next one where this is at its end."""
        return self._shape[1] - self.position % self._shape[1]

    def take(self, num: int) -> Tensor:
        """Points ``[num, B]`` of as many batches, at most those left, each within its slice stretched to [0, 1)."""
        if self.position == self._shape[1]:
            self._shuffle()
        end = self.position + num
        points = (self._order_KB[self.position : end] + self._place).div_(self._shape[1])
        self.position = end
        return points

    def take_over_all(self, num: int) -> Tensor:
        """Points ``[num, B]`` of as many batches, through as many orders, each within its slice of [0, 1].

        One operation an order: on a GPU its launch is what takes the time. Up to rounding the i-th of a batch is
        ``(i + take(1)[0, i]) / B``; it may round to 1.
        """
        num_slices, num_batches = self._shape
        parts = []
        while num > 0:
            if self.position == num_batches:
                self._shuffle()
            if self._points_KB is None:
                slices = torch.arange(num_slices, dtype=torch.float64, device=self._device)
                self._points_KB = (slices + (self._order_KB + self._place) / num_batches) / num_slices
            parts.append(self._points_KB[self.position : self.position + num])
            self.position += len(parts[-1])
            num -= len(parts[-1])
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state before the current order was made, and the position in it."""
        return {"generator": self._before.clone(), "position": self.position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._generator.set_state(state_dict["generator"].cpu())
        self._shuffle()
        self.position = state_dict["position"]
