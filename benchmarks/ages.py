"""What do partial refreshes leave of the variance? Rules replayed on recorded scores, and in training.

Along a run that draws by fresh scores, those of all n examples are recorded after every 10 steps. A rule is then run on
the record, as if it saw no scores but those it asks for, and what its draws leave, E_p[w²s²] under a floor of 0.2, is
taken as a share of uniform draws'. The batch's scores are those of the next recording. Cost is the number of scores
over n, those of the batch not counted. ``ours`` is what a rule leaves, ``peer`` what all scores at every recording do.
In training ``ours`` is the loss on the training set, ``peer`` that of uniform draws.

Parts: mnist-falling, mnist, rare, imdb and by-heart are records; training is the loss of mnist-falling, and
training-by-heart that of a network which learns its examples by heart.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import dasgrad
from benchmarks.parts.refreshes import (
    BATCH_SIZE,
    EVERY,
    FLOOR,
    FRESH,
    REMEMBERED,
    RULES,
    TRAINED,
    UNIFORM,
    AsTheyAre,
    Choice,
    Rule,
    replay,
)
from benchmarks.parts.report import Row
from benchmarks.wallclock.cases import CASES, Case, thin
from dasgrad.experiments import cifar10
from dasgrad.experiments.datasets import Split, load_cifar10
from dasgrad.experiments.problems import Problem, count_correct, cross_entropy
from dasgrad.training.ages import AgedScores

NUM_EARLY = 300
"""Steps that are reported apart."""
QUICK_SEEDS, QUICK_STEPS, QUICK_SHARE = 2, 340, 40
"""A check that all works, on one example of 40; no measurement."""


@dataclass(frozen=True)
class Setting:
    """What is trained."""

    title: str
    case: Case
    lr: float
    falling: bool = False
    """α/√t."""
    num_steps: int = 1500
    """Of a record."""
    num_training_steps: int = 2000


def build_by_heart() -> Problem:
    """8,000 pictures of CIFAR-10 at half the size, and a network of three layers that can learn them by heart."""
    data = cifar10.standardise(load_cifar10())
    parts = [
        (functional.avg_pool2d(torch.as_tensor(inputs)[:8000], 2).flatten(1), targets[:8000])
        for inputs, targets in (data.train, data.test)
    ]
    return Problem(Split(*parts), make_deep, cross_entropy, count_correct)


def make_deep(seed: int) -> nn.Module:
    """768-128-64-10."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        return nn.Sequential(*layers)


BY_HEART = Case("8,000 pictures, MLP", build_by_heart, 9000, (1e-3,), ())
SETTINGS = {
    "mnist-falling": Setting("MNIST, logistic, α/√t", CASES["mnist"], 0.1, falling=True),
    "mnist": Setting("MNIST, logistic, constant α", CASES["mnist"], 1e-3),
    "rare": Setting("rare events, MLP", CASES["rare"], 3e-3),
    "imdb": Setting("IMDB, logistic", CASES["imdb"], 1e-2),
    "by-heart": Setting(BY_HEART.title, BY_HEART, 1e-3, num_steps=9000, num_training_steps=9000),
}
TRAINING = {"training": ("mnist-falling", TRAINED), "training-by-heart": ("by-heart", REMEMBERED)}


def make_loader(setting: Setting, problem: Problem, seed: int, num_steps: int) -> dasgrad.AdaptiveLoader:
    """Draws are uniform until it is given scores."""
    case, model = setting.case, problem.make_model(seed)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=setting.lr, weight_decay=case.weight_decay)
    scorer = dasgrad.ExampleScorer(model, problem.loss_fn, optimizer, **case.scorer)
    return dasgrad.AdaptiveLoader(
        problem.data.train,
        scorer=scorer,
        sampler=dasgrad.AdaptiveSampler(problem.num_examples, BATCH_SIZE, floor=FLOOR, seed=seed),
        refresh=num_steps + 1,
        scoring_chunk_size=problem.chunk_size,
    )


def train(setting: Setting, problem: Problem, loader: dasgrad.AdaptiveLoader, num_steps: int) -> Iterator[int]:
    """Take steps; comes back at the times 1, 2, …, which are EVERY steps apart, before the next draw."""
    scorer, optimizer = loader.scorer, loader.optimizer
    assert scorer is not None
    assert optimizer is not None
    schedule = dasgrad.InverseSqrtLR(optimizer) if setting.falling else None
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for step in range(num_steps):
        if step > 0 and step % EVERY == 0:
            yield step // EVERY
        batch = next(batches)
        optimizer.zero_grad()
        batch.weighted_mean(problem.loss_fn(scorer.model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def record_scores(setting: Setting, problem: Problem, seed: int, num_steps: int) -> Tensor:
    """Scores of all examples ``[times, n]`` along a run that draws by them."""
    loader = make_loader(setting, problem, seed, num_steps)
    rows: list[Tensor] = []
    loader.on_refresh(lambda event: rows.append(event.scores.float()))
    for _ in train(setting, problem, loader, num_steps):
        loader.refresh()
    return torch.stack(rows)


def train_by(rule: Rule, setting: Setting, problem: Problem, seed: int, num_steps: int) -> tuple[float, float]:
    """The loss on the training set in the end, and the cost."""
    loader = make_loader(setting, problem, seed, num_steps)
    scorer, sampler = loader.scorer, loader.sampler
    assert scorer is not None
    choice = Choice(rule, problem.num_examples, seed)
    masses: AsTheyAre | AgedScores | None = None
    for time in train(setting, problem, loader, num_steps):
        if not choice.is_due(time):
            continue
        indices = choice.choose(time, sampler.scores)
        if masses is None or rule.rescored == "all":
            loader.refresh()
            if masses is None:
                masses = rule.masses(sampler.scores, EVERY * time)
            else:
                masses.learn(EVERY * time, indices, sampler.scores)
            sampler.refresh(masses.present(EVERY * time))
        elif rule.masses is AgedScores:
            loader.refresh(indices)
        else:
            masses.learn(EVERY * time, indices, scorer(loader.examples_for_scoring(indices)).double())
            sampler.refresh(masses.present(EVERY * time))
    inputs, targets = problem.data.train
    with torch.no_grad():
        loss = float(problem.loss_fn(scorer.model(inputs), targets).double().mean())
    return loss, choice.num_scored / problem.num_examples


# --- rows -------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of a record; by default 1500, 9000 for by-heart")
    parser.add_argument("--training-steps", type=int, help="by default 2000, 9000 for by-heart")
    parser.add_argument("--quick", action="store_true", help="few steps, seeds and examples: a check that all works")


def run(*parts: str, options: argparse.Namespace) -> list[Row]:
    """Rows of the parts named, by default all."""
    unknown = [part for part in parts if part not in (*SETTINGS, *TRAINING)]
    if unknown:
        raise SystemExit(f"parts must be among {', '.join((*SETTINGS, *TRAINING))}, got {', '.join(unknown)}.")
    num_seeds = QUICK_SEEDS if options.quick else options.seeds
    if num_seeds < 2:
        raise SystemExit(f"--seeds must be at least 2, of which an error can be made, got {num_seeds}.")
    for number in (options.steps, options.training_steps):
        if number is not None and number <= 2 * EVERY:
            raise SystemExit(f"--steps and --training-steps must be above {2 * EVERY}, got {number}.")
    rows = []
    for part in parts or (*SETTINGS, *TRAINING):
        name, rules = TRAINING.get(part, (part, RULES))
        chosen = SETTINGS[name]
        problem = chosen.case.build()
        num_steps, num_training_steps = options.steps or chosen.num_steps, options.training_steps
        if options.quick:
            problem = thin(problem, QUICK_SHARE)
            num_steps = num_training_steps = QUICK_STEPS
        if part in TRAINING:
            rows += measure_training(chosen, problem, rules, num_seeds, num_training_steps or chosen.num_training_steps)
        else:
            rows += measure_record(chosen, problem, num_seeds, num_steps)
    return rows


def measure_record(setting: Setting, problem: Problem, num_seeds: int, num_steps: int) -> list[Row]:
    """Two rows a rule, for the first steps and the others."""
    left: dict[Rule, list[Tensor]] = {rule: [] for rule in RULES}
    costs = {}
    for seed in range(num_seeds):
        record = record_scores(setting, problem, seed, num_steps)
        for rule in RULES:
            print(f"{setting.title}, seed {seed + 1} of {num_seeds}: {rule.name}", file=sys.stderr)
            found, costs[rule] = replay(record, rule, seed)
            left[rule].append(found)
    last = EVERY * len(record)
    middle = min(NUM_EARLY, last)
    rows = []
    for start, stop in ((EVERY, middle), (middle, last)):  # at the first time every rule has fresh scores
        means = {rule: [float(x[start // EVERY : stop // EVERY].mean()) for x in left[rule]] for rule in RULES}
        for rule in RULES if start < last else ():
            steps = f"{start + EVERY} to {stop}"
            rows.append(
                {
                    "metric": f"{setting.title}, steps {steps}, second moment left by: {rule.name}",
                    **_compare(means[rule], means[FRESH], FRESH.name),
                    "cost": costs[rule],
                    "problem": setting.title,
                    "rule": rule.name,
                    "steps": steps,
                }
            )
    return rows


def measure_training(
    setting: Setting, problem: Problem, rules: Sequence[Rule], num_seeds: int, num_steps: int
) -> list[Row]:
    """A row a rule."""
    losses: dict[Rule, list[float]] = {rule: [] for rule in rules}
    costs = {}
    for seed, rule in itertools.product(range(num_seeds), rules):
        print(f"{setting.title}, training, seed {seed + 1} of {num_seeds}: {rule.name}", file=sys.stderr)
        loss, costs[rule] = train_by(rule, setting, problem, seed, num_steps)
        losses[rule].append(loss)
    return [
        {
            "metric": f"{setting.title}, loss after {num_steps} steps: {rule.name}",
            **_compare(losses[rule], losses[UNIFORM], UNIFORM.name),
            "cost": costs[rule],
            "problem": setting.title,
            "rule": rule.name,
        }
        for rule in rules
    ]


def _compare(ours: Sequence[float], peer: Sequence[float], peer_name: str) -> Row:
    mean, peer_mean = statistics.fmean(ours), statistics.fmean(peer)
    return {
        "ours": mean,
        "peer": peer_mean,
        "peer_name": peer_name,
        "ratio": mean / peer_mean,
        "standard_error": statistics.stdev(ours) / len(ours) ** 0.5,
        "num_seeds": len(ours),
    }


def make_table(rows: Sequence[Row]) -> list[str]:
    """What each rule leaves of uniform draws' second moment, early / later; then losses of training."""
    records, trained = ([row for row in rows if ("steps" in row) == kind] for kind in (True, False))
    lines = []
    if records:
        problems = list(dict.fromkeys(row["problem"] for row in records))
        steps = " / ".join(dict.fromkeys(row["steps"] for row in records))
        lines += [f"E_p[w²s²] as a share of uniform draws', mean of {records[0]['num_seeds']} runs, steps {steps}.\n"]
        lines += ["| rule | cost | " + " | ".join(problems) + " |", "|---" * (len(problems) + 2) + "|"]
        for rule in dict.fromkeys(row["rule"] for row in records):
            mine = [row for row in records if row["rule"] == rule]
            cells = [" / ".join(f"{row['ours']:.3f}" for row in mine if row["problem"] == name) for name in problems]
            lines.append(f"| {rule} | {mine[0]['cost']:.3g} | " + " | ".join(cells) + " |")
    for name in dict.fromkeys(row["problem"] for row in trained):
        mine = [row for row in trained if row["problem"] == name]
        lines += [""] if lines else []
        lines += [f"{name}, in training, mean of {mine[0]['num_seeds']} seeds.\n"]
        lines += ["| rule | cost | loss | standard error |", "|---|---|---|---|"]
        for row in mine:
            lines.append(f"| {row['rule']} | {row['cost']:.3g} | {row['ours']:.4f} | {row['standard_error']:.4f} |")
    return lines
