"""Digits: the data set that ships with scikit-learn and needs no download."""

import torch

from dasgrad.experiments.datasets.model import DataSet
from dasgrad.experiments.datasets.split import Split

SPLIT_SEED = 0


DIGITS = DataSet(
    name="digits",
    what="1,797 handwritten digits, 8×8",
    terms="E. Alpaydin, C. Kaynak (UCI Machine Learning Repository), CC BY 4.0; ships with scikit-learn",
)


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
