"""Sooner on the clock? Seconds until adaptive draws reach the loss of the best uniform configuration.

Both sides choose optimizer (torch's Adam, AMSGrad or AdamW), learning rate and batch size from the same grids, on seeds
that are not reported: uniform draws by the training loss at the end of their budget, which sets the target, and then
all, uniform draws once more, by the time to it; a dip, after which the curve is above it in the mean, does not count
there. Other draws must keep uniform's held-out accuracy at the end of that budget, or take the configuration of uniform
draws: to over-fit sooner is no gain. Every second held-out example is for such choices, the others for what is
reported. The worse two thirds of a grid are tried on the first of these seeds alone, and three configurations of a
batch size, and uniform draws' own, on more than two. Uniform draws are reshuffled passes, those of a loader without
scores: where adaptive ones stand aside, both take the same steps. Every batch size gets as many steps T as uniform
training takes in the seconds of the smallest one's budget.

- Target: the mean loss on the whole training set that the best uniform configuration has after its budget T. Uniform's
  time to it is that of this configuration or of the one that was soonest in tuning, whichever is less.
- Time: where the mean curve over seeds first crosses the target, straight lines between evaluations, which are equally
  many for all. Drawing, stepping and scoring are on the clock, evaluation is not. Constant and α/√t runs go on to 2T;
  who has not crossed by then is counted as infinitely slow.
- Cosine decay depends on the budget: runs of T/2, 0.7 T, T, 1.4 T and 2T, each with its own decay, and the ratio of the
  budgets, in seconds, at which both end at the target, interpolated in log budget; both sides are tuned by that, on the
  first three. For α/√t the same is given beside the time, from T/2, T and 2T.
- Intervals: 95 % by a bootstrap over seeds that takes the same seeds of both sides, target included.
- ``--goal held-out`` has both sides tuned for held-out loss alone, and takes the time to uniform's.
- Held-out loss and accuracy are compared at the moment when uniform's budget is over; beside them stands the time to
  uniform's held-out loss of that moment, for a lower training loss may be over-fitting.
- Accuracy is also compared at the evaluation of least validation loss within uniform's budget, on both sides, as one
  who stops early would have it.
- Uniform against itself, on other seeds, stands beside every ratio: what chance alone does.
- Batch 32 is reported apart, both sides held to it.
- On a GPU the steps of both sides are taken in a CUDA graph (`CapturedLoop`), but for ``last-layer``; sparse rows are
  made dense for it.
- On a CPU that others use, ``--threads 1 --clock cpu`` counts the processor time of one thread instead, and
  ``--processes`` are then runs at a time.
- Seeds are the outer loop and methods the inner one, so that busy spells of the machine fall on all alike.

``--methods`` are ``adam``, ``amsgrad``, ``adamw``; ``last-layer`` (Katharopoulos and Fleuret 2018: the bound by the
last layer's gradient, on a presampled batch, switched on by their test of variance); ``loss:J`` (by loss, all examples
rescored every J steps); ``adaptive:J``, ``adaptive:never`` (the loader without scores), ``adaptive:auto``, and
``adaptive:fixed``: the configuration of ``adaptive:auto`` with that J of 100, 300, 1,000 and never which is first at
the target, whatever its accuracy, as a rival of ``auto``. Rivals take the
optimizer that is best for uniform draws.

Every finished run is added to the file ``--runs``; the same command again goes on where it was stopped.
"""

from benchmarks.wallclock.command import add_arguments, run
from benchmarks.wallclock.table import make_table

__all__ = ["add_arguments", "make_table", "run"]
