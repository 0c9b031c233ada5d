"""Draws that are balanced over a whole run: each node of a segment tree keeps account of what its children are owed.

A draw goes down the tree, left with the share s that the left child has in its parent's probability. A coin would do,
but coins err: some examples come up too often, others too rarely, and such errors add up. Here an account decides. A
node's *credit* is the part of a draw that its left child is owed, at first a random number in [0, 1). Each visit adds
the share s; a credit that reaches 1 sends the draw left, which costs 1, and any other sends it right. So of any number
of visits in a row the left child gets its part, give or take less than one, and over all levels each example comes at
nearly regular intervals, as often as its probability says.

Nothing of that needs the shares to stay as they are. When scores change, credits stay, and what the old draws owe the
new ones pay: this is what reshuffled epochs have, that what one batch does wrong the others undo, kept through every
refresh. And each draw by itself is unbiased: a uniform credit plus given shares is uniform again, modulo 1, so that a
draw goes left with probability s exactly, at all nodes independently. As in reshuffled epochs that is not so given the
earlier draws, nor given a model that was trained on them.

Credits are integers, in units of 2⁻⁴⁴: nothing rounds, so that draws made ahead can be taken back to the last bit, and
are the same in C++ and in torch operations. They stay in plain memory, also for draws on a GPU: a walk goes through all
levels one after the other, which there takes hundreds of calls, more than the draws take here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dasgrad.sampling import ahead
from dasgrad.sampling.odds import BITS, WHOLE, Odds

MOST_AT_ONCE = 1 << 18
"""Draws whose shares add up to less than 2⁶³."""


class Credits:
    """Of all nodes that have children; random ones are made when they are first needed.

    Args:
        num_examples: leaves of the tree, which is in plain memory.
    """

    def __init__(self, num_examples: int) -> None:
        self._lengths: list[int] = []  # by the level of the children, the leaves' parents first
        while num_examples > 1:
            num_examples = (num_examples + 1) // 2
            self._lengths.append(num_examples)
        self._seed = 0
        self._credits: Tensor | None = None

    def restart(self, seed: int) -> None:
        """Begin anew as a function of the seed."""
        self._seed, self._credits = seed, None

    def draw(self, odds: Odds, num: int) -> tuple[Tensor, Tensor]:
        """So many examples, int64 ``[num]``, and their weights."""
        credits, compiled = self._existing(), odds.tree.compiled
        if compiled is not None:
            return compiled.balance_(None if odds.target is None else odds.target.compiled, odds.floor, credits, num)
        parts = [self._walk(credits, odds, min(MOST_AT_ONCE, num - done)) for done in range(0, num, MOST_AT_ONCE)]
        indices = torch.cat(parts)
        return indices, odds.weights_of(indices)

    def take_back(self, odds: Odds, indices: Tensor) -> None:
        """Let it be as if these had not been drawn, by odds that are still what they were."""
        credits, compiled = self._existing(), odds.tree.compiled
        if compiled is not None:
            target = None if odds.target is None else odds.target.compiled
            compiled.take_back_(target, odds.floor, credits, indices.contiguous())
            return
        for part in indices.split(MOST_AT_ONCE):
            for level, of_parents in enumerate(credits.split(self._lengths)):
                parents = part >> (level + 1)
                of_parents.index_add_(0, parents, odds.left_shares(level, parents), alpha=-1)
            credits.bitwise_and_(WHOLE - 1)

    def _walk(self, credits: Tensor, odds: Odds, num: int) -> Tensor:
        """All draws at once, level by level: where the k-th visit of a node goes is told by its credit and k alone."""
        positions = torch.zeros(num, dtype=torch.int64, device="cpu")
        visits = torch.arange(num, device="cpu")  # of the node, before this one
        for level, of_parents in reversed(list(enumerate(credits.split(self._lengths)))):
            shares = odds.left_shares(level, positions)
            credit = of_parents.index_select(0, positions).add_(visits * shares)
            went_left = credit >> BITS
            goes_left = (credit.add_(shares) >> BITS).sub_(went_left)
            of_parents.index_add_(0, positions, shares)
            visits = torch.where(goes_left == 1, went_left, visits - went_left)
            positions = positions.mul_(2).add_(1).sub_(goes_left)
        credits.bitwise_and_(WHOLE - 1)
        return positions

    def _existing(self) -> Tensor:
        if self._credits is None:
            generator = torch.Generator().manual_seed(self._seed)
            with torch.inference_mode(False):  # else draws while scoring would make credits that others cannot write to
                self._credits = torch.randint(WHOLE, (sum(self._lengths),), generator=generator, device="cpu")
        return self._credits

    def state_dict(self) -> dict[str, Any]:
        """The seed, and the credits once there are any."""
        return {"seed": self._seed, "credits": None if self._credits is None else self._credits.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        credits = state_dict["credits"]
        self._seed, self._credits = state_dict["seed"], None if credits is None else credits.to("cpu", copy=True)


class BalancedDraws:
    """Balanced draws of batch after batch, made for several at once as long as the odds stay as they are.

    What is drawn goes to a device, which is not waited for.

    Args:
        batch_size: B.
        num_examples: n.
        device: of draws and weights.
    """

    odds: Odds | None = None
    """What draws go by, in plain memory; to be changed between `put_back` and the next draw. None: nothing is drawn."""

    def __init__(self, batch_size: int, num_examples: int, device: torch.device) -> None:
        self._batch_size = batch_size
        self._device = device
        self._credits = Credits(num_examples)
        self._forget()

    def _forget(self) -> None:
        self._indices_KB = torch.empty(0, dtype=torch.int64, device="cpu")  # made ahead
        self._made: list[tuple[Tensor, Tensor]] = []  # those not handed out yet, on the device, the next one last
        self._num_to_make = 1  # batches, the next time

    def draw_batch(self) -> tuple[Tensor, Tensor]:
        """The next B draws and their weights."""
        if not self._made:
            self._indices_KB, weights_KB = self._draw(self._num_to_make)
            rows = (part.unbind() for part in self._to_device(self._indices_KB, weights_KB))
            self._made = list(zip(*rows, strict=True))[::-1]
            self._num_to_make = min(2 * self._num_to_make, max(1, ahead.AHEAD // self._batch_size))
        return self._made.pop()

    def draw_batches(self, num: int) -> tuple[Tensor, Tensor]:
        """What as many calls of `draw_batch` give, ``[num, B]``."""
        self.put_back()
        return self._to_device(*self._draw(num))

    def _draw(self, num_batches: int) -> tuple[Tensor, Tensor]:
        assert self.odds is not None
        indices, weights = self._credits.draw(self.odds, num_batches * self._batch_size)
        return indices.view(num_batches, -1), weights.view(num_batches, -1)

    def _to_device(self, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        if self._device.type == "cuda":  # else a copy may wait for all work before it
            indices, weights = indices.pin_memory(), weights.pin_memory()
        return indices.to(self._device, non_blocking=True), weights.to(self._device, non_blocking=True)

    def put_back(self) -> None:
        """Let it be as if nothing was made ahead."""
        if self._made:
            assert self.odds is not None
            self._credits.take_back(self.odds, self._indices_KB[-len(self._made) :].flatten())
        self._forget()

    def restart(self, seed: int) -> None:
        """Begin anew as a function of the seed."""
        self._credits.restart(seed)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """The state of the credits when nothing is made ahead."""
        self.put_back()
        return self._credits.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._credits.load_state_dict(state_dict)
        self._forget()
