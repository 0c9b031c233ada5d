"""Which parameters count, and by how much: param groups, frozen and foreign parameters, maximize."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()


def scorer_of(model, optimizer, **options) -> dasgrad.ExampleScorer:
    return dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, **options)


@pytest.mark.parametrize("as_lr", [float, lambda lr: torch.tensor(lr, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("lrs", [(0.1, 0.025), (0.02, 0.08), (0.1, 0.0)])
def test_groups_count_by_their_share_of_the_largest_learning_rate(lrs, as_lr):
    """s² = Σ_g (lr_g / max lr) s_g², with s_g from an optimizer that holds group g alone."""
    model = problems.network()
    layers = (model[0], model[2])
    groups = [{"params": layer.parameters(), "lr": as_lr(lr)} for layer, lr in zip(layers, lrs, strict=True)]
    optimizer = dasgrad.DASGrad(groups)
    alone = [scorer_of(model, dasgrad.DASGrad(layer.parameters(), lr=1.0)) for layer in layers]
    squares = sum(lr / max(lrs) * one(INPUTS, TARGETS) ** 2 for one, lr in zip(alone, lrs, strict=True))
    torch.testing.assert_close(scorer_of(model, optimizer)(INPUTS, TARGETS), squares.sqrt(), rtol=1e-12, atol=0)


def test_learning_rates_are_read_at_the_call():
    model = problems.network()
    optimizer = dasgrad.DASGrad([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    scorer = scorer_of(model, optimizer)
    before = scorer(INPUTS, TARGETS)
    optimizer.param_groups[0]["lr"] = 0.05
    assert (scorer(INPUTS, TARGETS) < before).all()
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a warm-up that starts at nothing
    torch.testing.assert_close(scorer(INPUTS, TARGETS), before, rtol=1e-12, atol=0)


def test_each_group_has_its_own_moments_betas_and_decay():
    model = problems.network()
    optimizer = dasgrad.DASGrad(
        [
            {"params": model[0].parameters(), "moments": "rmsprop", "betas": (0.9, 0.5), "weight_decay": 0.4},
            {"params": model[2].parameters(), "moments": "adagrad"},
        ],
        lr=0.05,
    )
    problems.train(model, optimizer, INPUTS, TARGETS)
    gradients = list(problems.pair_gradients(model, INPUTS, TARGETS).values())
    total = torch.zeros(6, dtype=torch.float64)
    for k, param in enumerate(model.parameters()):
        g, state = gradients[k], optimizer.state[param]
        if k < 2:
            v = 0.5 * state["square_avg"] + 0.5 * (g + 0.4 * param.detach()) ** 2
        else:
            v = (state["sum"] + g**2) / 4
        total += (g**2 / (v.sqrt() + 1e-8)).reshape(6, -1).sum(1)
    torch.testing.assert_close(scorer_of(model, optimizer)(INPUTS, TARGETS), total.sqrt(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("score", ["dasgrad", "gradient"])
def test_parameters_outside_the_optimizer_or_frozen_do_not_count(score):
    model = problems.network()
    head_only = scorer_of(model, dasgrad.DASGrad(model[2].parameters()), score=score)(INPUTS, TARGETS)
    everything = dasgrad.DASGrad(model.parameters())
    scorer = scorer_of(model, everything, score=score)
    assert (scorer(INPUTS, TARGETS) > head_only).all()
    model[0].requires_grad_(False)  # after construction: read at the call
    torch.testing.assert_close(scorer(INPUTS, TARGETS), head_only, rtol=1e-12, atol=0)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]


def test_the_optimizer_may_hold_parameters_of_other_models():
    model, other = problems.network(), nn.Linear(2, 2)
    both = dasgrad.DASGrad([*other.parameters(), *model.parameters()])
    expected = scorer_of(model, dasgrad.DASGrad(model.parameters()))(INPUTS, TARGETS)
    torch.testing.assert_close(scorer_of(model, both)(INPUTS, TARGETS), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_maximize_is_minimising_the_negative_loss(preconditioner):
    options = {"lr": 0.05, "weight_decay": 0.3}
    up, down = problems.network(), problems.network()
    maximizing = dasgrad.DASGrad(up.parameters(), maximize=True, **options)
    minimizing = dasgrad.DASGrad(down.parameters(), **options)
    for _ in range(3):
        for model, optimizer, sign in ((up, maximizing, 1), (down, minimizing, -1)):
            optimizer.zero_grad()
            (sign * problems.cross_entropy(model(INPUTS), TARGETS).mean()).backward()
            optimizer.step()
    torch.testing.assert_close(up[0].weight, down[0].weight, rtol=1e-12, atol=1e-14)
    for momentum in (True, False):
        choice = {"preconditioner": preconditioner, "momentum": momentum}
        negative = dasgrad.ExampleScorer(down, lambda out, y: -problems.cross_entropy(out, y), minimizing, **choice)
        found = scorer_of(up, maximizing, **choice)(INPUTS, TARGETS)
        torch.testing.assert_close(found, negative(INPUTS, TARGETS), rtol=1e-10, atol=0)
    # The sign matters: with the plain gradient the decayed and own moments would differ.
    plain = scorer_of(up, dasgrad.DASGrad(up.parameters(), **options), momentum=True)
    assert not torch.allclose(plain(INPUTS, TARGETS), scorer_of(up, maximizing, momentum=True)(INPUTS, TARGETS))


def test_layers_linear_takes_the_parameters_of_linear_modules_alone():
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    optimizer = dasgrad.DASGrad(model.parameters())
    gradients = problems.pair_gradients(model, INPUTS, TARGETS)
    kept = {name: g for name, g in gradients.items() if not name.startswith("1.")}
    found = scorer_of(model, optimizer, score="gradient", layers="linear")(INPUTS, TARGETS)
    torch.testing.assert_close(found, problems.norms(kept), rtol=1e-12, atol=0)
    linear = dasgrad.DASGrad([*model[0].parameters(), *model[2].parameters()])
    torch.testing.assert_close(
        scorer_of(model, optimizer, layers="linear")(INPUTS, TARGETS), scorer_of(model, linear)(INPUTS, TARGETS)
    )


class ScaledHead(nn.Module):
    """A parameter of no dimensions, and an output of one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.scale * self.head(x).squeeze(-1)


@pytest.mark.parametrize("score", ["dasgrad", "gradient", "last_layer", "loss"])
@pytest.mark.parametrize("size", [0, 1, 6])
def test_scalar_parameters_and_flat_outputs(score, size):
    model = problems.seeded(ScaledHead)
    goals = torch.linspace(-1, 2, 6, dtype=torch.float64)
    mse = nn.MSELoss(reduction="none")
    scorer = dasgrad.ExampleScorer(model, mse, dasgrad.DASGrad(model.parameters()), score=score)
    scores = scorer(INPUTS[:size], goals[:size])
    assert scores.shape == (size,)
    gradients = problems.pair_gradients(model, INPUTS, goals, mse)
    expected = {
        "gradient": problems.norms(gradients),
        "last_layer": 2 * (model(INPUTS) - goals).detach().abs(),
        "loss": mse(model(INPUTS), goals).detach(),
        "dasgrad": sum((g.square() / (0.1 * g.abs() + 1e-8)).reshape(6, -1).sum(1) for g in gradients.values()).sqrt(),
    }[score]
    torch.testing.assert_close(scores, expected[:size], rtol=1e-10, atol=0)
