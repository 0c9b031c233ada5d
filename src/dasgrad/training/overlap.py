"""Scoring beside training: a snapshot of the model is scored in a thread of its own, on a GPU on a stream of its own.

What is drawn does not depend on how fast that goes: scores take effect at a step that is fixed when scoring starts. Who
gets there first waits. The thread touches nothing that threads share (`dasgrad.scoring.isolation.beside_training`); a
model that draws random numbers while it is scored cannot be kept apart so, and is scored before training goes on.
"""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dasgrad import nested
from dasgrad.progress import Progress, show_progress
from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.isolation import beside_training, device_of, untouched
from dasgrad.scoring.names import score_name
from dasgrad.training import generators


def check_overlap(overlap: object, interval: int | None) -> None:
    """Refuse what is no number of steps below J, the interval; None is that of ``refresh="auto"``."""
    if overlap == "auto" and interval is None:
        return
    if not isinstance(overlap, int) or isinstance(overlap, bool) or overlap < 0:
        raise ValueError(
            "`AdaptiveLoader(overlap=...)` must be a non-negative integer, or 'auto' with refresh='auto', got "
            f"{overlap!r}."
        )
    if overlap > 0 and interval is not None and overlap >= interval:
        raise ValueError(
            f"`AdaptiveLoader(overlap=...)` must be below refresh={interval}, so that scores take effect before the "
            f"next are due, got {overlap}."
        )


@dataclass(frozen=True)
class Scored:
    """Scores, and when they take effect."""

    scores: Tensor
    """``[n]``, as the scorer gave them."""
    computed_at: int
    """The step, counted from 1, before whose draw the snapshot was taken."""
    step: int
    """Before whose draw they take effect."""
    score: str
    """The name of the score."""
    seconds: float
    """That scoring took."""
    waited_seconds: float
    """For which training stood still: for the snapshot, and for the rest of the scoring in the end."""


class ScoringBesideTraining:
    """Scores snapshots, one at a time.

    Args:
        scorer: the one in training, whose snapshots are scored.
        options: of `ExampleScorer.score_dataset`.
        num_examples: n.
        few_examples: some of the data on a device, to see on them what scoring does.

    Raises:
        ValueError: for a model on a device that is neither a CPU nor CUDA, and for data that two threads would have to
            read at once.
    """

    def __init__(
        self,
        scorer: ExampleScorer,
        options: Mapping[str, Any],
        num_examples: int,
        few_examples: Callable[[torch.device], Any],
    ) -> None:
        device = device_of(scorer.model)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"`AdaptiveLoader(overlap=...)` needs a model on a CPU or CUDA, got {device}.")
        in_memory = nested.columns_of(options["dataset"]) is not None and options["collate_fn"] is None
        if not in_memory and options["num_workers"] == 0:
            raise ValueError(
                "`AdaptiveLoader(overlap=...)` needs tensors in memory, or `num_workers` of at least 1: without "
                "workers two threads would read the data set at once."
            )
        self._scorer = scorer
        self._options = options
        self._num_examples = num_examples
        self._few_examples = few_examples
        self._twins: dict[object, ExampleScorer] = {}  # by the score
        self._random = False
        self._stream: torch.cuda.Stream | None = None  # one for all, for each has memory of its own
        self._job: _Job | None = None
        self._scored: Scored | None = None

    @property
    def step(self) -> int | None:
        """Before whose draw the pending scores take effect; None where none are pending."""
        pending = self._job or self._scored
        return None if pending is None else pending.step

    @property
    def running(self) -> bool:
        """Whether a scoring goes on at this moment."""
        return self._job is not None and self._job.running

    def start(self, scorer: ExampleScorer, now: int, step: int) -> None:
        """Score the model as it is now, by its scorer or a cheaper one, for scores that take effect at a later step.

        Raises:
            TypeError: for a model that cannot be copied.
        """
        assert self.step is None
        started = time.perf_counter()
        twin = self._take_snapshot(scorer)
        device = device_of(twin.model)
        if device.type == "cuda" and (self._stream is None or self._stream.device != device):
            self._stream = torch.cuda.Stream(device)
        self._job = job = _Job(twin, self._options, self._num_examples, now, step, self._stream)
        # Where this object is let go of, and where the interpreter comes to its end.
        job.abandoning = weakref.finalize(self, job.abandon)
        if self._random:
            job.run()
        else:
            job.start()
        job.waited_seconds = time.perf_counter() - started

    def finish(self) -> Scored:
        """The pending scores, waited for if need be; they are pending no more.

        Raises:
            BaseException: whatever scoring raised.
        """
        if self._job is not None:
            job = self._job
            job.join()
            self._job = None
            self._scored = job.result()
        assert self._scored is not None
        scored, self._scored = self._scored, None
        return scored

    def look_ahead(self) -> Scored | None:
        """The pending scores, waited for if need be, and still pending; None without any and where scoring failed."""
        if self._job is not None:
            self._job.join()
            if self._job.error is not None:  # which `finish` raises
                return None
            self._scored = self.finish()
        return self._scored

    def hold(self, scored: Scored | None) -> None:
        """Have these scores pending and no others; a scoring that goes on stops after its chunk."""
        if self._job is not None:
            self._job.abandon()
            self._job = None
        self._scored = scored

    def _take_snapshot(self, scorer: ExampleScorer) -> ExampleScorer:
        live = self._scorer
        whole = self._twins.get(live.score)
        if whole is None or not whole.copy_from(live):
            self._twins = {live.score: live.snapshot()}
            self._try_out(self._twins[live.score])
        if scorer.score not in self._twins:
            self._twins[scorer.score] = self._twins[live.score].with_score(scorer.score)  # type: ignore[arg-type]
        return self._twins[scorer.score]

    def _try_out(self, twin: ExampleScorer) -> None:
        """See on a few examples whether scoring draws random numbers; and learn here what a scorer learns first."""
        with untouched(twin.model):
            few = self._few_examples(device_of(twin.model))
            before = generators.get_states()
            with beside_training():
                twin(few)
            drawn = not generators.are_equal(before, generators.get_states())
        if drawn and not self._random:
            warnings.warn(
                "`AdaptiveLoader(overlap=...)`: scoring draws random numbers from the global generators, which are "
                "training's as well. Examples are scored before training goes on, and not beside it.",
                stacklevel=2,
            )
        self._random = drawn


class _AbandonedError(Exception):
    """Nobody waits for these scores any more."""


class _Job:
    """One scoring of all examples, in a thread that ends with it.

    It is a daemon, so that an interrupted program does not wait for all of it; but it is never left to itself where the
    interpreter ends, for there torch's threads crash.
    """

    def __init__(
        self,
        twin: ExampleScorer,
        options: Mapping[str, Any],
        num_examples: int,
        now: int,
        step: int,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self.step = step
        self._now = now
        self.error: BaseException | None = None
        self.abandoning: weakref.finalize[..., Any] | None = None
        self.waited_seconds = 0.0
        self._twin = twin
        self._options = options
        self._num_examples = num_examples
        self._scores: Tensor | None = None
        self._seconds = 0.0
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._stream = stream

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Run in a thread, which starts from what the current stream has computed by then."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        num_threads, ready = _threads_beside(), threading.Event()

        def run() -> None:
            torch.get_num_threads()  # a thread takes the number for all at its first look, and would do so later
            torch.set_num_threads(num_threads)
            ready.set()
            with beside_training(), nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                self.run()

        self._thread = threading.Thread(target=run, name="dasgrad-scoring", daemon=True)
        self._thread.start()
        ready.wait()
        # The number is each thread's own, but later threads start with the one set last: let it be this one's again.
        torch.set_num_threads(torch.get_num_threads())

    def run(self) -> None:
        """Score; whatever is raised is kept for `result`."""
        started = time.perf_counter()
        try:
            progress: Progress = self._options["progress"]
            with show_progress(progress, self._num_examples, "scoring") as advance:
                done_before = 0

                def go_on(done: int, total: int) -> None:
                    nonlocal done_before
                    if self._abandoned.is_set():
                        raise _AbandonedError
                    advance(done - done_before)
                    done_before = done

                self._scores = self._twin.score_dataset(**{**self._options, "progress": go_on})
            if self._stream is not None:
                torch.cuda.current_stream(self._stream.device).synchronize()
        except BaseException as error:  # noqa: BLE001 - raised by `result`, in the thread that waits for the scores
            self.error = error
        self._seconds = time.perf_counter() - started

    def join(self) -> None:
        """Wait for the end; interrupted, it can be waited for again."""
        started = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
        self.waited_seconds += time.perf_counter() - started
        if self._stream is not None:  # what comes next may write where scoring read, and read what it wrote
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def result(self) -> Scored:
        """The scores, or the error, of a scoring that was joined."""
        if self.abandoning is not None:
            self.abandoning.detach()
        if self.error is not None:
            raise self.error
        assert self._scores is not None
        if self._stream is not None:
            self._scores.record_stream(torch.cuda.current_stream(self._stream.device))
        score = score_name(self._twin)
        return Scored(self._scores, self._now, self.step, score, self._seconds, self.waited_seconds)

    def abandon(self) -> None:
        """Stop after the chunk that is being scored."""
        self._abandoned.set()
        if self._thread is not threading.current_thread():  # which may be the one that collects garbage
            self.join()
        if self.abandoning is not None:
            self.abandoning.detach()


def _threads_beside() -> int:
    """How many threads scoring computes with: one for each core that training leaves free, and at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - torch.get_num_threads())
