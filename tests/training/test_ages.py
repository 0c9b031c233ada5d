"""Scores of different ages on one scale: against a plain loop, on drift of known law, and in a training loop."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import dasgrad
from dasgrad.training.ages import AgedScores

POWERS, EDGES = (0.5, 0.75, 1.0), (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class PlainAges:
    """The specification: one example, one class, one power at a time."""

    def __init__(self, scores, step):
        self.scale = sum(scores) / len(scores)
        self.old, self.steps, self.mean = [s / self.scale for s in scores], [step] * len(scores), 1.0
        self.sums = {(k, p): [0.0, 0.0, 0.0] for k in range(len(EDGES) + 1) for p in POWERS}
        self.num = [0.0] * (len(EDGES) + 1)

    def class_of(self, step, then):
        return sum(math.log(step / then) > edge for edge in EDGES)

    def law(self, k):
        if k == 0:
            return 1.0, 1.0
        power = 1.0
        if self.num[k] >= 200:
            power = min(POWERS, key=lambda p: self.sums[k, p][0] * self.sums[k, p][2] * (1 + 0.12 * (1 - p)))
        squares, old_squares, _ = self.sums[k, power]
        return math.sqrt((squares + 50) / (old_squares + 50)), power

    def relative(self, step, i):
        factor, power = self.law(self.class_of(step, self.steps[i]))
        return factor * self.old[i] ** power

    def learn(self, step, indices, scores, weights):
        share = len(weights) / sum(weights)
        weights = [w * share for w in weights]
        found = sum(w * s for w, s in zip(weights, scores, strict=True))
        expected = sum(w * self.relative(step, i) for w, i in zip(weights, indices, strict=True))
        self.scale *= (found * self.mean / (self.scale * expected)) ** (len(scores) / (len(scores) + 256))
        fading = math.exp(-len(indices) / 4096)
        self.num = [fading * n for n in self.num]
        self.sums = {key: [fading * v for v in values] for key, values in self.sums.items()}
        for i, s, w in zip(indices, scores, weights, strict=True):
            k = self.class_of(step, self.steps[i])
            self.num[k] += w
            for p in POWERS:
                u = self.old[i] ** p
                for j, term in enumerate(((s / self.scale) ** 2 / (u + 0.25), u * u / (u + 0.25), u + 0.25)):
                    self.sums[k, p][j] += w * term
        for i, s in zip(indices, scores, strict=True):
            self.old[i], self.steps[i] = s / self.scale, step

    def present(self, step):
        relative = [self.relative(step, i) for i in range(len(self.old))]
        self.mean = sum(relative) / len(relative)
        return [self.scale * r for r in relative]


def lognormal(number, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.exp(spread * torch.randn(number, generator=generator, dtype=torch.float64))


def left(masses, scores, floor=0.2):
    """E_p[w²s²] over that of uniform draws."""
    weights = 1 / ((1 - floor) * masses / masses.mean() + floor)
    return float((weights * scores.square()).mean() / scores.square().mean())


def test_it_does_what_the_plain_loop_does():
    generator = torch.Generator().manual_seed(0)
    scores = lognormal(400, 1.0, 1)
    ages, plain = AgedScores(scores, 5), PlainAges(scores.tolist(), 5)
    for step in (5, 6, 7, 9, 14, 20, 40, 100):
        indices = torch.randperm(400, generator=generator)[:150]
        found = lognormal(150, 1.5, step) * step**-0.5
        weights = lognormal(150, 0.5, step + 1)
        ages.learn(step, indices, found, weights)
        plain.learn(step, indices.tolist(), found.tolist(), weights.tolist())
        torch.testing.assert_close(ages.present(step), torch.tensor(plain.present(step), dtype=torch.float64))


def test_a_common_factor_is_taken_back():
    """Scores fall to a tenth; only a random half is scored anew, and the others follow."""
    scores = lognormal(20_000, 1.0, 0)
    ages = AgedScores(scores, 100)
    indices = torch.randperm(20_000, generator=torch.Generator().manual_seed(1))[:10_000]
    ages.learn(150, indices, scores[indices] / 10)
    now = ages.present(150)
    torch.testing.assert_close(now[indices], scores[indices] / 10)
    torch.testing.assert_close(now, scores / 10, rtol=0.02, atol=0.0)  # 50 pairs of the prior among 10,000


@pytest.mark.parametrize(("power", "spread"), [(1.0, 0.3), (0.75, 0.5), (0.5, 1.0)])
def test_drift_of_known_law_is_found_and_little_variance_is_lost(power, spread):
    old = lognormal(40_000, 1.5, 0)
    now = 3 * old**power * lognormal(40_000, spread, 1)
    ages = AgedScores(old, 100)
    indices = torch.randperm(40_000, generator=torch.Generator().manual_seed(2))[:8000]
    ages.learn(180, indices, now[indices])
    factors, powers = ages.calibration()
    assert abs(float(powers[5]) - power) <= 0.25  # ln 1.8 is between 0.4 and 0.8
    if power == 1:  # √E[s²] of a lognormal, over the scale of now and that of then
        expected = 3 * math.exp(spread**2) * float(old.mean() / ages._scale)
        assert float(factors[5]) == pytest.approx(expected, rel=0.03)
    best = 3 * old**power * math.exp(spread**2)
    best[indices] = now[indices]
    assert left(ages.present(180), now) < 1.04 * left(best, now)
    assert left(ages.present(180), now) < 1.01 * left(old.index_copy(0, indices, now[indices]), now)


def test_examples_drawn_often_do_not_speak_for_the_others():
    """Large scores have fallen, small ones have not; draws by the old scores see mostly the large ones."""
    old = torch.ones(20_000, dtype=torch.float64)
    old[:2000] = 20.0
    now = torch.where(old > 1, 2.0, 1.0).double()
    probabilities = old / old.sum()
    indices = torch.multinomial(probabilities, 6000, replacement=True, generator=torch.Generator().manual_seed(0))
    weights = 1 / (20_000 * probabilities[indices])
    rest = torch.ones(20_000, dtype=torch.bool).index_fill_(0, indices, False)

    def lost(weights):
        ages = AgedScores(old, 100)
        ages.learn(150, indices, now[indices], weights)
        return left(ages.present(150)[rest], now[rest]), ages.calibration()

    weighted, (factors, powers) = lost(weights)
    plain, _ = lost(None)
    assert powers[5] < 1
    assert weighted <= plain
    num_large = float((weights * (old[indices] > 1)).sum() / weights.sum())
    assert num_large == pytest.approx(0.1, abs=0.02)
    assert bool(torch.isfinite(factors).all())


def drift(num_examples, num_ticks, seed, speed):
    """Log-scores that forget where they were by the logarithm of time, while all scores fall: (step, scores)."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.randn(num_examples, generator=generator, dtype=torch.float64)
    for tick in range(1, num_ticks + 1):
        kept = (tick / (tick + 1)) ** speed
        shock = torch.randn(num_examples, generator=generator, dtype=torch.float64)
        logs = kept * logs + math.sqrt(1 - kept**2) * shock
        yield 10 * tick, (1.5 * logs).exp() / tick


def left_by_slices(seed, speed, num_examples=6000, size=500, num_random=50):
    """Variance left on average by slices as they are, each over its mean, and on one scale: as many scores a step."""
    generator = torch.Generator().manual_seed(seed)
    totals = {"raw": 0.0, "mean": 0.0, "aged": 0.0}
    for step, scores in drift(num_examples, 40, seed, speed):
        if step == 10:
            raw, over_mean, ages = scores.clone(), scores / scores.mean(), AgedScores(scores, step)
            continue
        indices = (torch.arange(size) + step // 10 * size) % num_examples
        raw[indices] = scores[indices]
        over_mean[indices] = scores[indices] / scores[indices].mean()
        # A somewhat smaller slice, and some at random, which tell of all ages.
        share = size - num_random
        indices = (torch.arange(share) + step // 10 * share) % num_examples
        indices = torch.cat((indices, torch.randint(num_examples, (num_random,), generator=generator)))
        ages.learn(step, indices, scores[indices])
        for name, masses in (("raw", raw), ("mean", over_mean), ("aged", ages.present(step))):
            totals[name] += left(masses, scores)
    return totals


@pytest.mark.parametrize(("speed", "most"), [(1.0, 0.95), (0.3, 1.02)], ids=["fast", "slowly"])
def test_where_scores_age_fast_one_scale_leaves_less_and_elsewhere_costs_little(speed, most):
    found = [left_by_slices(seed, speed) for seed in range(8)]
    means = {name: sum(totals[name] for totals in found) for name in found[0]}
    assert means["aged"] < most * means["raw"]
    assert means["aged"] < most * means["mean"]


@pytest.mark.parametrize("number", [199, 200])
def test_a_power_below_one_needs_two_hundred_pairs(number):
    old = lognormal(400, 1.5, 0)
    ages = AgedScores(old, 100)
    ages.learn(180, torch.arange(number), 3 * old[:number].sqrt())
    assert (float(ages.calibration()[1][5]) < 1) == (number == 200)


def test_masses_are_brought_to_the_present_every_two_per_cent_of_the_steps():
    for then, due in ((1, 2), (40, 41), (100, 102), (1000, 1020)):
        ages = AgedScores(torch.ones(3), then)
        assert [step for step in range(then, due + 2) if ages.is_due(step)] == [due, due + 1]
        ages.present(due)
        assert not ages.is_due(due)


def test_every_part_of_a_state_is_kept():
    ages = AgedScores(lognormal(400, 1.0, 0), 5)
    fresh = ages.state_dict()
    for step in (10, 20):
        ages.learn(step, torch.arange(step, 300), lognormal(300 - step, 1.0, step))
        ages.present(step)
    state = ages.state_dict()
    assert not any(torch.equal(torch.as_tensor(state[key]), torch.as_tensor(fresh[key])) for key in fresh)
    again = AgedScores.from_state_dict(state, torch.device("cpu")).state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(torch.as_tensor(again[key]), torch.as_tensor(state[key])) for key in state)


def test_zeros_and_single_examples_do_no_harm():
    ages = AgedScores(torch.zeros(3), 1)
    ages.learn(2, torch.tensor([0]), torch.tensor([0.0]))
    ages.learn(3, torch.tensor([1, 1]), torch.tensor([2.0, 2.0]))
    ages.learn(4, torch.tensor([], dtype=torch.int64), torch.tensor([]))
    now = ages.present(4)
    assert bool(torch.isfinite(now).all())
    assert now[1] > 0


# --- in the loader --------------------------------------------------------------------------------------


def losses_of(outputs, targets):
    return (outputs[:, 0] - targets).square()


def build(refresh=10, seed=0, **options):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 3, generator=generator)
    noise = torch.randn(300, generator=generator)
    targets = inputs.sum(1) + torch.where(torch.arange(300) % 20 == 0, 30 * noise, 0.1 * noise)
    model = nn.Linear(3, 1)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, losses_of, optimizer, score="gradient")
    loader = dasgrad.AdaptiveLoader((inputs, targets), 8, scorer=scorer, refresh=refresh, seed=seed, **options)
    return model, optimizer, loader


def train(model, optimizer, loader, num_steps, each=lambda batch: None):
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(batches, num_steps):
        optimizer.zero_grad()
        with loader.scorer.listen(batch) as heard:
            batch.weighted_mean(losses_of(model(batch.inputs), batch.targets)).backward()
        loader.update(batch.indices, heard.scores, batch.weights)
        optimizer.step()
        each(batch)


def test_with_updates_the_weights_stay_those_of_the_draw():
    """Unbiased, by enumeration: at every step Σ p w g is the mean gradient, and a batch has the weights of its p."""
    model, optimizer, loader = build(refresh=7)
    weights = [loader.sampler.weights]

    def check(batch):
        sampler = loader.sampler
        assert float((sampler.probabilities * sampler.weights).sum()) == pytest.approx(1.0)
        torch.testing.assert_close(
            sampler.probabilities * sampler.weights, torch.full((300,), 1 / 300, dtype=torch.float64)
        )
        assert bool((sampler.weights <= 1 / sampler.floor + 1e-9).all())
        if loader.num_steps % 7 != 0:  # no refresh before this draw
            torch.testing.assert_close(batch.weights, weights[-1][batch.indices])
        weights.append(sampler.weights)

    train(model, optimizer, loader, 40, check)


def test_a_state_with_updates_goes_on_bit_for_bit():
    model, optimizer, loader = build()
    train(model, optimizer, loader, 33)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), loader.state_dict()))
    again = build()
    for part, saved in zip(again, state, strict=True):
        part.load_state_dict(saved)
    found = [[], []]
    train(model, optimizer, loader, 40, lambda batch: found[0].append(batch.indices))
    train(*again, 40, lambda batch: found[1].append(batch.indices))
    assert torch.equal(torch.cat(found[0]), torch.cat(found[1]))
    assert torch.equal(loader.sampler.probabilities, again[2].sampler.probabilities)


def test_scores_computed_beside_training_are_as_old_as_the_model_they_are_of():
    """Of step 8, in effect from step 11 on; then of step 16, from step 19 on."""
    model, optimizer, loader = build(refresh=8, overlap=3)
    for num_steps, computed_at, then in ((10, 8, 11), (8, 16, 19)):
        train(model, optimizer, loader, num_steps)
        assert loader.num_steps == then - 1
        next(iter(loader))  # before whose draw they take effect
        loader.update(torch.tensor([3, 5]), torch.tensor([1.0, 2.0]))
        steps = loader.state_dict()["ages"]["steps"]
        assert steps[[3, 5]].tolist() == [then, then]
        others = torch.ones(300, dtype=torch.bool).index_fill_(0, torch.tensor([3, 5]), False)
        assert (steps[others] == computed_at).all()


def test_a_state_remembers_when_scores_were_computed():
    _, optimizer, loader = build(refresh=5)
    for _ in itertools.islice(loader, 6):
        optimizer.step()
    again = build(refresh=5)[2]
    again.load_state_dict(loader.state_dict())
    again.update(torch.tensor([0]), torch.tensor([1.0]))
    assert again.state_dict()["ages"]["steps"].tolist() == [7.0] + [5.0] * 299


def test_the_masses_of_others_follow_those_that_are_scored_anew():
    model, optimizer, loader = build(refresh=1000)
    loader.refresh()
    before = loader.sampler.scores
    for _ in range(60):
        optimizer.step()
    with torch.no_grad():
        model.weight.fill_(20.0)
    indices = torch.arange(0, 300, 3)
    loader.refresh(indices)
    expected = AgedScores(before, 1)
    expected.learn(61, indices, loader.scorer(loader.examples_for_scoring(indices)))
    torch.testing.assert_close(loader.sampler.scores, expected.present(61))
    assert not torch.isclose(loader.sampler.scores[1::3], before[1::3], rtol=0.1).any()


def test_before_the_first_refresh_updates_do_nothing():
    model, optimizer, loader = build(refresh=1000)
    train(model, optimizer, loader, 5, lambda batch: None)
    loader.refresh(torch.arange(10))
    assert not loader.sampler.refreshed
    assert bool((loader.sampler.weights == 1).all())


def test_some_examples_are_rescored_and_the_others_keep_their_place(monkeypatch):
    model, _, loader = build(refresh=1000, scoring_chunk_size=16)
    loader.refresh()
    before = loader.sampler.scores
    score, sizes = dasgrad.ExampleScorer.__call__, []
    monkeypatch.setattr(
        dasgrad.ExampleScorer, "__call__", lambda self, data: (sizes.append(len(data[0])), score(self, data))[1]
    )
    with torch.no_grad():
        model.weight.mul_(2.0)
    indices = torch.arange(0, 300, 3)
    loader.refresh(indices)
    assert sizes == [16] * 6 + [4]
    exact = loader.scorer(loader.examples_for_scoring(indices)).double()
    torch.testing.assert_close(loader.sampler.scores[indices], exact)
    torch.testing.assert_close(loader.sampler.scores[1::3], before[1::3])


@pytest.mark.parametrize("policy", ["raise", "keep"])
def test_a_score_that_is_not_finite_is_refused_or_left_out(policy):
    _, _, loader = build(nonfinite=policy)
    loader.refresh()
    before = loader.sampler.scores
    indices, scores = torch.tensor([4, 5]), torch.tensor([math.nan, 9.0])
    if policy == "raise":
        with pytest.raises(ValueError, match="finite and non-negative, got nan at position 0"):
            loader.update(indices, scores)
        torch.testing.assert_close(loader.sampler.scores, before)
    else:
        loader.update(indices, scores)
        torch.testing.assert_close(loader.sampler.scores[4:6], torch.stack((before[4], before.new_tensor(9.0))))


def test_without_a_scorer_ages_are_unknown():
    loader = dasgrad.AdaptiveLoader((torch.randn(4, 2), torch.randn(4)), 2)
    loader.sampler.refresh([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"AdaptiveLoader.update` needs `scorer`"):
        loader.update(torch.tensor([0]), torch.tensor([1.0]))


def test_examples_drawn_from_a_target_of_ones_own_keep_it():
    """With updates Σ p w is still the target's, and examples of target 0 are never drawn."""
    target = torch.arange(300, dtype=torch.float64)
    target /= target.sum()
    sampler = dasgrad.AdaptiveSampler(300, 8, target=target, floor=0.1)
    model, optimizer, loader = build()
    loader = dasgrad.AdaptiveLoader(loader.dataset, scorer=loader.scorer, sampler=sampler, refresh=10)
    drawn = []
    train(model, optimizer, loader, 60, lambda batch: drawn.append(batch.indices))
    torch.testing.assert_close(sampler.probabilities * sampler.weights, target)
    assert 0 not in torch.cat(drawn).tolist()


def test_a_loader_let_go_of_does_not_stop_the_optimizer():
    model, optimizer, first = build()
    second = dasgrad.AdaptiveLoader(first.dataset, 8, scorer=first.scorer, refresh=10)
    del first
    train(model, optimizer, second, 3)
    assert second.num_steps == 3
    assert len(optimizer._optimizer_step_post_hooks) == 1
