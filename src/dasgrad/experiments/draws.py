"""What an adaptive run drew: the distribution of p along training, and the examples at its two ends.

Beside a record may lie a file of this kind, made for one seed of each adaptive method. It is small: quantiles of p
over all examples, and for a few dozen examples their probabilities, weights, draws, classes and pictures.
"""

import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasgrad import atomic
from dasgrad.experiments.records import RecordError

DRAWS_PREFIX = "draws-"
DRAWS_VERSION = 1
LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
NUM_ENDS = 12
"""Examples kept at each end of the mean of p over a run."""
NUM_PASSING = 6
"""Examples kept that are at the top at a quarter, half, three quarters and the end of a run."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Draws:
    """What is kept of the draws of a run: E evaluations, K examples, Q levels."""

    steps: Array
    """``[E]``."""
    num_examples: int
    levels: Array
    """``[Q]``."""
    quantiles: Array
    """``[E, Q]``: of n·p over all examples; 1 is uniform."""
    indices: NDArray[np.int64]
    """``[K]``: examples kept, by falling mean probability."""
    ratios: Array
    """``[E, K]``: n·p of each."""
    weights: Array
    """``[E, K]``: π/p of each."""
    counts: NDArray[np.int64]
    """``[E, K]``: draws of each so far."""
    labels: NDArray[np.int64] | None
    """``[K]``: classes, where targets are whole numbers."""
    pictures: NDArray[np.uint8] | None
    """``[K, H, W]`` in grey or ``[K, H, W, 3]`` in colour, where inputs are pictures."""


class DrawRecorder:
    """Watches a run: `count` after every batch, `observe` at every evaluation, `finish` at the end."""

    def __init__(self, num_examples: int) -> None:
        self._counts = np.zeros(num_examples, dtype=np.int64)
        self._steps: list[float] = []
        self._probabilities: list[NDArray[np.float32]] = []
        self._weights: list[NDArray[np.float32]] = []
        self._draws: list[NDArray[np.int32]] = []

    def count(self, indices: Tensor) -> None:
        """Add a batch."""
        np.add.at(self._counts, indices.cpu().numpy(), 1)

    def observe(self, step: int, probabilities: Tensor, weights: Tensor) -> None:
        """Note the state of the sampler after ``step`` steps; ``[n]`` each."""
        self._steps.append(step)
        self._probabilities.append(probabilities.to("cpu", torch.float32).numpy())
        self._weights.append(weights.to("cpu", torch.float32).numpy())
        self._draws.append(self._counts.astype(np.int32))

    def finish(self, inputs: Any, targets: Tensor) -> Draws:
        """What is kept, with the classes and pictures of the training set it was drawn from."""
        n = len(self._counts)
        ratios = n * np.stack(self._probabilities).astype(np.float64)
        chosen = _choose(ratios)
        labels = None if targets.is_floating_point() or targets.ndim != 1 else targets.cpu().numpy()[chosen]
        return Draws(
            steps=np.asarray(self._steps, dtype=np.float64),
            num_examples=n,
            levels=np.asarray(LEVELS),
            quantiles=np.quantile(ratios, LEVELS, axis=1).T,
            indices=chosen,
            ratios=ratios[:, chosen],
            weights=np.stack(self._weights)[:, chosen].astype(np.float64),
            counts=np.stack(self._draws)[:, chosen].astype(np.int64),
            labels=labels,
            pictures=pictures_of(inputs, chosen),
        )


def _choose(ratios: Array) -> NDArray[np.int64]:
    """Both ends of the mean over the run, and the top at four moments; by falling mean."""
    mean = ratios.mean(0)
    order = np.argsort(-mean, kind="stable")
    last = len(ratios) - 1
    moments = sorted({round(last * share) for share in (0.25, 0.5, 0.75, 1.0)})
    passing = [np.argsort(-ratios[moment], kind="stable")[:NUM_PASSING] for moment in moments]
    chosen = np.unique(np.concatenate([order[:NUM_ENDS], order[-NUM_ENDS:], *passing]))
    kept: NDArray[np.int64] = chosen[np.argsort(-mean[chosen], kind="stable")].astype(np.int64)
    return kept


def pictures_of(inputs: Any, indices: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    """Examples as pictures of 8 bits, or None where inputs are not pictures.

    Pictures are ``[n, H, W]``, ``[n, 1 or 3, H, W]``, or rows of at least 8 × 8 pixels in [0, 1].
    """
    if not isinstance(inputs, Tensor) or inputs.is_sparse or inputs.ndim < 2:
        return None
    some = inputs[torch.from_numpy(indices).to(inputs.device)].to("cpu", torch.float32)
    low, high = float(some.min()), float(some.max())
    if inputs.ndim == 2:
        side = round(some.shape[1] ** 0.5)
        if side < 8 or side * side != some.shape[1] or low < 0 or high > 1:
            return None
        some, low, high = some.reshape(-1, side, side), 0.0, 1.0
    elif inputs.ndim == 4 and some.shape[1] in (1, 3):
        some = some[:, 0] if some.shape[1] == 1 else some.permute(0, 2, 3, 1)
    elif inputs.ndim != 3:
        return None
    scaled = (some - low) / max(high - low, 1e-12) * 255
    pixels: NDArray[np.uint8] = scaled.round().clamp(0, 255).to(torch.uint8).numpy()
    return pixels


def draws_name(record_name: str) -> str:
    """The name of the file that belongs to a record's."""
    return f"{DRAWS_PREFIX}{Path(record_name).stem}.npz"


def write_draws(path: Path, draws: Draws) -> None:
    """Write atomically."""
    arrays: dict[str, Any] = {
        "steps": draws.steps,
        "levels": draws.levels,
        "quantiles": draws.quantiles.astype(np.float32),
        "indices": draws.indices,
        "ratios": draws.ratios.astype(np.float32),
        "weights": draws.weights.astype(np.float32),
        "counts": draws.counts,
    }
    arrays |= {name: value for name in ("labels", "pictures") if (value := getattr(draws, name)) is not None}
    about = json.dumps({"schema_version": DRAWS_VERSION, "num_examples": draws.num_examples})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(about), **arrays)
    atomic.write(path, buffer.getvalue())


def read_draws(path: Path) -> Draws:
    """The draws at ``path``.

    Raises:
        RecordError: when the file is damaged, is something else, or has another schema version.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        if about["schema_version"] != DRAWS_VERSION:
            raise RecordError(f"{path}: has schema version {about['schema_version']!r}, this is {DRAWS_VERSION}")
        numbers = {
            name: arrays[name].astype(np.float64) for name in ("steps", "levels", "quantiles", "ratios", "weights")
        }
        draws = Draws(
            **numbers,
            num_examples=int(about["num_examples"]),
            indices=arrays["indices"].astype(np.int64),
            counts=arrays["counts"].astype(np.int64),
            labels=arrays["labels"].astype(np.int64) if "labels" in arrays else None,
            pictures=arrays["pictures"].astype(np.uint8) if "pictures" in arrays else None,
        )
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not a readable record of draws ({type(error).__name__})") from error
    evaluations, kept = len(draws.steps), len(draws.indices)
    shapes = {
        "quantiles": (evaluations, len(draws.levels)),
        **dict.fromkeys(("ratios", "weights", "counts"), (evaluations, kept)),
    }
    wrong = [name for name, shape in shapes.items() if getattr(draws, name).shape != shape]
    wrong += [n for n in ("labels", "pictures") if getattr(draws, n) is not None and len(getattr(draws, n)) != kept]
    if wrong or evaluations == 0 or kept == 0:
        raise RecordError(f"{path}: not a record of draws ({', '.join(wrong) or 'empty'})")
    return draws
