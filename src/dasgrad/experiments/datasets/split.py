"""What every loader gives: examples in memory, for training and for testing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad import SparseRows

Inputs = Tensor | SparseRows


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets for training and for testing, examples along the first dimension."""

    train: tuple[Inputs, Tensor]
    test: tuple[Inputs, Tensor]

    def to(self, device: torch.device | str) -> "Split":
        """The same split on a device."""
        train, test = ((inputs.to(device), targets.to(device)) for inputs, targets in (self.train, self.test))
        return Split(train, test)
