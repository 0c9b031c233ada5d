"""Where a pass is: batches handed out, draws on their way, and draws that are to be handed out again."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Draws = tuple[Tensor, Tensor]
"""Indices and weights of a batch ``[B]``, or of several ``[k, B]``."""


class PassPosition:
    """The pass of a loader: how far it is, and the draws that were made and are not handed out yet.

    Attributes:
        position: batches of this pass that were handed out.
        num_batches: batches that were drawn since the start, over all passes.
        resumed: whether the next loop goes on from here, and does not begin a new pass.
    """

    def __init__(self) -> None:
        self.position = 0
        self.num_batches = 0
        self.resumed = False
        self._in_flight: deque[tuple[Tensor, Tensor, bool]] = deque()
        self._again: deque[Draws] = deque()

    def open(self) -> None:
        """A loop begins: where it does not go on from here, with a pass of its own."""
        if not self.resumed:
            self.position = 0
            self._again.clear()
        self._in_flight.clear()
        self.resumed = False

    def close(self) -> None:
        """The pass is over."""
        self.position = 0

    # --- one batch at a time --------------------------------------------------------------------------

    @property
    def next_indices(self) -> Tensor | None:
        """The examples of the first draws that are to be handed out again, if there are any."""
        return self._again[0][0] if self._again else None

    def repeat(self) -> Draws | None:
        """Draws that are to be handed out again, if there are any."""
        return self._again.popleft() if self._again else None

    def enter(self, draws: Draws, even: bool) -> None:
        """A batch was drawn; ``even`` where its weights are known to be 1."""
        self._in_flight.append((*draws, even))
        self.num_batches += 1

    @property
    def oldest(self) -> tuple[Tensor, Tensor, bool]:
        """What comes back next, for batches come in the order in which they were drawn."""
        return self._in_flight[0]

    def hand_out(self) -> None:
        """The oldest is in flight no more."""
        self._in_flight.popleft()
        self.position += 1

    def put_back(self) -> None:
        """All that is in flight is to be handed out again, by a loop that goes on from here."""
        self._again.extendleft((indices, weights) for indices, weights, _ in reversed(self._in_flight))
        self.num_batches -= len(self._in_flight)
        self._in_flight.clear()
        self.resumed = True

    # --- several batches at once ----------------------------------------------------------------------

    def repeat_several(self, most: int) -> Draws | None:
        """As `repeat`, stacked."""
        draws = [self._again.popleft() for _ in range(min(most, len(self._again)))]
        if not draws:
            return None
        indices, weights = (torch.stack(parts) for parts in zip(*draws, strict=True))
        return indices, weights

    def skip(self, number: int, length: int) -> None:
        """So many batches of a pass of some length were drawn and handed out at once."""
        self.position = (self.position + number) % length
        self.num_batches += number

    def take_back(self, indices: Tensor, weights: Tensor, length: int) -> None:
        """The last of these, ``[k, B]``, are to be handed out again."""
        self._again.extendleft(reversed(list(zip(indices, weights, strict=True))))
        self.skip(-len(indices), length)

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it; draws in flight are handed out again by the loop that goes on."""
        draws = [*((indices, weights) for indices, weights, _ in self._in_flight), *self._again]
        return {
            "position": self.position,
            "num_batches": self.num_batches - len(self._in_flight),
            "indices_in_flight": [indices.clone() for indices, _ in draws],
            "weights_in_flight": [weights.clone() for _, weights in draws],
        }

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any], device: torch.device) -> "PassPosition":
        """From `state_dict`, with draws on a device."""
        found = cls()
        found.position, found.num_batches = int(state_dict["position"]), int(state_dict["num_batches"])
        draws = zip(state_dict["indices_in_flight"], state_dict["weights_in_flight"], strict=True)
        found._again.extend((indices.to(device), weights.to(device)) for indices, weights in draws)
        found.resumed = True
        return found
