"""The command line of the benchmark: which problems, methods, schedules; how many seeds and steps; on what."""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.parts.report import Row
from benchmarks.wallclock.campaign import AUTO, FIXED, OTHER_SEED, Campaign, Settings
from benchmarks.wallclock.cases import CASES, make_dense, thin
from benchmarks.wallclock.drawing import find_stream
from benchmarks.wallclock.progress import OutOfTimeError, Progress
from benchmarks.wallclock.rows import make_rows
from benchmarks.wallclock.store import Store
from benchmarks.wallclock.training import OPTIMIZERS, SCHEDULES
from dasgrad.experiments.problems import Problem

METHODS = ("last-layer", "loss:300", AUTO, FIXED)
RUNS = Path("runs/bench/wallclock.jsonl")
NUM_POINTS = 40
GOALS = {"training": "train_loss", "held-out": "test_loss"}
MOST_SEEDS = 500
QUICK_PROBLEMS = ("rare", "hopeless")
QUICK_SEEDS, QUICK_TUNING_SEEDS, QUICK_STEPS, QUICK_POINTS, QUICK_RATES = 2, 1, 60, 8, 1
QUICK_BATCH_SIZES, QUICK_SHARE = (32, 128), 40
"""A check that all works, on one example of 40; no measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--methods", nargs="+", default=METHODS, help=f"by default {' '.join(METHODS)}")
    parser.add_argument(
        "--optimizers", nargs="+", default=OPTIMIZERS, choices=OPTIMIZERS, help="of which each side takes the best"
    )
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, choices=SCHEDULES)
    parser.add_argument("--batch-sizes", nargs="+", type=int, help="to choose from; by default the problem's")
    parser.add_argument("--seeds", type=int, help="reported ones, at least 2; by default the problem's 10 or 5")
    parser.add_argument("--first-seed", type=int, default=0, help="of those reported; 0")
    parser.add_argument("--tuning-seeds", type=int, help="by default the problem's 5 or 1")
    parser.add_argument("--rates", type=int, help="how many learning rates of each grid, from its middle; all")
    parser.add_argument("--steps", type=int, help="T, uniform steps of the smallest batch; by default the problem's")
    parser.add_argument("--points", type=int, default=NUM_POINTS, help="evaluations of a run to 2T, divisible by 4")
    parser.add_argument(
        "--goal",
        choices=tuple(GOALS),
        default="training",
        help="the loss that both sides are tuned for and are to reach",
    )
    parser.add_argument("--device", help="by default cuda where there is one, else cpu")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time of this process, for one thread on a CPU that others use too",
    )
    parser.add_argument(
        "--captured",
        action=argparse.BooleanOptionalAction,
        help="steps of all methods in a CUDA graph, where that can be; by default on a GPU",
    )
    parser.add_argument("--threads", type=int, help="of torch; by default its own choice")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time, with --clock cpu alone; 1")
    parser.add_argument("--runs", type=Path, default=RUNS, help=f"file of finished runs, {RUNS} by default")
    parser.add_argument("--no-resume", action="store_true", help="measure anew what the file of runs has")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command again goes on")
    parser.add_argument("--quick", action="store_true", help="few steps, seeds and examples: a check that all works")
    parser.add_argument("--figure", type=Path, help="draw losses against seconds to this file")


def run(*names: str, options: argparse.Namespace) -> list[Row]:
    """Rows of the problems named; by default of all that this device can train."""
    if options.device is None:  # asked for here alone: after that, processes that are forked cannot train
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    check(names, options)
    device = torch.device(options.device)
    if options.threads is not None or options.quick:
        torch.set_num_threads(options.threads or 1)  # a check may run beside other work
    if options.no_resume:
        options.runs.unlink(missing_ok=True)
    store = Store(options.runs)
    if len(store):
        print(f"{options.runs}: {len(store)} records of earlier runs", file=sys.stderr)
    progress = Progress(options.minutes)
    rows: list[Row] = []
    try:
        for name in names or (QUICK_PROBLEMS if options.quick else default_problems(device)):
            rows += measure(name, options, device, store, progress)
    except OutOfTimeError as error:
        raise SystemExit(f"Out of time ({error}); the same command again goes on.") from None
    if options.figure is not None:
        from benchmarks.wallclock.figure import draw  # needs matplotlib, which measuring does not

        draw(rows, options.figure)
    return rows


def check(names: tuple[str, ...], options: argparse.Namespace) -> None:
    """Raises SystemExit for options that cannot be, before anything is measured."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"problems must be among {', '.join(CASES)}, got {', '.join(unknown)}.")
    for method in options.methods:
        if method not in (*OPTIMIZERS, FIXED):
            try:
                find_stream(method)
            except ValueError as error:
                raise SystemExit(f"--methods: {error}") from None
        if method == "reshuffled":
            raise SystemExit("--methods: reshuffled passes are adam, amsgrad and adamw, got 'reshuffled'.")
    if options.points < 4 or options.points % 4:
        raise SystemExit(f"--points must be a positive multiple of 4, got {options.points}.")
    if options.seeds is not None and options.seeds < 2:
        raise SystemExit(f"--seeds must be at least 2, of which an interval can be made, got {options.seeds}.")
    if options.clock == "cpu" and (options.threads != 1 or torch.device(options.device).type != "cpu"):
        raise SystemExit("--clock cpu measures one thread on a CPU: give --threads 1 --device cpu.")
    if options.processes > 1 and options.clock != "cpu":
        raise SystemExit(f"--processes above 1 needs --clock cpu, got {options.processes}.")
    if not 0 <= options.first_seed <= OTHER_SEED - MOST_SEEDS or (options.seeds or 0) > MOST_SEEDS:
        raise SystemExit(
            f"--first-seed must be from 0 to {OTHER_SEED - MOST_SEEDS} and --seeds at most {MOST_SEEDS}, got "
            f"{options.first_seed} and {options.seeds}."
        )
    for name in ("tuning_seeds", "rates", "steps", "processes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise SystemExit(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    if any(size < 1 for size in options.batch_sizes or ()):
        raise SystemExit(f"--batch-sizes must be positive, got {options.batch_sizes}.")


def default_problems(device: torch.device) -> tuple[str, ...]:
    """All problems, less those for a GPU where there is none; they can still be asked for by name."""
    left_out = [name for name, case in CASES.items() if case.needs_gpu and device.type == "cpu"]
    if left_out:
        print(f"left out on a CPU: {', '.join(left_out)}", file=sys.stderr)
    return tuple(name for name in CASES if name not in left_out)


def measure(
    name: str, options: argparse.Namespace, device: torch.device, store: Store, progress: Progress
) -> list[Row]:
    """Rows of one problem."""
    case, problem = CASES[name], CASES[name].build()
    sizes, num_points, num_rates = case.batch_sizes, options.points, options.rates
    num_seeds, num_tuning_seeds, num_steps = case.num_seeds, case.num_tuning_seeds, case.num_steps
    if options.quick:
        problem = thin(problem, QUICK_SHARE)
        num_seeds, num_tuning_seeds, num_steps = QUICK_SEEDS, QUICK_TUNING_SEEDS, QUICK_STEPS
        sizes, num_points, num_rates = QUICK_BATCH_SIZES, QUICK_POINTS, QUICK_RATES
    captured = device.type == "cuda" if options.captured is None else options.captured
    in_graph = captured and device.type == "cuda"
    problem, where = lay_out(problem.to(device), describe_place(device), in_graph=in_graph)
    left_out = set(OPTIMIZERS) - set(options.optimizers)
    settings = Settings(
        optimizers=tuple(options.optimizers),
        methods=tuple(name for name in dict.fromkeys(options.methods) if name not in left_out),
        schedules=tuple(options.schedules),
        num_seeds=options.seeds or num_seeds,
        num_tuning_seeds=options.tuning_seeds or num_tuning_seeds,
        num_steps=options.steps or num_steps,
        num_points=num_points,
        num_rates=num_rates,
        batch_sizes=tuple(sorted(options.batch_sizes or set(sizes) & set(case.batch_sizes))),
        device=device,
        clock=options.clock,
        where=where,
        captured=captured,
        first_seed=options.first_seed,
        num_processes=options.processes,
        goal=GOALS[options.goal],
    )
    campaign = Campaign(name, case, problem, settings, store, progress)
    try:
        found = campaign.measure()
    finally:
        campaign.close()
    return [row for comparison in found for row in make_rows(comparison)]


def lay_out(problem: Problem, where: str, *, in_graph: bool) -> tuple[Problem, str]:
    """The problem as its steps take it, and what seconds depend on with that: old runs of sparse rows are others."""
    laid_out = make_dense(problem) if in_graph else problem
    return laid_out, where if laid_out is problem else f"{where}, rows made dense"


def describe_place(device: torch.device) -> str:
    """What seconds depend on besides the configuration."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device.type}, {kind}, torch {torch.__version__}"
