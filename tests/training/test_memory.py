"""Earlier scores beside fresh ones: the mean that foretells best is found, and draws by it leave less."""

import itertools

import pytest
import torch

from dasgrad.training import AutoRefresh
from dasgrad.training.beliefs import FADING
from dasgrad.training.forecast import second_moment_left, weights_of
from dasgrad.training.memory import RETAINED, ScoreMemory
from training.auto_runs import CHEAP, build, build_timed, losses_of, train

NUM_EXAMPLES, FLOOR = 2000, 0.2
STEP = 10_000
"""Of all scores, where nothing is to fade."""


def draw_scores(lasting, generator):
    """Endless scores of which a share of the spread lasts, and the rest is of the moment."""
    own = torch.randn(NUM_EXAMPLES, generator=generator, dtype=torch.float64)
    while True:
        moment = torch.randn(NUM_EXAMPLES, generator=generator, dtype=torch.float64)
        yield (2 * (lasting**0.5 * own + (1 - lasting) ** 0.5 * moment)).exp()


def test_means_are_those_of_a_loop():
    """At growing steps; what is known fades by the square of how many times as old training is."""
    memory, generator = ScoreMemory(), torch.Generator().manual_seed(0)
    rows, steps = list(itertools.islice(draw_scores(0.5, generator), 4)), [5, 10, 40, 44]
    for k, scores in enumerate(rows):
        found = memory.learn("loss", scores, steps[k], FLOOR)
        squares = [row.square() / row.square().mean() for row in rows[: k + 1]]
        means, left = [squares[0]] * len(RETAINED), [0.0] * len(RETAINED)
        for time, fresh in enumerate(squares[1:], 1):
            lasting = (steps[time - 1] / steps[time]) ** 2
            for j, share in enumerate(RETAINED):
                now = second_moment_left(fresh.sqrt(), weights_of(means[j].sqrt(), FLOOR))
                left[j] = FADING * left[j] + now
                means[j] = share * lasting * means[j] + (1 - share * lasting) * fresh
        best = min(range(len(RETAINED)), key=left.__getitem__)
        torch.testing.assert_close(found, means[best].sqrt() * scores.square().mean().sqrt(), rtol=1e-12, atol=0)
        torch.testing.assert_close(memory.latest, squares[-1].sqrt(), rtol=1e-12, atol=0)


def test_a_step_before_the_last_one_fades_nothing():
    """Where the steps of another run are counted anew."""
    twins = [ScoreMemory(), ScoreMemory()]
    for steps, memory in zip(((7, 7), (7, 3)), twins, strict=True):
        scores = draw_scores(0.5, torch.Generator().manual_seed(0))
        for step in steps:
            memory.learn("loss", next(scores), step, FLOOR)
    assert torch.equal(twins[0]._squares_Kn, twins[1]._squares_Kn)


@pytest.mark.parametrize(("lasting", "best"), [(1.0, 0.0), (0.5, 0.7)])
def test_the_past_counts_where_scores_come_and_go_and_not_where_they_last(lasting, best):
    """By scores that last fresh ones are right at once; else the mean over many leaves a third less, by 2,000 draws."""
    memory, scores = ScoreMemory(), draw_scores(lasting, torch.Generator().manual_seed(1))
    for _ in range(12):
        fresh = next(scores)
        found = memory.learn("loss", fresh, STEP, FLOOR)
    assert RETAINED[memory._best] == best
    following = next(scores)
    by_memory = second_moment_left(following, weights_of(found, FLOOR))
    by_fresh = second_moment_left(following, weights_of(fresh, FLOOR))
    assert by_memory == pytest.approx(by_fresh) if lasting == 1 else by_memory < 0.67 * by_fresh


def test_after_a_turn_the_past_is_dropped():
    memory, generator = ScoreMemory(), torch.Generator().manual_seed(2)
    for scores in itertools.islice(draw_scores(0.5, generator), 8):
        memory.learn("loss", scores, STEP, FLOOR)
    assert RETAINED[memory._best] == 0.7
    others = next(draw_scores(1.0, generator))  # nothing to do with those before, and lasting
    for _ in range(6):
        memory.learn("loss", others, STEP, FLOOR)
    assert RETAINED[memory._best] < 0.7


@pytest.mark.parametrize("later", [0, STEP // 2])
def test_what_is_foretold_of_all_examples_is_what_would_be_learnt(later):
    memory, scores = ScoreMemory(), draw_scores(0.5, torch.Generator().manual_seed(1))
    for _ in range(12):
        memory.learn("loss", next(scores), STEP, FLOOR)
    fresh, best = next(scores), memory._best
    foretold = memory.foretell("loss", fresh, STEP + later, torch.arange(NUM_EXAMPLES))
    learnt = memory.learn("loss", fresh, STEP + later, FLOOR)
    assert memory._best == best > 0
    torch.testing.assert_close(foretold / foretold.mean(), learnt / learnt.mean(), rtol=1e-12, atol=0)
    some = torch.tensor([5, 9])
    assert torch.equal(memory.foretell("gradient", fresh[some], STEP, some), fresh[some])


def test_another_score_begins_anew():
    memory, scores = ScoreMemory(), draw_scores(0.5, torch.Generator().manual_seed(4))
    for _ in range(8):
        memory.learn("loss", next(scores), STEP, FLOOR)
    fresh = next(scores)
    torch.testing.assert_close(memory.learn("gradient", fresh, STEP, FLOOR), fresh)


@pytest.mark.parametrize("floor", [0.0, FLOOR])
def test_zeros_are_no_trouble(floor):
    memory = ScoreMemory()
    for scores in ([0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0]):
        assert bool(torch.isfinite(memory.learn("loss", torch.tensor(scores), STEP, floor)).all())


def test_a_state_is_a_copy_and_goes_on():
    memory, scores = ScoreMemory(), draw_scores(0.5, torch.Generator().manual_seed(5))
    for _ in range(5):
        memory.learn("loss", next(scores), STEP, FLOOR)
    state = memory.state_dict()
    fresh = next(scores)
    expected = memory.learn("loss", fresh, 2 * STEP, FLOOR)
    for _ in range(2):
        again = ScoreMemory.from_state_dict(state)
        assert torch.equal(again.learn("loss", fresh, 2 * STEP, FLOOR), expected)


class SquaredErrors:
    """A score of one's own that has another address in every copy."""

    def __call__(self, model, data):
        return losses_of(model(data[0]), data[1]).detach()


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("score", ["gradient", SquaredErrors()])
def test_auto_draws_by_what_its_memory_foretells(score, overlap, monkeypatch):
    monkeypatch.setattr(ScoreMemory, "_best", RETAINED.index(0.7))  # or draws would be by fresh scores, which last here
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP), score=score, overlap=overlap)
    refreshed = []
    # The step at which they were made: with overlap, 3 before they take effect.
    loader.on_refresh(lambda event: refreshed.append((event.scores.double(), event.step - overlap)))
    train(model, optimizer, loader, 120)
    memory = ScoreMemory()
    for scores, step in refreshed:
        expected = memory.learn("gradient", scores, step, loader.sampler.floor)
    assert len(refreshed) > 3
    assert loader.counter.state_dict()["memory"]["name"] == (score if score == "gradient" else "function")
    torch.testing.assert_close(loader.sampler.scores, expected, rtol=1e-6, atol=1e-9)


def test_all_that_is_foretold_is_for_the_step_at_hand(monkeypatch):
    """Of the exact score and of cheaper ones, which are tried where the exact one takes as long as 12 steps."""
    auto, parts, _ = build_timed()
    prices = {"gradient": 12.0, "last_layer": 1.0, "loss": 1.0}
    monkeypatch.setattr(auto._costs, "try_out", lambda *args: auto._costs.seconds.update(prices))
    monkeypatch.setattr(auto, "_look_seconds", 0.0)
    foretell, asked = ScoreMemory.foretell, []

    def note(self, name, scores, step, indices):
        asked.append((name, step, parts[-1].num_steps + 1))
        return foretell(self, name, scores, step, indices)

    monkeypatch.setattr(ScoreMemory, "foretell", note)
    train(*parts, 100)
    assert {name for name, *_ in asked} >= {"gradient", "last_layer"}
    assert all(step == now for _, step, now in asked)
