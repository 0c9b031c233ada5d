"""`AdaptiveLoader`: the join of data set, scorer, sampler and optimizer, for an ordinary training loop."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from dasgrad import nested
from dasgrad.progress import Progress
from dasgrad.sampling import AdaptiveSampler
from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.chunks import FETCHED, check_chunk_size
from dasgrad.scoring.isolation import device_of
from dasgrad.training import generators
from dasgrad.training.auto import AutoRefresh
from dasgrad.training.batch import WeightedBatch, even_shares, with_shares
from dasgrad.training.diagnosis import Diagnosis
from dasgrad.training.examine import Examiner
from dasgrad.training.fetching import Fetcher, Rows, SeededBatch
from dasgrad.training.overlap import Scored, check_overlap
from dasgrad.training.passes import PassPosition
from dasgrad.training.refresh import RefreshSchedule, StepCounter, shown
from dasgrad.training.rescoring import Refresh, Rescoring

STATE_VERSION = 3  # version 1 did not count batches, on which the seeds of workers depend; 2 had nothing pending


class AdaptiveLoader:
    """Batches drawn by importance, rescored every ``refresh`` optimizer steps.

    One pass is ceil(n / batch_size) `WeightedBatch`es of exactly ``batch_size`` draws each. Tensors in memory
    are indexed directly, on their device; examples of any other map-style data set are fetched and collated one
    batch at a time, in the workers of a ``torch.utils.data.DataLoader`` if asked. A weight is fixed when its example
    is drawn and waits for it, so that prefetching cannot make it wrong. In workers the global generators of torch,
    numpy and Python start anew for every batch, from the sampler's seed and the batch's number: random augmentation
    depends neither on the number of workers nor on where a run was interrupted.

    Args:
        dataset: a map-style data set, or tensors in memory: a ``TensorDataset``, a tuple or dict of tensors or
            `SparseRows`.
        batch_size: B; leave it out when ``sampler`` is given.
        scorer: scores the data set at each refresh; without one the draws follow the target until
            ``loader.sampler.refresh(scores)`` is called.
        sampler: an `AdaptiveSampler` with options of its own (floor, target, …).
        seed: of the draws, 0 if left out; a given ``sampler`` has its own.
        refresh: J, a positive number of completed optimizer steps: all examples are rescored before the draw
            of every J-th step. Steps are counted over passes by a hook on the optimizer, so skipped
            mixed-precision steps and accumulated batches do not count. ``"auto"``, or an `AutoRefresh` with
            options of its own, rescores when that pays on the clock and draws uniformly where it does not;
            `diagnosis` says which. None is once a pass.
        overlap: K, a number of completed optimizer steps below J. Where it is positive, scoring goes on beside
            training, on a copy of model and optimizer state as they are when a refresh is due, and the scores take
            effect K steps later; where they are not ready by then, training waits. So K decides what is drawn, and
            speed does not. ``"auto"``, with ``refresh="auto"`` alone, chooses K by measured costs. Needs memory for
            the copy, and data that are tensors in memory or are read by workers.
        optimizer: whose steps are counted; by default the scorer's.
        scoring_dataset: the same examples in the same order, without augmentation, for scoring.
        scoring_chunk_size: examples scored at once, as `ExampleScorer.score_dataset` has it; None is its choice.
        nonfinite: when an example's score is NaN or infinite: ``"raise"`` stops, naming it, and the
            probabilities stay as they were; ``"keep"`` warns, naming it, and goes on with its last good score.
        progress: True for a bar at each refresh, or a function of (done, total).
        device: where batches are moved to; None leaves them where they are.
        collate_fn, num_workers, pin_memory, prefetch_factor, persistent_workers, worker_init_fn,
            multiprocessing_context: as for ``DataLoader``; any of the first two sends tensors in memory
            through it, too.

    Raises:
        TypeError: for an ``IterableDataset``.
        ValueError: for an empty data set, options out of range or in contradiction.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        scorer: ExampleScorer | None = None,
        sampler: AdaptiveSampler | None = None,
        seed: int | None = None,
        refresh: int | Literal["auto"] | AutoRefresh | None = None,
        overlap: int | Literal["auto"] = 0,
        optimizer: Optimizer | None = None,
        scoring_dataset: Any = None,
        scoring_chunk_size: int | None = None,
        nonfinite: Literal["raise", "keep"] = "raise",
        progress: Progress = False,
        device: torch.device | str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                "`AdaptiveLoader(dataset=...)` must be map-style (`__getitem__` and `__len__`), got an "
                "IterableDataset: its examples cannot be drawn by index."
            )
        if isinstance(dataset, DataLoader):
            raise TypeError("`AdaptiveLoader(dataset=...)` must be a data set, got a DataLoader: pass its `.dataset`.")
        columns = nested.columns_of(dataset)
        num_examples = len(dataset) if columns is None else nested.count_examples(columns)
        if num_examples == 0:
            raise ValueError("`AdaptiveLoader(dataset=...)` must hold at least one example, got 0.")
        direct = columns is not None and collate_fn is None and num_workers == 0
        home = nested.leaves(columns)[0].device if direct else torch.device("cpu")
        if sampler is None:
            sampler = AdaptiveSampler(
                num_examples, 1 if batch_size is None else batch_size, seed=0 if seed is None else seed, device=home
            )
        elif seed is not None:
            raise ValueError(f"`AdaptiveLoader(seed=...)` must be left out when `sampler` is given, got {seed!r}.")
        elif batch_size not in (None, sampler.batch_size):
            raise ValueError(
                f"`AdaptiveLoader(batch_size=...)` must be the sampler's, {sampler.batch_size}, got {batch_size!r}."
            )
        if sampler.num_examples != num_examples:
            raise ValueError(
                f"`AdaptiveLoader(sampler=...)` must have num_examples={num_examples}, the length of the data "
                f"set, got {sampler.num_examples}."
            )
        if optimizer is None and scorer is not None:
            optimizer = scorer.optimizer
        if scorer is None and (refresh is not None or scoring_dataset is not None):
            raise ValueError("`AdaptiveLoader(refresh=..., scoring_dataset=...)` need `scorer`.")
        if scorer is not None and optimizer is None:
            raise ValueError(
                "`AdaptiveLoader(scorer=...)` counts optimizer steps between refreshes: give `optimizer`, for "
                "this scorer has none."
            )
        self.dataset = dataset
        self.sampler = sampler
        self.scorer = scorer
        self.optimizer = optimizer
        self.device = None if device is None else torch.device(device)
        self._scoring_device = torch.device("cpu") if scorer is None else device_of(scorer.model)
        scored = dataset if scoring_dataset is None else scoring_dataset
        if scoring_chunk_size is None:
            scoring_chunk_size = FETCHED if scorer is None else scorer.usual_chunk_size(scored, collate_fn)
        check_chunk_size(scoring_chunk_size, "AdaptiveLoader(scoring_chunk_size=...)")
        self.scoring_chunk_size = scoring_chunk_size
        self._schedule = _schedule_of(len(sampler) if refresh is None else refresh)
        if optimizer is not None:
            self._schedule.count_steps_of(optimizer)
        self.overlap = overlap
        check_overlap(overlap, self.refresh_interval)
        self._rescoring = Rescoring(
            scorer,
            sampler,
            self._schedule,
            dataset=scored,
            chunk_size=scoring_chunk_size,
            progress=progress,
            collate_fn=collate_fn,
            num_workers=num_workers,
            overlap=overlap,
            nonfinite=nonfinite,
        )
        self._at = PassPosition()
        self._examiner = Examiner()
        self._pass: object = None  # a mark of the pass that is going on
        self._worker_seed = sampler.seed
        self._columns = columns if direct else None
        self._home = home  # where data and draws are put together
        self._draws_elsewhere = sampler.device != home
        self._even_shares: Tensor | None = None  # w/B of uniform draws
        self._pin_draws = not direct and pin_memory and torch.accelerator.is_available()
        self._fetcher: Fetcher | None = None
        if not direct:
            self._fetcher = Fetcher(
                Rows(columns) if columns is not None else dataset,
                self._batches,
                collate_fn,
                num_workers=num_workers,
                pin_memory=pin_memory,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
            )

    @property
    def batch_size(self) -> int:
        """B, the number of draws in every batch."""
        return self.sampler.batch_size

    @property
    def num_workers(self) -> int:
        """Processes that fetch examples ahead of time; 0 where this one does, or data are in memory."""
        return 0 if self._fetcher is None else self._fetcher.num_workers

    @property
    def num_steps(self) -> int:
        """Optimizer steps counted since the start."""
        return self._schedule.num_steps

    @property
    def step_seconds(self) -> float | None:
        """A training step from its batch to the end of the optimizer's step, lately; None before the first."""
        return self._schedule.stopwatch.seconds()

    @property
    def share_lost(self) -> float:
        """The share of the time of scoring that training loses: all of it, less beside training once it was timed."""
        return self._rescoring.share_lost

    @property
    def refresh_interval(self) -> int | None:
        """J, or None where the clock decides."""
        return self._schedule.interval if isinstance(self._schedule, RefreshSchedule) else None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[WeightedBatch]:
        at, num_batches = self._at, len(self)
        if self._fetcher is not None and self._fetcher.has_lost_workers:  # as torch says wherever it finds the loop
            if at.position < num_batches:  # else all of the pass was handed out
                at.put_back()
            self._fetcher.renew()
        at.open()
        if self._even_shares is None:
            self._even_shares = even_shares(self.batch_size, self.device or self._home)
        current = self._pass = object()
        source = self._direct_data() if self._fetcher is None else self._fetched_data()
        while at.position < num_batches:
            # Nothing here keeps the batch: its memory is free for the next one as soon as the loop lets go of it.
            yield self._next_batch(source)
            if self._pass is not current:
                raise RuntimeError(
                    "This pass over the `AdaptiveLoader` is over: another one was started, or a state was loaded. "
                    "Go on with a new `iter(loader)`."
                )
        next(source, None)  # lets workers come to their end
        at.close()
        if self.scorer is not None:
            self._schedule.end_pass()

    def _next_batch(self, source: Iterator[Any]) -> WeightedBatch:
        """The next batch; where it is not to be had, the next ``iter(loader)`` goes on from before its draws."""
        try:
            batch = self._join(next(source))
        except BaseException as error:  # a worker has died, an example cannot be read, scoring failed, memory is full
            self._at.put_back()
            if self._fetcher is not None:
                self._fetcher.renew()
            if self._at.next_indices is not None:
                error.add_note(
                    "AdaptiveLoader: the next `iter(loader)` goes on with the batch of examples "
                    f"{shown(self._at.next_indices.tolist())}; `loader.take_draws(1)` leaves it out."
                )
            raise
        self._at.hand_out()
        self.start_step()
        return batch

    def _join(self, data: Any) -> WeightedBatch:
        """The data of the oldest batch in flight with their draws."""
        indices, weights, even = self._at.oldest
        if self._draws_elsewhere:
            indices, weights = indices.to(self._home), weights.to(self._home)
        if self._pin_draws:
            indices, weights = indices.pin_memory(), weights.pin_memory()
        batch = with_shares(WeightedBatch(data, indices, weights), self._even_shares if even else None)
        return batch if self.device is None else batch.to(self.device, non_blocking=True)

    def _fetched_data(self) -> Iterator[Any]:
        assert self._fetcher is not None
        # Workers start from a seed of the pass, the same one when it is resumed in its middle.
        yield from self._fetcher.start(generators.mix(self._worker_seed, 0, self._at.num_batches - self._at.position))

    def _direct_data(self) -> Iterator[Any]:
        for indices, _ in self._draws():
            rows = indices.to(self._home) if self._draws_elsewhere else indices
            yield nested.take_rows(self._columns, rows)

    def _draws(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The draws of the rest of this pass, each preceded by a refresh where one is due."""
        sampler, schedule, scored = self.sampler, self._schedule, self.scorer is not None
        for _ in range(self._at.position, len(self)):
            draw, even = self._at.repeat(), False  # as far as is known
            if draw is None:
                if scored:
                    schedule.before_draw(self)
                draw, even = sampler.draw(), not sampler.refreshed
            self._at.enter(draw, even)
            yield draw

    def _batches(self) -> Iterator[SeededBatch]:
        """Draws for workers, which are asked for ahead of time.

        Indices alone are passed on. Weights stay here, among the draws in flight, and meet their examples again when
        the batch comes back.
        """
        for indices, _ in self._draws():
            yield SeededBatch(indices.tolist(), (self._worker_seed, 1, self._at.num_batches))

    # --- several batches at once ----------------------------------------------------------------------

    @property
    def columns(self) -> Any | None:
        """The tensors in memory that batches are rows of; None where examples are fetched one by one."""
        return self._columns

    @property
    def counter(self) -> StepCounter:
        """Counts and times the optimizer's steps."""
        return self._schedule

    def start_step(self) -> None:
        """A batch is handed out: the time of its step begins."""
        if self.scorer is not None:
            stopwatch, beside = self._schedule.stopwatch, self.overlap != 0 and self._rescoring.running
            if stopwatch.is_due(beside):
                stopwatch.start(self._scoring_device, beside=beside)

    @property
    def num_left(self) -> int:
        """Batches up to the end of the pass that `take_draws` is in, or would begin."""
        return len(self) - self._at.position if self._at.resumed else len(self)

    def take_draws(self, most: int) -> tuple[Tensor, Tensor]:
        """The draws of the next k batches at once, 1 ≤ k ≤ ``most``: indices and weights ``[k, B]``.

        They are those of a loop over the loader, and the refresh that may be due comes first. k is less than ``most``
        where the pass ends, and before a step at which the next refresh may come or take effect; the next call goes on
        from there, as does the next ``iter(loader)``. The caller takes one optimizer step with each batch, or gives
        draws back by `put_back`.
        """
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ValueError(f"`take_draws(most=...)` must be a positive integer, got {most!r}.")
        self._at.open()
        self._pass, self._at.resumed = None, True
        most = min(most, self.num_left)
        draws = self._at.repeat_several(most)
        if draws is None:
            if self.scorer is not None:
                self._schedule.before_draw(self)
                most = min(most, self._schedule.num_quiet_steps(), self._rescoring.num_quiet_steps())
            draws = self.sampler.draw_batches(most)
        self._at.skip(len(draws[0]), len(self))
        return draws

    def put_back(self, indices: Tensor, weights: Tensor) -> None:
        """Give back the last of the draws that `take_draws` gave, ``[k, B]``: they are the next ones again."""
        self._at.take_back(indices, weights, len(self))

    # --- refresh --------------------------------------------------------------------------------------

    def refresh(self, indices: Tensor | None = None) -> None:
        """Rescore all examples now and give the scores to the sampler.

        Args:
            indices: ``[k]``, to rescore these alone, as `update` does: a random choice, or the next slice of a
                random order.

        Raises:
            ValueError: for a score that is NaN or infinite, naming the example, unless ``nonfinite="keep"``.
                The sampler keeps its last good state.
        """
        self._rescoring.refresh(indices)

    def update(self, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take scores of some examples, computed just now, on one scale with the older scores of the others.

        ``loader.update(batch.indices, heard.scores, batch.weights)`` takes those of a training batch from
        `ExampleScorer.listen`. From what has become of their scores it is learned how those of the others have aged,
        and every two per cent of the steps so far all masses are brought to the present. Where draws are uniform,
        before the first refresh or because that was decided, there is nothing to compare with, and nothing is done.

        Args:
            indices: ``[k]``.
            scores: theirs; NaN and infinite ones as in `refresh`.
            weights: of the draws ``[k]``, where the examples were drawn by importance; None for a random choice.

        Raises:
            ValueError: without a scorer: the ages of scores given to the sampler itself are not known. Rescore by
                the loader, or use `AdaptiveSampler.update`.
        """
        self._rescoring.update(indices, scores, weights)

    def rescore(self, scorer: ExampleScorer, through: Callable[[Tensor], Tensor] | None = None) -> float:
        """As `refresh`, by a scorer that need not be the loader's own; returns the seconds it took.

        The sampler gets what ``through`` makes of the scores, if that is given.
        """
        return self._rescoring.rescore(scorer, through)

    def rescore_beside(self, scorer: ExampleScorer, num_steps: int) -> None:
        """Start to rescore beside training, for scores that take effect ``num_steps`` steps later.

        Those that are still pending take effect first.
        """
        self._rescoring.rescore_beside(scorer, num_steps)

    @property
    def pending(self) -> bool:
        """Whether there are scores that have not taken effect yet."""
        return self._rescoring.pending

    def take_effect(self, *, now: bool = False) -> Scored | None:
        """Give pending scores to the sampler, if it is time or ``now``; returns them.

        Raises:
            ValueError: as `refresh`; whatever else scoring raised.
        """
        return self._rescoring.take_effect(now=now)

    def diagnosis(self) -> Diagnosis:
        """Whether adaptive draws pay here: cost, gain, noise, what was decided and what it promises.

        ``print(loader.diagnosis())`` says it in words. With ``refresh="auto"`` it is what was found at the last look,
        which were the grounds of the decision now in force; otherwise, and for the noise where nothing depended on it,
        some examples are looked at now, which changes nothing; with a fixed interval that was done a moment ago, what
        was found then is said again.

        Raises:
            ValueError: without a scorer.
        """
        if self.scorer is None:
            raise ValueError("`AdaptiveLoader.diagnosis` needs `scorer`, got None.")
        if isinstance(self._schedule, AutoRefresh):
            return self._schedule.diagnose(self)
        return self._examiner.diagnose(self, self._rescoring.refreshed_at)

    def examples_for_scoring(self, indices: Tensor) -> Any:
        """Some examples of the scoring data set, collated, on the model's device."""
        return self._rescoring.examples(indices)

    def on_refresh(self, callback: Callable[[Refresh], None]) -> Callable[[], None]:
        """Call ``callback`` after every refresh; returns a function that stops it."""
        return self._rescoring.on_refresh(callback)

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Sampler, position in the pass, draws in flight and step count: where the next batch comes from.

        Where a scoring goes on beside training, its end is waited for.
        """
        return {
            "version": STATE_VERSION,
            "sampler": self.sampler.state_dict(),
            "schedule": self._schedule.state_dict(),
            "worker_seed": self._worker_seed,
            **self._at.state_dict(),
            **self._rescoring.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`: the next ``iter(loader)`` goes on in the middle of the pass.

        Raises:
            ValueError: for an unknown version, another ``refresh`` or ``overlap``, or a sampler with other options;
                nothing is changed.
        """
        if state_dict.get("version") not in (2, STATE_VERSION):
            raise ValueError(
                f"`AdaptiveLoader.load_state_dict` reads versions 2 and {STATE_VERSION}, got "
                f"{state_dict.get('version')!r}."
            )
        self._schedule.check(state_dict["schedule"])
        rescoring = self._rescoring.read_state(state_dict)
        at, worker_seed = PassPosition.from_state_dict(state_dict, self.sampler.device), int(state_dict["worker_seed"])
        self.sampler.load_state_dict(state_dict["sampler"])  # the last one that can refuse
        self._schedule.load_state_dict(state_dict["schedule"])
        self._rescoring.restore(rescoring)
        self._at, self._worker_seed, self._pass = at, worker_seed, None

    def __repr__(self) -> str:
        overlap = f", overlap={self.overlap!r}" if self.overlap else ""
        path = "direct" if self._fetcher is None else f"fetched, {self.num_workers} workers"
        return f"AdaptiveLoader({self.sampler!r}, refresh={self._schedule!r}{overlap}, {path})"


def _schedule_of(refresh: int | Literal["auto"] | AutoRefresh) -> RefreshSchedule | AutoRefresh:
    if isinstance(refresh, AutoRefresh):
        return refresh
    return AutoRefresh() if refresh == "auto" else RefreshSchedule(refresh)
