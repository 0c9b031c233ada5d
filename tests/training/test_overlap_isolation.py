"""What scoring beside training leaves alone: random numbers, settings of torch, the threads of others."""

import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import dasgrad
import helpers
from dasgrad.scoring.isolation import beside_training
from dasgrad.training.overlap import _threads_beside
from training.overlap_runs import (
    NAME,
    N,
    build,
    make_model,
    scoring_held,
    scoring_threads,
    sleepy_losses,
    train,
)


class Noisy(nn.Module):
    """Random in training mode and, if asked, in eval mode."""

    def __init__(self, always=False):
        super().__init__()
        self.inner = make_model()
        self.always = always

    def forward(self, x):
        if self.training or self.always:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002 - the global one is what matters
        return self.inner(x)


def seed_everything():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global one is what matters


@pytest.mark.parametrize("always", [False, True], ids=["training mode", "always"])
@pytest.mark.filterwarnings("ignore:.*scoring draws random numbers")
def test_random_numbers_of_training_are_those_of_a_run_that_is_not_scored(always):
    """Until the first scores take effect, the two runs must not differ in anything."""

    def run(**options):
        seed_everything()
        model, optimizer, loader = build(model=Noisy(always), losses=sleepy_losses, **options)
        train(model, optimizer, loader, 10)
        for thread in scoring_threads():
            thread.join()
        numbers = [random.random(), np.random.random(), torch.rand(1).item()]  # noqa: NPY002 - the global one
        return [p.detach() for p in model.parameters()], numbers

    params, numbers = run(overlap=3, refresh=8)
    expected_params, expected_numbers = run(overlap=0, refresh=1000)
    assert numbers == expected_numbers
    assert all(torch.equal(a, b) for a, b in zip(params, expected_params, strict=True))


def test_a_model_that_is_random_when_scored_is_scored_before_training_goes_on():
    def run():
        seed_everything()
        with pytest.warns(UserWarning, match="scoring draws random numbers.*before training goes on"):
            return train(*build(model=Noisy(always=True), losses=sleepy_losses), 24)

    assert torch.equal(run(), run())


def test_random_scoring_is_named_once_and_training_stands_still_for_all_of_it():
    model, optimizer, loader = build(model=Noisy(always=True))
    told = []
    loader.on_refresh(told.append)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for _ in range(2):
            loader.rescore_beside(loader.scorer, 3)
            loader.take_effect(now=True)
            model.inner.append(nn.Linear(1, 1).double())  # which lets the model be copied anew
            optimizer.add_param_group({"params": list(model.inner[-1].parameters()), "lr": 0.1})
    assert len(noted) == 1
    assert len(told) == 2
    assert all(event.waited_seconds >= event.seconds > 0 for event in told)


def test_shared_settings_are_left_alone_while_scoring_goes_on():
    with scoring_held() as (losses, release):
        model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 1))
        data = torch.randn(N, 3, 4)
        model, optimizer, loader = build(model=model, losses=losses, data=lambda _, targets: (data, targets.float()))
        filters, stance = list(warnings.filters), torch.compiler.set_stance
        seen = []

        def look():
            if scoring_threads():
                seen.append((torch.backends.mha.get_fastpath_enabled(), warnings.filters == filters))

        train(model, optimizer, loader, 10, look)
        assert torch.get_num_threads() == 1
        release()
    assert seen == [(True, True)] * 3
    assert stance is torch.compiler.set_stance


def test_the_plain_path_of_attention_is_taken_beside_training():
    """Inside the thread as outside it: the inference path of a padded encoder answers otherwise."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 1))
    data = (torch.randn(N, 3, 4), torch.randn(N))
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, score="last_layer")
    with beside_training():
        found = scorer.snapshot()(*data)
    assert torch.equal(found, scorer(*data))


def test_the_number_of_threads_of_others_stays(monkeypatch):
    monkeypatch.setattr("dasgrad.training.overlap._threads_beside", lambda: 3)
    before, found = torch.get_num_threads(), {}

    def losses(model, data):
        found[threading.current_thread().name] = torch.get_num_threads()
        return helpers.squared_losses(model(data[0]), data[1])

    model, optimizer, loader = build(losses=losses)
    train(model, optimizer, loader, 12)
    later = threading.Thread(target=lambda: found.update(later=torch.get_num_threads()))
    later.start()
    later.join()
    assert torch.get_num_threads() == before
    assert found == {"MainThread": before, NAME: 3, "later": before}


@pytest.mark.parametrize(("cores", "training", "scoring"), [(4, 1, 3), (4, 4, 1), (2, 5, 1)])
def test_scoring_takes_the_cores_that_training_leaves_free(monkeypatch, cores, training, scoring):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: training)
    assert _threads_beside() == scoring
