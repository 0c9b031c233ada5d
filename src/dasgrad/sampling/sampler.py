"""`AdaptiveSampler`: scores in, draws and importance weights out.

Masses πᵢ(sᵢ + ε) stand in a segment tree. A draw takes one uniform number u: below the floor λ it picks from
the target π, above it from the tree, so that pᵢ = (1−λ)·massᵢ/Σmass + λ·πᵢ. The weight πᵢ/pᵢ undoes the
sampling in expectation, and never exceeds 1/λ. The floor is a mixture of two draws and not a constant in the
leaves: constants in leaves lose their bound as soon as one leaf is updated and the total moves.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from dasgrad.sampling import cumulative_sums, native
from dasgrad.sampling.ahead import BatchDraws
from dasgrad.sampling.balance import BalancedDraws
from dasgrad.sampling.odds import Odds
from dasgrad.sampling.segment_tree import LOCK, SegmentTree
from dasgrad.targets import check_simplex

STATE_VERSION = 3  # version 2 had no draws balanced over a run
Stratified = Literal["none", "batch", "pass", "run"]
_LEAST_TOTAL = sys.float_info.min * 2**60
"""Below this total of all masses, shares of nodes would underflow, and draws are balanced over a pass alone."""


class Draw(int):
    """The index of a drawn example, with the weight it had when it was drawn.

    It is an ``int``, so every dataset takes it as an index; it keeps its weight on the way through worker
    processes, where `WithDraws` reads it.
    """

    weight: float

    def __new__(cls, index: int, weight: float) -> "Draw":
        """Make a draw of example ``index`` with importance weight ``weight``."""
        draw = super().__new__(cls, index)
        draw.weight = weight
        return draw

    def __reduce__(self) -> tuple[type["Draw"], tuple[int, float]]:
        return Draw, (int(self), self.weight)

    def __repr__(self) -> str:
        return f"Draw({int(self)}, weight={self.weight:.4g})"


class AdaptiveSampler(Sampler[list[Draw]]):
    """A batch sampler that draws examples in proportion to their scores, with replacement.

    Before the first `refresh` (and whenever all masses are zero) it draws from the target itself, with
    weights 1. One pass yields ceil(n / batch_size) batches of exactly ``batch_size`` draws each.

    Args:
        num_examples: n, at least 1.
        batch_size: B, at least 1.
        target: π, ``[n]`` non-negative of sum 1; None is uniform. Examples with πᵢ = 0 are never drawn.
        floor: λ in [0, 1), the share of draws taken from π itself; weights are at most 1/λ.
        epsilon: ε ≥ 0, added to every score. ``floor`` and ``epsilon`` must not both be 0: an example whose
            old score is 0 would never be drawn again, and the gradient would be biased.
        stratified: over what the draws are spread, so that their errors undo each other. ``"batch"`` takes one from
            each of B equal slices of probability, so a batch's estimate stays unbiased and its variance is never
            larger than that of independent draws (``"none"``). ``"pass"`` also visits, within each slice, ceil(n / B)
            finer slices in random order, one a batch, all at the same place: over a pass of D draws an example
            is drawn pD times, give or take less than two, and with equal probabilities a pass is a reshuffled epoch,
            each example drawn once (fewer than B of them twice where B does not divide n). The places of passes in a
            row are spread as well: an example with pD far below 1 comes at nearly regular passes, not by chance twice
            in a row. A refresh ends that, and it begins anew. ``"run"`` keeps account of what each example is owed
            through every refresh and update, so that over the whole run it comes at nearly regular intervals; before
            the first refresh it is ``"pass"``. With both, as in reshuffled epochs, each batch is unbiased, but not
            given the earlier ones. The accounts of ``"run"`` are kept in plain memory, wherever draws live.
        seed: of the sampler's own generator; the global one is never touched.
        device: where masses, draws and weights live.

    Raises:
        ValueError: for arguments out of range, and for scores that are negative, NaN, infinite or of the
            wrong length; the last good state stays.

    Example:
        >>> sampler = AdaptiveSampler(4, batch_size=2, floor=0.2, seed=0)
        >>> sampler.refresh([0.0, 0.0, 1.0, 3.0])
        >>> sampler.probabilities
        tensor([0.0500, 0.0500, 0.2500, 0.6500], dtype=torch.float64)
        >>> sampler.weights
        tensor([5.0000, 5.0000, 1.0000, 0.3846], dtype=torch.float64)
    """

    def __init__(
        self,
        num_examples: int,
        batch_size: int,
        *,
        target: Tensor | Sequence[float] | None = None,
        floor: float = 0.2,
        epsilon: float = 0.0,
        stratified: Stratified = "run",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (("num_examples", num_examples), ("batch_size", batch_size)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`AdaptiveSampler({name}=...)` must be a positive integer, got {value!r}.")
        _check_floor(floor, epsilon)
        if stratified not in ("none", "batch", "pass", "run"):
            raise ValueError(
                f"`AdaptiveSampler(stratified=...)` must be 'none', 'batch', 'pass' or 'run', got {stratified!r}."
            )
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"`AdaptiveSampler(seed=...)` must be a non-negative integer, got {seed!r}.")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self._floor = float(floor)
        self.epsilon = float(epsilon)
        self.stratified: Stratified = stratified
        self.seed = seed
        self._target_tree: SegmentTree | None = None
        if target is not None:
            target = torch.as_tensor(target, dtype=torch.float64, device=device)
            if target.shape != (num_examples,):
                raise ValueError(
                    f"`AdaptiveSampler(target=...)` must have shape ({num_examples},), got {tuple(target.shape)}."
                )
            check_simplex(target, "AdaptiveSampler(target=...)")
            self._target_tree = SegmentTree(target)
        self._tree = SegmentTree(torch.zeros(num_examples, dtype=torch.float64, device=device))
        self._trees: tuple[SegmentTree, ...] = (self._tree,)
        self._plain_target = self._target_tree
        if stratified == "run" and self.device.type != "cpu":  # balanced draws go by a copy in plain memory
            self._trees += (self._tree.to("cpu"),)
            self._plain_target = None if self._target_tree is None else self._target_tree.to("cpu")
        self._refreshed = False
        self._mixture: cumulative_sums.Mixture | None = None
        self._draws, self._balanced = self._make_draws()
        self.set_epoch(0)

    def _make_draws(self) -> tuple[BatchDraws, BalancedDraws | None]:
        """From uniforms, and balanced over the run where that is asked for and there are scores."""
        run = self.stratified == "run"
        draws = BatchDraws(self.batch_size, len(self), "pass" if run else self.stratified, self.device)
        return draws, BalancedDraws(self.batch_size, self.num_examples, self.device) if run else None

    # --- what is drawn from ---------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where masses, draws and weights live."""
        return self._tree.device

    @property
    def floor(self) -> float:
        """λ, the share of draws taken from π itself."""
        return self._floor

    @floor.setter
    def floor(self, floor: float) -> None:
        _check_floor(floor, self.epsilon)
        with self._changing():
            self._floor = float(floor)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Probabilities change inside; whatever was derived from them is let go of."""
        with LOCK:
            if self._balanced is not None:
                self._balanced.put_back()
            yield
            self._mixture = None
            self._draws.forget_lookups()
            self._balance_by_odds()

    def _balance_by_odds(self) -> None:
        """Give balanced draws the present odds."""
        if self._balanced is not None:
            balances = self._tree.known_total >= _LEAST_TOTAL
            self._balanced.odds = Odds(self._trees[-1], self._plain_target, self._floor) if balances else None

    @property
    def target(self) -> Tensor:
        """π, ``[n]`` float64."""
        if self._target_tree is None:
            share = 1.0 / self.num_examples
            return torch.full((self.num_examples,), share, dtype=torch.float64, device=self.device)
        return self._target_tree.masses

    @property
    def refreshed(self) -> bool:
        """Whether scores were given since the start; before that p = π."""
        return self._refreshed

    @property
    def _has_mass(self) -> bool:
        return self._tree.has_mass

    @property
    def scores(self) -> Tensor:
        """The scores in use, ``[n]`` float64; zero before the first refresh and where πᵢ = 0."""
        if not self._refreshed:
            return torch.zeros_like(self.target)
        target = self.target
        scores = self._tree.masses / target - self.epsilon
        return torch.where(target > 0, scores, 0.0).clamp_(min=0.0)

    @property
    def probabilities(self) -> Tensor:
        """p, floor included, ``[n]`` float64, of sum 1."""
        if not self._has_mass:
            return self.target
        return (1 - self.floor) * self._tree.masses / self._tree.total + self.floor * self.target

    @property
    def weights(self) -> Tensor:
        """W = π/p, ``[n]`` float64; 0 where πᵢ = 0, which is never drawn."""
        return torch.where(self.target > 0, self.target / self.probabilities, 0.0)

    def weights_of(self, indices: Tensor) -> Tensor:
        """Weights ``[k]`` of some examples, in time that goes with their number."""
        if not self._has_mass:
            return torch.ones(len(indices), dtype=torch.float64, device=self.device)
        return self._odds.weights_of(indices)

    def refresh(self, scores: Tensor | Sequence[float], through: Callable[[Tensor], Tensor] | None = None) -> None:
        """Take new scores for all n examples.

        Args:
            scores: ``[n]``, finite and not negative.
            through: draws go by what this makes of the scores, which it gets checked, and 0 where πᵢ = 0; what it gives
                back is checked as well.
        """
        checked = self._check_scores(scores, self.num_examples, "refresh")
        if through is not None:
            if self._target_tree is not None:
                checked = torch.where(self.target > 0, checked, 0.0)
            checked = self._check_scores(through(checked), self.num_examples, "refresh")
        masses = self.target * (checked + self.epsilon)
        with self._changing():
            for tree in self._trees:
                tree.rebuild(masses)
            self._refreshed = True

    def forget(self) -> None:
        """Forget all scores: draws follow the target, with weights 1, until the next `refresh`."""
        with self._changing():
            for tree in self._trees:
                tree.rebuild(torch.zeros_like(self.target))
            self._refreshed = False

    def update(self, indices: Tensor | Sequence[int], scores: Tensor | Sequence[float]) -> None:
        """Take new scores for some examples; of an index given twice, the last score counts.

        Scores must be on the scale of those already there, and a `refresh` must have come first: until then
        the others have no mass to compare with.
        """
        if not self._refreshed:
            raise ValueError("`AdaptiveSampler.update` needs scores of all examples first: call `refresh`.")
        indices = torch.as_tensor(indices, device=self.device)
        if indices.dim() != 1:
            raise ValueError(f"`update(indices=...)` must be 1-D, got shape {tuple(indices.shape)}.")
        checked = self._check_scores(scores, len(indices), "update")
        if len(indices) == 0:
            return
        if not native.within(indices, 0, self.num_examples - 1):
            outside = (indices < 0) | (indices >= self.num_examples)
            if outside.any():
                bad = int(indices[outside][0])
                raise ValueError(f"`update(indices=...)` must be in [0, {self.num_examples}), got {bad}.")
        if self._target_tree is None:
            masses = (checked + self.epsilon) * (1.0 / self.num_examples)
        else:
            masses = (checked + self.epsilon) * self._target_tree[indices]
        with self._changing():
            for tree in self._trees:
                tree.update(indices, masses)

    def _check_scores(self, scores: Tensor | Sequence[float], length: int, method: str) -> Tensor:
        scores = torch.as_tensor(scores, dtype=torch.float64, device=self.device).detach()
        if scores.shape != (length,):
            raise ValueError(
                f"`AdaptiveSampler.{method}(scores=...)` must have shape ({length},), got {tuple(scores.shape)}."
            )
        if native.within(scores, 0.0, sys.float_info.max):
            return scores
        bad = ~(torch.isfinite(scores) & (scores >= 0))
        if bad.any():
            index = int(bad.nonzero()[0])
            raise ValueError(
                f"`AdaptiveSampler.{method}(scores=...)` must be finite and non-negative, "
                f"got {float(scores[index])} at position {index}."
            )
        return scores

    # --- drawing --------------------------------------------------------------------------------------

    def draw(self, num: int | None = None) -> tuple[Tensor, Tensor]:
        """``num`` draws (default ``batch_size``): indices ``[num]`` int64 and weights ``[num]`` float64.

        Another number than ``batch_size`` is no batch of a pass, and is stratified by itself.
        """
        num = self.batch_size if num is None else num
        if not isinstance(num, int) or num < 0:
            raise ValueError(f"`draw(num=...)` must be a non-negative integer, got {num!r}.")
        with LOCK:
            if num != self.batch_size:
                return self._draws.draw_others(num, self._locate_)
            if self._balanced is not None and self._balanced.odds is not None:
                return self._balanced.draw_batch()
            return self._draws.draw_batch(self._locate_)

    def draw_batches(self, num: int) -> tuple[Tensor, Tensor]:
        """The draws of the next ``num`` batches in one call, ``[num, B]``: those of as many calls of `draw`."""
        if not isinstance(num, int) or isinstance(num, bool) or num < 1:
            raise ValueError(f"`draw_batches(num=...)` must be a positive integer, got {num!r}.")
        with LOCK:
            if self._balanced is not None and self._balanced.odds is not None:
                return self._balanced.draw_batches(num)
            return self._draws.draw_batches(num, self._locate_)

    @property
    def _odds(self) -> Odds:
        """For a tree that has mass."""
        return Odds(self._tree, self._target_tree, self._floor)

    def _locate(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The draws that uniforms u in [0, 1] decide, and their weights."""
        return self._locate_(u.clone(), stratified=False)

    def _locate_(self, u: Tensor, *, stratified: bool) -> tuple[Tensor, Tensor]:
        """The same, using up u; stratified: the i-th takes its place within the i-th of equal slices."""
        compiled = self._tree.compiled
        if compiled is not None:
            target = None if self._target_tree is None else self._target_tree.compiled
            return compiled.draw_(target, self.floor, stratified, u)
        if stratified:
            u = u.add_(torch.arange(len(u), dtype=torch.float64, device=self.device)).div_(max(len(u), 1))
        if self._tree.settled and cumulative_sums.are_faster_on(self.device):
            if self._mixture is None:
                self._mixture = self._mix()
            return self._mixture.draw(u)
        if not self._has_mass:
            return self.from_target(u), torch.ones_like(u)
        above = ((u - self.floor) / (1 - self.floor)).clamp_(0.0, 1.0)
        indices = self._tree.find(above * self._tree.total)
        if self.floor > 0:
            below = (u / self.floor).clamp_(max=1.0)
            indices = torch.where(u < self.floor, self.from_target(below), indices)
        return indices, self._odds.weights_of(indices)

    def _mix(self) -> cumulative_sums.Mixture:
        """What `_locate_` draws from, as one line to search."""
        if self._target_tree is None:
            target_ends = torch.arange(1, self.num_examples + 1, dtype=torch.float64, device=self.device)
        else:
            target_ends = self._target_tree.ends
        if not self._has_mass:
            return cumulative_sums.Mixture(target_ends, None, self.floor, torch.ones_like(target_ends))
        return cumulative_sums.Mixture(target_ends, self._tree.ends, self.floor, self._odds.weights)

    def from_target(self, u: Tensor) -> Tensor:
        """The examples that uniforms u in [0, 1] pick from the target, whatever the scores."""
        if self._target_tree is None:
            return (u * self.num_examples).long().clamp_(max=self.num_examples - 1)
        return self._target_tree.find(u * self._target_tree.total)

    def __iter__(self) -> Iterator[list[Draw]]:
        for _ in range(len(self)):
            yield as_draws(*self.draw())

    def __len__(self) -> int:
        return -(-self.num_examples // self.batch_size)

    # --- state ----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Restart the generator as a function of (seed, epoch), as torch's distributed sampler does.

        Without it the generator just goes on from pass to pass. Draws that are balanced over the run begin anew.
        """
        if not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"`set_epoch(epoch=...)` must be a non-negative integer, got {epoch!r}.")
        mixed = np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0]
        with LOCK:
            self._draws.restart(int(mixed) >> 1)
            if self._balanced is not None:
                self._balanced.restart(int(mixed) >> 1)

    def _options(self) -> dict[str, Any]:
        names = ("num_examples", "batch_size", "floor", "epsilon", "stratified")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next draws depend on."""
        with LOCK:
            draws = self._draws.state_dict()
            balance = {} if self._balanced is None else {"balance": self._balanced.state_dict()}
        return {
            "version": STATE_VERSION,
            "options": self._options(),
            "refreshed": self._refreshed,
            "tree": self._tree.state_dict(),
            **draws,
            **balance,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`; the next draws are those the saved sampler would have made.

        Raises:
            ValueError: for an unknown version, or a sampler built with other options; nothing is changed.
        """
        if state_dict.get("version") != STATE_VERSION:
            raise ValueError(
                f"`AdaptiveSampler.load_state_dict` reads version {STATE_VERSION}, got {state_dict.get('version')!r}."
            )
        for name, value in self._options().items():
            saved = state_dict["options"][name]
            if saved != value:
                raise ValueError(
                    f"`AdaptiveSampler.load_state_dict` needs a sampler with {name}={saved!r}, got {value!r}."
                )
        draws, balanced = self._make_draws()
        draws.load_state_dict(state_dict)
        if balanced is not None:
            balanced.load_state_dict(state_dict["balance"])
        refreshed = bool(state_dict["refreshed"])
        with LOCK:
            for tree in self._trees:
                tree.load_state_dict(state_dict["tree"])  # the first is the last thing that can refuse
            self._draws, self._balanced, self._refreshed, self._mixture = draws, balanced, refreshed, None
            self._balance_by_odds()

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options().items())
        return f"AdaptiveSampler({options}, seed={self.seed})"


def _check_floor(floor: float, epsilon: float) -> None:
    if not 0.0 <= floor < 1.0:
        raise ValueError(f"`AdaptiveSampler(floor=...)` must be in [0, 1), got {floor!r}.")
    if not 0.0 <= epsilon < float("inf"):
        raise ValueError(f"`AdaptiveSampler(epsilon=...)` must be finite and at least 0, got {epsilon!r}.")
    if floor == 0.0 and epsilon == 0.0:
        raise ValueError(
            "`AdaptiveSampler(floor=..., epsilon=...)` must not both be 0: an example with an old score "
            "of 0 would never be drawn again, and the gradient would be biased."
        )


def as_draws(indices: Tensor, weights: Tensor) -> list[Draw]:
    """Index and weight tensors as a list that a ``DataLoader`` passes on."""
    return [Draw(i, w) for i, w in zip(indices.tolist(), weights.tolist(), strict=True)]
