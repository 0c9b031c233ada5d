"""The join: what is drawn, when it is rescored, that weights travel, and that a pass can be resumed."""

import gc
import pickle
import random
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dasgrad
import helpers


def build(n=12, batch_size=3, refresh=4, dataset=None, sampler=None, dtype=torch.float64, **options):
    inputs, targets, model = helpers.regression(n, dtype=dtype)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    data = TensorDataset(inputs, targets) if dataset is None else dataset(inputs, targets)
    sampler = dasgrad.AdaptiveSampler(n, batch_size, seed=3) if sampler is None else sampler
    loader = dasgrad.AdaptiveLoader(data, sampler=sampler, scorer=scorer, refresh=refresh, **options)
    return model, optimizer, loader


def train(model, optimizer, batch):
    optimizer.zero_grad()
    loss = batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets))
    loss.backward()
    optimizer.step()


def test_batches_hold_the_examples_and_weights_that_were_drawn():
    model, optimizer, loader = build(refresh=1)
    inputs, targets = loader.dataset.tensors
    assert len(loader) == 4
    num_batches = 0
    for batch in loader:
        num_batches += 1
        assert torch.equal(batch.inputs, inputs[batch.indices])
        assert torch.equal(batch.targets, targets[batch.indices])
        torch.testing.assert_close(batch.weights, loader.sampler.weights[batch.indices], rtol=1e-12, atol=0)
        train(model, optimizer, batch)
    assert num_batches == 4


@pytest.mark.parametrize(
    "dataset",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: (x, y),
        helpers.Rows,
        lambda x, y: list(zip(x, y, strict=True)),
    ],
    ids=["TensorDataset", "tuple", "map-style", "list"],
)
def test_every_kind_of_data_set_gives_the_same_batches(dataset):
    expected = [b.inputs for b in build(refresh=1)[2]]
    got = [b.inputs for b in build(refresh=1, dataset=dataset)[2]]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_refresh_comes_before_the_draw_of_every_jth_step_across_passes():
    model, optimizer, loader = build(refresh=5)
    seen = []
    loader.on_refresh(lambda event: seen.append((event.step, len(event.scores), event.seconds > 0)))
    for _ in range(4):
        for batch in loader:
            train(model, optimizer, batch)
    assert loader.num_steps == 16
    assert seen == [(5, 12, True), (10, 12, True), (15, 12, True)]


def test_accumulated_batches_and_skipped_steps_do_not_count():
    model, optimizer, loader = build(refresh=3)
    seen = []
    stop = loader.on_refresh(lambda event: seen.append(event.step))
    for _ in range(3):
        for k, batch in enumerate(loader):
            helpers.squared_losses(model(batch.inputs), batch.targets).sum().backward()
            if k % 2:
                optimizer.step()
    assert loader.num_steps == 6
    assert seen == [3, 6]
    stop()
    loader.refresh()
    assert seen == [3, 6]


def test_the_default_refreshes_once_a_pass():
    model, optimizer, loader = build(refresh=None)
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    for _ in range(3):
        for batch in loader:
            train(model, optimizer, batch)
    assert seen == [4, 8, 12]


def test_the_hook_on_the_optimizer_goes_with_the_loader():
    model, optimizer, loader = build()
    assert len(optimizer._optimizer_step_post_hooks) == 1
    batch = next(iter(loader))
    del loader
    gc.collect()
    train(model, optimizer, batch)
    assert not optimizer._optimizer_step_post_hooks


def test_a_loader_can_take_the_place_of_another_with_the_same_optimizer():
    model, optimizer, loader = build()
    loader = dasgrad.AdaptiveLoader(loader.dataset, 3, scorer=loader.scorer, refresh=4)
    for batch in loader:
        train(model, optimizer, batch)
    assert loader.num_steps == len(loader)


def test_weights_are_right_under_workers_with_prefetch_while_the_tree_is_refreshed():
    """Each weight must be the one of the moment of its draw: recorded at the draw, compared at the end."""
    model, optimizer, loader = build(
        n=120, batch_size=4, refresh=2, dataset=helpers.Rows, num_workers=2, prefetch_factor=4
    )
    drawn, original = [], loader.sampler.draw

    def recording_draw(num=None):
        indices, weights = original(num)
        torch.testing.assert_close(weights, loader.sampler.weights[indices], rtol=1e-9, atol=0)
        drawn.append((indices, weights, loader.num_steps))
        return indices, weights

    loader.sampler.draw = recording_draw
    stale = 0
    for k, batch in enumerate(loader):
        indices, weights, _ = drawn[k]
        assert torch.equal(batch.indices, indices)
        assert torch.equal(batch.weights, weights)
        assert torch.equal(batch.inputs, loader.dataset.inputs[indices])
        stale += not torch.allclose(batch.weights, loader.sampler.weights[batch.indices])
        train(model, optimizer, batch)
    assert k == 29
    assert stale > 10  # the tree has moved on under draws in flight, so the test sees what it is for
    assert drawn[8][2] == 0  # 2 workers × 4 batches are drawn before the first step
    assert drawn[-1][2] > 15


def test_in_memory_data_through_workers_and_a_collate_function():
    *_, loader = build(dataset=lambda x, y: (x, y), num_workers=1, collate_fn=collate_as_dict)
    batch = next(iter(loader))
    assert set(batch.data) == {"x", "y"}
    assert batch.data["x"].shape == (3, 3)


def collate_as_dict(examples):
    return {"x": torch.stack([x for x, _ in examples]), "y": torch.stack([y for _, y in examples])}


def test_dict_batches_and_a_dict_of_tensors():
    inputs, targets, model = helpers.regression()
    optimizer = torch.optim.AdamW(model.parameters())
    scorer = dasgrad.ExampleScorer(
        model, optimizer=optimizer, losses=lambda m, d: helpers.squared_losses(m(d["x"]), d["y"])
    )
    loader = dasgrad.AdaptiveLoader({"x": inputs, "y": targets}, 4, scorer=scorer, refresh=1)
    for batch in loader:
        assert torch.equal(batch.data["x"], inputs[batch.indices])
    assert loader.sampler.refreshed


def test_scoring_dataset_is_what_is_scored():
    inputs, targets, model = helpers.regression()
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    clean = TensorDataset(inputs * 2, targets)
    loader = dasgrad.AdaptiveLoader(TensorDataset(inputs, targets), 4, scorer=scorer, refresh=1, scoring_dataset=clean)
    next(iter(loader))
    torch.testing.assert_close(loader.sampler.scores, scorer.score_dataset(clean))


@pytest.mark.parametrize("options", [{}, {"dataset": helpers.Rows}, {"dataset": helpers.Rows, "num_workers": 2}])
def test_a_resumed_pass_goes_on_with_the_same_batches_and_steps(options):
    model, optimizer, loader = build(n=60, refresh=3, **options)
    expected, state, stopped = [], None, 7
    for _ in range(2):
        for batch in loader:
            train(model, optimizer, batch)
            expected.append((batch.indices, batch.weights, model.weight.detach().clone()))
            if len(expected) == stopped:
                state = pickle.loads(pickle.dumps((model.state_dict(), optimizer.state_dict(), loader.state_dict())))
    model, optimizer, loader = build(n=60, refresh=3, **options)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    loader.load_state_dict(state[2])
    got = []
    for _ in range(2):
        for batch in loader:
            train(model, optimizer, batch)
            got.append((batch.indices, batch.weights, model.weight.detach().clone()))
    assert len(got) == len(expected) - stopped
    for ours, theirs in zip(got, expected[stopped:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_pass_cannot_go_on_after_its_loader_was_taken_elsewhere():
    *_, loader = build()
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="is over: another one was started, or a state was loaded"):
        next(batches)
    assert len(list(loader)) == len(loader) - 1


@pytest.mark.parametrize("options", [{}, {"dataset": helpers.Rows}, {"dataset": helpers.Rows, "num_workers": 1}])
def test_a_batch_that_the_loop_let_go_of_is_gone_before_the_next_is_made(options):
    *_, loader = build(**options)
    batches = iter(loader)
    for batch in batches:
        inputs = weakref.ref(batch.inputs)
        del batch
        assert inputs() is None


class Augmented(helpers.Rows):
    """Adds noise of every global generator to the targets."""

    def __getitem__(self, index):
        noise = torch.rand(()).item() + np.random.random() + random.random()  # noqa: NPY002 (the global one is meant)
        return self.inputs[index], self.targets[index] + noise


@pytest.mark.filterwarnings("ignore:AdaptiveLoader. no step of its optimizer")
def test_augmentation_in_workers_depends_on_seed_and_batch_alone():
    def targets(num_workers, seed=3, **options):
        sampler = dasgrad.AdaptiveSampler(30, 3, seed=seed)
        *_, loader = build(n=30, refresh=1000, dataset=Augmented, sampler=sampler, num_workers=num_workers, **options)
        return torch.stack([batch.targets for _ in range(2) for batch in loader])

    expected = targets(1)
    assert torch.equal(expected, targets(2, prefetch_factor=1))
    assert torch.equal(expected, targets(2, persistent_workers=True))
    assert not torch.isclose(expected, targets(1, seed=4)).any()
    assert len(expected.unique()) == expected.numel()


def seed_of_worker(worker_id):
    Seen.seed = torch.initial_seed()


class Seen(helpers.Rows):
    def __getitem__(self, index):
        return self.inputs[index], torch.tensor(Seen.seed)


@pytest.mark.filterwarnings("ignore:AdaptiveLoader. no step of its optimizer")
def test_workers_are_initialised_by_a_seed_of_the_pass_also_when_it_is_resumed():
    def make():
        return build(dataset=Seen, num_workers=1, worker_init_fn=seed_of_worker, refresh=1000)[2]

    loader, state, seen = make(), None, []
    for number in range(2):
        for position, batch in enumerate(loader):
            seen.append(batch.targets[0])
            if (number, position) == (1, 0):
                state = loader.state_dict()
    assert len(set(map(int, seen[:4]))) == 1
    assert len(set(map(int, seen))) == 2
    resumed = make()
    resumed.load_state_dict(state)
    assert [int(batch.targets[0]) for batch in resumed] == list(map(int, seen[5:]))


def test_leaving_a_pass_early_starts_a_fresh_one():
    *_, loader = build()
    next(iter(loader))
    assert len(list(loader)) == len(loader)


def test_a_foreign_state_is_refused_and_changes_nothing():
    *_, loader = build()
    state = loader.state_dict()
    with pytest.raises(ValueError, match="versions 2 and 3, got 1"):
        loader.load_state_dict({**state, "version": 1})
    with pytest.raises(ValueError, match="refresh=9, got 4"):
        loader.load_state_dict({**state, "schedule": {**state["schedule"], "interval": 9}})
    assert loader.state_dict()["schedule"] == state["schedule"]


def poisoned(value, position=5, **options):
    def dataset(inputs, targets):
        inputs = inputs.clone()
        inputs[position] = value
        return TensorDataset(inputs, targets)

    return build(refresh=1, dataset=dataset, **options)


def test_a_nan_loss_in_a_refresh_is_named_and_the_tree_keeps_its_state():
    _, _, loader = poisoned(float("nan"))
    loader.sampler.refresh(torch.arange(12.0))
    before = loader.sampler.probabilities
    with pytest.raises(ValueError, match=r"1 of 12 examples .*indices 5; the first is nan"):
        next(iter(loader))
    assert torch.equal(before, loader.sampler.probabilities)


def test_a_nan_loss_can_be_lived_with():
    _, _, loader = poisoned(float("nan"), nonfinite="keep")
    with pytest.warns(UserWarning, match=r"indices 5.*keep their last scores"):
        loader.refresh()
    first = loader.sampler.scores
    others = torch.arange(12) != 5
    torch.testing.assert_close(first[5], first[others].mean())
    loader.sampler.update([5], [123.0])
    with pytest.warns(UserWarning, match="indices 5"):
        loader.refresh()
    torch.testing.assert_close(loader.sampler.scores[5], torch.tensor(123.0, dtype=torch.float64))
    torch.testing.assert_close(loader.sampler.scores[others], first[others])


def test_batch_norm_in_training_mode_warns_once_naming_the_modules():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    inputs, targets, _ = helpers.regression(dtype=torch.float32)
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs, targets), 4, scorer=scorer, refresh=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            train(model, optimizer, batch)
    assert [str(w.message).split(". ")[0] for w in caught] == ["BatchNorm in training mode: 1"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def simple_scorer(**options):
    _, _, model = helpers.regression()
    optimizer = dasgrad.DASGrad(model.parameters(), **options.pop("optimizer", {}))
    return dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer, **options)


DATA = TensorDataset(torch.zeros(12, 3), torch.zeros(12))
BAD_ARGUMENTS = [
    (lambda: dasgrad.AdaptiveLoader(Stream(), 2), TypeError, "map-style.*IterableDataset"),
    (
        lambda: dasgrad.AdaptiveLoader(DataLoader(DATA), 2),
        TypeError,
        "must be a data set, got a DataLoader",
    ),
    (lambda: dasgrad.AdaptiveLoader([], 2), ValueError, "at least one example, got 0"),
    (lambda: dasgrad.AdaptiveLoader(torch.zeros(0, 3), 2), ValueError, "at least one example, got 0"),
    (lambda: dasgrad.AdaptiveLoader(DATA, 0), ValueError, "batch_size=.*positive integer, got 0"),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, 3, sampler=dasgrad.AdaptiveSampler(12, 4)),
        ValueError,
        "batch_size=.*sampler's, 4, got 3",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, sampler=dasgrad.AdaptiveSampler(11, 4)),
        ValueError,
        "num_examples=12.*got 11",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, sampler=dasgrad.AdaptiveSampler(12, 4), seed=3),
        ValueError,
        "seed=.*left out.*got 3",
    ),
    (lambda: dasgrad.AdaptiveLoader(DATA, 2, refresh=3), ValueError, "need `scorer`"),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, 2, refresh=0, scorer=simple_scorer()),
        ValueError,
        "refresh=.*positive integer, 'auto', an `AutoRefresh.*once a pass, got 0",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, 2, refresh="often", scorer=simple_scorer()),
        ValueError,
        "refresh=.*positive integer, 'auto', an `AutoRefresh.*once a pass, got 'often'",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, 2, nonfinite="ignore"),
        ValueError,
        "nonfinite=.*'raise' or 'keep', got 'ignore'",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(DATA, 2, scorer=simple_scorer(), scoring_dataset=torch.zeros(3)),
        ValueError,
        "same 12 examples.*got 3",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(
            DATA, 2, scorer=dasgrad.ExampleScorer(torch.nn.Linear(3, 1), helpers.squared_losses, score="loss")
        ),
        ValueError,
        "give `optimizer`",
    ),
    (
        lambda: dasgrad.AdaptiveLoader(
            DATA,
            sampler=dasgrad.AdaptiveSampler(12, 4, floor=0.0, epsilon=1e-3),
            scorer=simple_scorer(optimizer={"weighting": "update"}, momentum=False),
        ),
        ValueError,
        "momentum=False.*floor",
    ),
    (lambda: dasgrad.AdaptiveLoader(DATA, 2).refresh(), ValueError, "needs `scorer`"),
]


@pytest.mark.parametrize(("make", "kind", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_the_seed_decides_the_draws():
    first, again, other = (
        [b.indices.tolist() for b in dasgrad.AdaptiveLoader(DATA, 4, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_without_a_scorer_draws_follow_what_the_user_gives():
    loader = dasgrad.AdaptiveLoader(DATA, 6)
    assert all((batch.weights == 1).all() for batch in loader)
    loader.sampler.refresh(torch.arange(12.0))
    assert any((batch.weights != 1).any() for batch in loader)


def test_the_global_generators_are_untouched():
    inputs, targets, model = helpers.regression()
    state = torch.get_rng_state()
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader(helpers.Rows(inputs, targets), 3, scorer=scorer, refresh=1, num_workers=1)
    for batch in loader:
        train(model, optimizer, batch)
    assert torch.equal(state, torch.get_rng_state())


def bare(batch):
    """The same batch as a user would make it."""
    return dasgrad.WeightedBatch(batch.data, batch.indices, batch.weights)


@pytest.mark.filterwarnings("ignore:AdaptiveLoader. no step of its optimizer")
def test_what_uniform_draws_count_is_at_hand_and_the_same_to_the_bit():
    losses = torch.randn(3, requires_grad=True)
    loader = build(dtype=torch.float32, refresh=2)[2]
    shares = set()
    for batch in loader:
        for made in (batch, bare(batch)):
            assert torch.equal(made.weighted_mean(losses), losses.detach() @ torch.full((3,), 1 / 3))
        shares.add(id(batch._shares))
        assert batch.to("meta")._shares.device.type == "meta"
    assert len(shares) == 1
    loader.sampler.refresh(torch.arange(12.0))
    for batch in loader:
        assert batch._shares is None
        assert torch.equal(batch.weighted_mean(losses), bare(batch).weighted_mean(losses))
    loader.sampler.forget()
    assert all(batch._shares is not None for batch in loader)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_weights_that_were_written_to_count_and_so_does_the_precision_of_losses(dtype):
    loader = build(dtype=torch.float32)[2]
    losses = torch.randn(3, dtype=torch.float64).to(dtype)
    for batch in loader:
        assert batch.weighted_mean(losses).dtype == torch.promote_types(dtype, torch.float32)
        before = bare(batch).weighted_mean(losses)
        batch.weights.mul_(2.0)
        assert torch.equal(batch.weighted_mean(losses), 2 * before)


def test_a_pass_in_inference_mode_comes_before_training():
    model, optimizer, loader = build(dtype=torch.float32)[:3]
    with torch.inference_mode():
        values = [batch.weighted_mean(torch.ones(3)) for batch in loader]
    assert values == [torch.tensor(1.0)] * 4
    for batch in loader:
        train(model, optimizer, batch)
    assert loader.num_steps == 4
