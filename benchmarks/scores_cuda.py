"""What do exact scores cost on a GPU? All of an MNIST-sized set by logistic regression, a CIFAR-sized one by a CNN.

Random examples on the device, float32, once with TF32 off and once with it on; nothing but torch and this package is
needed: ``PYTHONPATH=src python3 -m benchmarks scores_cuda --json FILE``. Times are milliseconds for the whole set, by
CUDA events, methods taking turns. *graph*: replays of a CUDA graph of one chunk, as often as the set has chunks; the
metric's inverse is computed inside. *eager*: `score_dataset` as a user calls it, and the same walk of plain passes.
Every kind of score is first compared with float64. Parts: ``logistic``, ``cnn``, ``memory``.
"""

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dasgrad
from benchmarks.parts import methods, problems
from benchmarks.parts.methods import PLAIN
from benchmarks.parts.problems import Problem
from benchmarks.parts.report import Row
from dasgrad.scoring.isolation import untouched

DEVICE = "cuda"
NUM_MNIST, NUM_CIFAR = 60_000, 50_000
CHUNK_SIZES = (1_000, 2_500)
NUM_WARM_UPS, NUM_ROUNDS, NUM_REPLAYS = 3, 20, 20
NUM_WALKS = 3
"""Rounds over the CIFAR-sized set."""
NUM_CHECKED, TOLERANCE, TF32_TOLERANCE = 256, 1e-4, 1e-2
READ = "one read of the examples"

Call = Callable[[], object]


@dataclass(frozen=True)
class Bars:
    """What is aimed at: milliseconds for the MNIST-sized set, shares of a plain pass for the CIFAR-sized one."""

    milliseconds: Mapping[str, float]
    ratio: Mapping[str, float]


BARS = Bars(milliseconds={"frozen": 0.15, "own": 0.5}, ratio={"frozen": 1.5, "linear layers": 0.6})


@contextmanager
def precision(tf32: bool) -> Iterator[str]:
    """TF32 in matrix products and convolutions, or not; gives what to call it."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield f"float32, TF32 {'on' if tf32 else 'off'}"
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True  # torch's default


def build(key: str, num_examples: int) -> Problem:
    """A problem on the device, with the optimizer's step counts on the host, where a graph may read them."""
    problem = problems.build(key, num_examples, DEVICE)
    for state in problem.optimizer.state.values():
        state["step"] = state["step"].cpu()
    return problem


def make_scorer(problem: Problem, name: str, **options: Any) -> dasgrad.ExampleScorer:
    """The scorer of that name in results."""
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    return dasgrad.ExampleScorer(problem.model, loss_fn, problem.optimizer, **{**methods.SCORERS[name], **options})


def check(problem: Problem, name: str, tf32: bool) -> None:
    """Raises ArithmeticError where scores of a few examples are not those of float64."""
    inputs, targets = problem.inputs[:NUM_CHECKED], problem.targets[:NUM_CHECKED]
    expected = make_scorer(problem, name, dtype="float64")(inputs, targets)
    errors = (make_scorer(problem, name)(inputs, targets).double() / expected - 1).abs()
    rough = tf32 or name == "bfloat16"
    error, allowed = float(errors.median() if rough else errors.max()), TF32_TOLERANCE if rough else TOLERANCE
    if not error <= allowed:
        raise ArithmeticError(f"{problem.title}: {name} is off by {error:.1e} of its size, more than {allowed:.0e}.")


# --- measuring ----------------------------------------------------------------------------------------------


def capture(call: Call) -> Call:
    """The call as replays of a CUDA graph, which were seen to give the same result.

    Raises:
        RuntimeError: where it cannot be captured, as when the host waits for the device inside.
        ArithmeticError: where a replay gives something else.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARM_UPS):
            expected = call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> object:
        graph.replay()
        return call, result  # both must live as long as the graph, which writes to their memory

    replay()
    if isinstance(result, Tensor) and isinstance(expected, Tensor):
        torch.cuda.synchronize()
        if not torch.allclose(result, expected, rtol=TOLERANCE, atol=0.0):
            raise ArithmeticError("a replay of the graph does not give what the call gave.")
    return replay


def time_in_turns(calls: Mapping[str, Call], num_rounds: int, num_repeats: int) -> dict[str, list[float]]:
    """Milliseconds of a call, one number a round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(num_rounds + 1):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(num_repeats):
                call()
            end.record()
            torch.cuda.synchronize()
            if turn > 0:
                times[name].append(start.elapsed_time(end) / num_repeats)
    return times


def peak_bytes(call: Call) -> int:
    """The most that was allocated during a call above what was before, after one call to warm up."""
    call()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# --- what is measured ---------------------------------------------------------------------------------------


def chunk_call(problem: Problem, name: str, chunk_size: int) -> Call:
    """One chunk by a method, fit for a graph: no reading of random states, no waiting for the device."""
    inputs, targets = problem.inputs[:chunk_size], problem.targets[:chunk_size]
    if name == READ:
        return lambda: inputs.sum()
    if name == PLAIN:
        plain = methods.forward_and_backward(problem)
        return lambda: plain(inputs, targets)
    scorer = make_scorer(problem, name)
    scorer(inputs, targets)  # looks at the model the first time
    return lambda: scorer._chunk_scores()((inputs, targets))


def walk_call(problem: Problem, name: str, chunk_size: int) -> Call:
    """All chunks by a method, as a user would."""
    if name == PLAIN:
        plain = methods.forward_and_backward(problem)

        def walk() -> None:
            for rows, labels in zip(problem.inputs.split(chunk_size), problem.targets.split(chunk_size), strict=True):
                plain(rows, labels)

        return walk
    scorer = make_scorer(problem, name)
    return lambda: scorer.score_dataset((problem.inputs, problem.targets), chunk_size)


def graphs(problem: Problem, names: Sequence[str], chunk_size: int) -> dict[str, Call]:
    """Graphs of one chunk of every method that can be captured; the others are named with the reason."""
    found = {}
    for name in names:
        try:
            with untouched(problem.model):
                found[name] = capture(chunk_call(problem, name, chunk_size))
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            print(f"{problem.title}: no graph of {name} in chunks of {chunk_size:,}: {reason}", flush=True)
            torch.cuda.synchronize()
    return found


def row(metric: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, bar: float | None = None) -> Row:
    """One line of the result: medians, and the median of the rounds' ratios."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    medians = {"ours": statistics.median(ours), "peer": statistics.median(peer)}
    return {"metric": metric, **medians, "peer_name": peer_name, "ratio": statistics.median(ratios), "bar": bar}


def logistic_rows(tf32: bool) -> list[Row]:
    """All 60,000 in one chunk, against one read of them and against a plain pass; graphs, and eager calls."""
    problem = build("A", NUM_MNIST)
    names = methods.computable(problem, ["frozen", "own", "bfloat16", "last layer", "loss"])
    rows = []
    with precision(tf32) as label:
        for name in names:
            check(problem, name, tf32)
        for mode in ("graph", "eager"):
            if mode == "graph":
                calls = graphs(problem, [READ, PLAIN, *names], NUM_MNIST)
            else:
                calls = {READ: chunk_call(problem, READ, NUM_MNIST)}
                calls |= {name: walk_call(problem, name, NUM_MNIST) for name in (PLAIN, *names)}
            times = time_in_turns(calls, NUM_ROUNDS, NUM_REPLAYS)
            for name in names:
                bar = BARS.milliseconds.get(name) if mode == "graph" else None
                what = f"logistic regression: {name} of {NUM_MNIST:,}, {label}, {mode}, ms"
                what += f" (bar {bar} ms)" if bar else ""
                for peer in (PLAIN, READ):
                    if name in times and peer in times:
                        rows.append(row(what, times[name], times[peer], peer))
    return rows


def cnn_rows(tf32: bool) -> list[Row]:
    """50,000 images in chunks, each method at its best chunk size, against a plain pass."""
    problem = build("C", NUM_CIFAR)
    names = methods.computable(problem, ["frozen", "linear layers", "own", "bfloat16"])
    rows = []
    with precision(tf32) as label:
        for name in names:
            check(problem, name, tf32)
        for mode in ("graph", "eager"):
            best: dict[str, tuple[list[float], int]] = {}
            for size in CHUNK_SIZES:
                if mode == "graph":
                    calls, repeats = graphs(problem, [PLAIN, *names], size), NUM_CIFAR // size
                else:
                    calls, repeats = {name: walk_call(problem, name, size) for name in (PLAIN, *names)}, 1
                for name, times in time_in_turns(calls, NUM_WALKS, repeats).items():
                    whole = [time * repeats for time in times]
                    if name not in best or statistics.median(whole) < statistics.median(best[name][0]):
                        best[name] = whole, size
                del calls
                gc.collect()
                torch.cuda.empty_cache()
            for name in names:
                if {name, PLAIN} <= set(best):
                    what = f"CNN: {name} of {NUM_CIFAR:,}, {label}, {mode}, chunks of {best[name][1]:,}, ms"
                    peer = f"{PLAIN}, chunks of {best[PLAIN][1]:,}"
                    rows.append(row(what, best[name][0], best[PLAIN][0], peer, BARS.ratio.get(name)))
    return rows


def memory_rows() -> list[Row]:
    """Peak of one chunk above what was allocated before it, against a plain pass over the same chunk."""
    rows = []
    with precision(False):
        for key, size in (("A", NUM_MNIST), ("C", CHUNK_SIZES[0])):
            problem = build(key, size)
            plain = peak_bytes(walk_call(problem, PLAIN, size)) / 2**20
            for name in ("frozen", "own", "linear layers")[: 2 if key == "A" else 3]:
                ours = peak_bytes(walk_call(problem, name, size)) / 2**20
                what = f"{problem.title}: {name}, peak MiB for a chunk of {size:,}"
                rows.append({"metric": what, "ours": ours, "peer": plain, "peer_name": PLAIN, "ratio": ours / plain})
    return rows


PARTS: Mapping[str, Callable[[], list[Row]]] = {
    "logistic": lambda: [*logistic_rows(False), *logistic_rows(True)],
    "cnn": lambda: [*cnn_rows(False), *cnn_rows(True)],
    "memory": memory_rows,
}


def run(*names: str) -> list[Row]:
    """Rows of the parts named, by default of all; none without a GPU."""
    unknown = set(names) - set(PARTS)
    if unknown:
        raise SystemExit(f"parts must be among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    if not torch.cuda.is_available():
        print("scores_cuda left out: torch sees no CUDA device here.")
        return []
    torch.backends.cudnn.benchmark = True
    rows = []
    for name in names or PARTS:
        part = PARTS[name]()
        rows += part
        for line in part:
            print(f"{line['metric']}: {line['ours']:.4g}, {line['ratio']:.3g} of {line['peer_name']}", flush=True)
    return rows
