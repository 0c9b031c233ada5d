"""Data sets as tensors in memory, with a train/test split that is the same for every seed."""

from dataclasses import dataclass

import torch
from torch import Tensor

SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets for training and for testing, examples along the first dimension."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def to(self, device: torch.device | str) -> "Split":
        """The same split on a device."""
        train, test = ((inputs.to(device), targets.to(device)) for inputs, targets in (self.train, self.test))
        return Split(train, test)


def load_digits(test_share: float = 0.2) -> Split:
    """The 1,797 8×8 digits that ship with scikit-learn, pixels scaled to [0, 1], split by class.

    Inputs are ``[n, 64]`` float32, targets ``[n]`` int64.

    Raises:
        ValueError: for ``test_share`` outside (0, 1).
    """
    if not 0.0 < test_share < 1.0:
        raise ValueError(f"`load_digits(test_share=...)` must be in (0, 1), got {test_share!r}.")
    # Imported here: experiments can be listed, and the command line can say what is missing, without the extra.
    from sklearn import datasets, model_selection

    pixels, labels = datasets.load_digits(return_X_y=True)
    train_pixels, test_pixels, train_labels, test_labels = model_selection.train_test_split(
        pixels / 16.0, labels, test_size=test_share, stratify=labels, random_state=SPLIT_SEED
    )
    return Split(
        (torch.tensor(train_pixels, dtype=torch.float32), torch.tensor(train_labels, dtype=torch.int64)),
        (torch.tensor(test_pixels, dtype=torch.float32), torch.tensor(test_labels, dtype=torch.int64)),
    )
