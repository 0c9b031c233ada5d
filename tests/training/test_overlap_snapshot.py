"""What is scored beside training: the model, its loss and its optimizer as they were when scoring began."""

import pytest
import torch
from torch import nn

import dasgrad
import helpers
from training.overlap_runs import N, build, make_model, train


class Tied(nn.Module):
    """Tied weights, running statistics and a number that training changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 1)
        self.temperature = 1.0

    def forward(self, x):
        return self.last(self.norm(self.second(torch.tanh(self.first(x))))) / self.temperature


def stepped(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    helpers.squared_losses(model(inputs), targets).mean().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:BatchNorm in training mode")
@pytest.mark.parametrize("kind", ["DASGrad", "AdamW"])
def test_a_snapshot_scores_as_its_model_did_and_takes_new_values_in_place(kind):
    inputs, targets, _ = helpers.regression(N)
    torch.manual_seed(0)
    model = Tied().double()
    optimizer = dasgrad.DASGrad(model.parameters()) if kind == "DASGrad" else torch.optim.AdamW(model.parameters())
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    twin = scorer.snapshot()  # before there is any optimizer state
    assert twin.model.first.weight is twin.model.second.weight
    places = [p.data_ptr() for p in twin.model.parameters()]
    for _ in range(3):
        then = scorer(inputs, targets)
        assert twin.copy_from(scorer)
        stepped(model, optimizer, inputs, targets)
        model.temperature *= 2
        optimizer.param_groups[0]["lr"] *= 0.5
        assert torch.equal(twin(inputs, targets), then)
        assert not torch.equal(scorer(inputs, targets), then)
    assert places == [p.data_ptr() for p in twin.model.parameters()]
    assert all(p.grad is None for p in twin.model.parameters())


def test_a_model_with_other_parameters_is_copied_anew():
    model, optimizer, loader = build()
    train(model, optimizer, loader, 12)
    model.append(nn.Linear(1, 1).double())
    optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})
    train(model, optimizer, loader, 3)
    expected = loader.scorer.score_dataset(loader.dataset, 16)
    train(model, optimizer, loader, 4)  # scored before step 16
    torch.testing.assert_close(loader.sampler.scores, expected)


def test_a_cheaper_score_is_that_of_the_model_copied_anew():
    model, optimizer, loader = build()
    cheaper = loader.scorer.with_score("loss")
    for _ in range(2):
        loader.rescore_beside(cheaper, 3)
        found = loader.take_effect(now=True)
        assert torch.equal(found.scores, cheaper.score_dataset(loader.dataset, 16))
        model.append(nn.Linear(1, 1).double())
        optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})


def test_a_loss_with_parameters_of_its_own_and_a_frozen_layer_are_part_of_the_snapshot():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, outputs, targets):
            return helpers.squared_losses(outputs, targets) * self.scale

    inputs, targets, _ = helpers.regression(N)
    model, loss_fn = make_model(), Scaled()
    optimizer = dasgrad.DASGrad([*model.parameters(), *loss_fn.parameters()])
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    twin = scorer.snapshot()
    then = scorer(inputs, targets)
    with torch.no_grad():
        loss_fn.scale.mul_(3)
    model[0].requires_grad_(False)
    assert torch.equal(twin(inputs, targets), then)
    assert twin.copy_from(scorer)
    assert torch.equal(twin(inputs, targets), scorer(inputs, targets))


def test_compiled_parts_are_scored_as_they_were_before():
    inputs, targets, _ = helpers.regression(N)
    model = make_model()
    expected = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient")(inputs, targets)
    model[0] = torch.compile(model[0], backend="eager")
    twin = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient").snapshot()
    assert [type(module) for module in twin.model] == [nn.Linear, nn.Tanh, nn.Linear]
    assert torch.equal(twin(inputs, targets), expected)


class Holder(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("not this one")


def test_a_model_that_cannot_be_copied_is_named_with_the_option():
    model, optimizer, loader = build(model=Holder(3, 1).double())
    with pytest.raises(TypeError, match=r"overlap=\.\.\..*fails on Holder \(RuntimeError: not this one\).*overlap=0"):
        train(model, optimizer, loader, 9)
    assert loader.num_steps == 7
    assert not loader.pending
