"""What fails in the middle of training is said, and a run that goes on is the one it would have been."""

import os
import signal
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import dasgrad
import helpers
from dasgrad.training import AutoRefresh, Costs

N, BATCH_SIZE = 40, 4
DEADLY = 17
REFRESHES = {"fixed": lambda: 7, "auto": lambda: AutoRefresh(costs=Costs(step=1e-2, example=1e-5))}


class Deadly(helpers.Rows):
    """Kills the first worker that reads one of its examples, or has it raise."""

    def __init__(self, inputs, targets, flag, raises=False, example=DEADLY):
        super().__init__(inputs, targets)
        self.flag, self.raises, self.example = Path(flag), raises, example

    def __getitem__(self, index):
        if index == self.example and not self.flag.exists():
            self.flag.touch()
            if self.raises:
                raise OSError("the file is gone")
            os._exit(1)
        return super().__getitem__(index)


def build(refresh, dataset, **options):
    inputs, targets, model = helpers.regression(N)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    options |= {"scoring_dataset": (inputs, targets)}
    loader = dasgrad.AdaptiveLoader(
        dataset(inputs, targets), BATCH_SIZE, scorer=scorer, refresh=refresh, seed=3, **options
    )
    return model, optimizer, loader


def train(model, optimizer, loader, num_passes, kinds, seconds_a_step=0.0, after=lambda error: None):
    """All draws and how many errors there were; after each the loop is simply begun anew."""
    drawn, errors, passes = [], 0, 0
    while passes < num_passes:
        try:
            for batch in loader:
                optimizer.zero_grad()
                batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
                optimizer.step()
                drawn.append(batch.indices.tolist())
                until = time.monotonic() + seconds_a_step
                while time.monotonic() < until:
                    pass
            passes += 1
        except kinds as error:
            errors += 1
            assert errors < 3
            after(error)
    return drawn, errors


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize(
    ("workers", "raises"),
    [({"num_workers": 2}, False), ({"num_workers": 2, "persistent_workers": True}, False), ({}, True)],
    ids=["workers", "persistent workers", "no workers"],
)
def test_after_a_worker_has_died_the_pass_goes_on_where_it_was(workers, raises, refresh, tmp_path):
    """No step is lost or taken twice, and no draw: all is as if nothing had happened."""
    expected = build(REFRESHES[refresh](), helpers.Rows, **workers)
    found = build(REFRESHES[refresh](), lambda x, y: Deadly(x, y, tmp_path / "died", raises), **workers)
    draws, no_errors = train(*expected, 4, RuntimeError)
    assert no_errors == 0
    drawn, errors = train(*found, 4, OSError if raises else RuntimeError)
    assert errors == 1
    assert drawn == draws
    assert found[2].num_steps == expected[2].num_steps == len(draws)
    for ours, theirs in zip(found[0].parameters(), expected[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_whose_death_comes_up_in_the_training_step_loses_nothing(persistent, tmp_path):
    """As it mostly does where workers are ahead; what was handed out is not handed out again."""
    options = {"num_workers": 1, "persistent_workers": persistent}
    drawn = train(*build(7, helpers.Rows, **options), 2, RuntimeError)[0]
    found = build(7, lambda x, y: Deadly(x, y, tmp_path / "died", example=drawn[6][0]), **options)
    # Or it comes up where a batch is received that the worker had sent before.
    errors = RuntimeError, OSError, EOFError
    assert train(*found, 2, errors, seconds_a_step=0.05) == (drawn, 1)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=["no workers", "workers"])
def test_a_batch_that_can_never_be_read_is_named_and_can_be_left_out(workers):
    expected = train(*build(1000, helpers.Rows, **workers), 1, ())[0]
    broken = expected[3][0]

    class Broken(helpers.Rows):
        def __getitem__(self, index):
            if index == broken:
                raise OSError("the file is broken")
            return super().__getitem__(index)

    model, optimizer, loader = build(1000, Broken, **workers)
    left_out = []

    def leave_out(error):
        ((indices,), _) = loader.take_draws(1)
        left_out.append(indices.tolist())
        *_, note = error.__notes__
        assert f"this was example {broken}." in "".join(traceback.format_exception(error))
        assert f"the batch of examples {', '.join(map(str, left_out[-1]))};" in note
        assert "`loader.take_draws(1)` leaves it out" in note

    found = train(model, optimizer, loader, 1, OSError, after=leave_out)[0]
    assert left_out == [expected[3]]
    assert found == expected[:3] + expected[4:]


def kill(worker):
    """Returns, if at all, after torch should have said so."""
    os.kill(worker.pid, signal.SIGKILL)
    time.sleep(5)


def test_workers_that_die_between_passes_are_replaced():
    options = {"num_workers": 1, "persistent_workers": True}
    drawn = train(*build(7, helpers.Rows, **options), 3, RuntimeError)[0]
    model, optimizer, loader = build(7, helpers.Rows, **options)
    found = train(model, optimizer, loader, 1, ())[0]
    (worker,) = loader._fetcher._workers
    with pytest.raises(RuntimeError, match="killed by signal"):
        kill(worker)
    assert found + train(model, optimizer, loader, 2, ())[0] == drawn


def test_a_worker_that_dies_when_all_of_a_pass_was_handed_out_leaves_no_empty_pass():
    """Here in the last step of the first one."""
    _, optimizer, loader = build(7, helpers.Rows, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
        optimizer.step()
    (worker,) = loader._fetcher._workers
    with pytest.raises(RuntimeError, match="killed by signal"):
        kill(worker)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("fails", ["put together", "started"])
def test_a_batch_that_cannot_be_put_together_is_handed_out_by_the_next_loop(fails, monkeypatch):
    """No memory for its copy, or for the process that is to fetch it, in the middle of a resumed pass."""
    options = {"num_workers": 1}
    drawn = train(*build(7, helpers.Rows, **options), 2, ())[0]
    model, optimizer, loader = build(7, helpers.Rows, **options)
    found = []
    for batch in loader:
        optimizer.zero_grad()
        batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        found.append(batch.indices.tolist())
        if len(found) == 4:
            break
    loader.load_state_dict(loader.state_dict())
    where = (loader, "_join") if fails == "put together" else (loader._fetcher, "start")

    def fail(*args):
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(*where, fail)
    rest, errors = train(model, optimizer, loader, 2, MemoryError)
    assert errors == 1
    assert found + rest == drawn


def test_after_scoring_has_failed_the_pass_goes_on_with_the_last_probabilities(monkeypatch):
    """The second of three refreshes, before the draw of step 14, in the middle of the second pass."""
    model, optimizer, loader = build(7, lambda x, y: (x, y))
    original, refreshed = loader.scorer.score_dataset, []
    loader.on_refresh(lambda event: refreshed.append((event.step, loader.sampler.probabilities)))

    def score_dataset(*args, **kwargs):
        if loader.num_steps == 13 and len(refreshed) == 1:
            refreshed.append((14, None))
            raise OSError("the file is gone")
        return original(*args, **kwargs)

    monkeypatch.setattr(loader.scorer, "score_dataset", score_dataset)
    drawn, errors = train(model, optimizer, loader, 2, OSError)
    assert (errors, len(drawn), loader.num_steps) == (1, 20, 20)
    torch.testing.assert_close(loader.sampler.probabilities, refreshed[0][1], rtol=0, atol=0)
    train(model, optimizer, loader, 1, OSError)
    assert [step for step, _ in refreshed] == [7, 14, 21, 28]


def network(width):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


def run_and_change(refresh, change, overlap=0):
    """Passes over a network that is another one from the middle of the fourth on."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(N, 3, generator=generator), torch.randn(N, generator=generator)
    torch.manual_seed(0)
    model = network(4)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs, targets), BATCH_SIZE, scorer=scorer, refresh=refresh, overlap=overlap)
    for _ in range(10):
        for batch in loader:
            if loader.num_steps == 35:
                change(model, optimizer)
            optimizer.zero_grad()
            batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
            optimizer.step()
    return loader


def widen(model, optimizer):
    """As it should be: layers of another width, known to the optimizer."""
    model[0], model[2] = nn.Linear(3, 7), nn.Linear(7, 1)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def widen_alone(model, optimizer):
    """The optimizer goes on with parameters that are the model's no more."""
    model[0], model[2] = nn.Linear(3, 7), nn.Linear(7, 1)


def widen_in_place(model, optimizer):
    """The optimizer's moments are still of the old shape."""
    wide = network(7)
    for param, other in zip(model.parameters(), wide.parameters(), strict=True):
        param.data, param.grad = other.data, None


@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("refresh", REFRESHES)
def test_a_model_that_changes_its_shape_is_scored_as_it_is(refresh, overlap):
    loader = run_and_change(REFRESHES[refresh](), widen, overlap)
    assert loader.num_steps == 100
    scorer = loader.scorer
    assert scorer.model[0].out_features == 7
    anew = dasgrad.ExampleScorer(scorer.model, helpers.squared_losses, scorer.optimizer)
    torch.testing.assert_close(scorer(*loader.dataset), anew(*loader.dataset))


@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (widen_alone, "must share at least one parameter that requires a gradient"),
        (widen_in_place, r"moments of shape \(4, 3\) for a parameter that now has shape \(7, 3\)"),
    ],
)
def test_a_model_that_fits_its_optimizer_no_more_is_named(change, message, refresh, overlap):
    with pytest.raises(ValueError, match=message):
        run_and_change(REFRESHES[refresh](), change, overlap)


def test_an_optimizer_that_is_not_the_scorers_is_not_counted_and_that_is_said_once():
    model, _, loader = build(7, helpers.Rows)
    other = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match="no step of its optimizer was counted in 2 passes.*optimizer=") as said:
        train(model, other, loader, 5, ())
    assert len(said) == 1
    assert loader.num_steps == 0
