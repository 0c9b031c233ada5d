"""Linear layers on the data themselves go through the compiled core, where no gradient does, with the same scores."""

import pytest
import torch
from torch import nn

import dasgrad
from dasgrad.scoring import native
from dasgrad.scoring.shortcut import ForwardShortcut
from scoring import problems

needs_native = pytest.mark.skipif(not native.supports(torch.zeros(1)), reason="no compiled core")
NUM_INPUTS = 7


def examples(kind, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, NUM_INPUTS, generator=generator, dtype=torch.float64)
    inputs *= torch.rand(inputs.shape, generator=generator) < 0.5
    targets = torch.arange(20) % 3
    if kind == "dense":
        return inputs.to(dtype), targets
    rows, columns = inputs.nonzero(as_tuple=True)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(rows, minlength=20).cumsum(0)])
    return dasgrad.SparseRows(indptr, columns, inputs[rows, columns].to(dtype), NUM_INPUTS), targets


def network(bias=True, width=4):
    return nn.Sequential(nn.Linear(NUM_INPUTS, width, bias=bias), nn.Tanh(), nn.Linear(width, 3))


@pytest.fixture
def taken(monkeypatch):
    """The shapes of the layers that the core computes."""
    found = []
    for name in ("linear_with_squares", "sparse_linear"):
        compute, place = getattr(native, name), 1 if name == "linear_with_squares" else 3

        def spy(*args, compute=compute, place=place):
            found.append(tuple(args[place].shape))
            return compute(*args)

        monkeypatch.setattr(native, name, spy)
    return found


@needs_native
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("score", ["loss", "last_layer"])
def test_scores_of_a_forward_pass_are_computed_by_the_core(score, bias, kind, taken, monkeypatch):
    model, (inputs, targets) = problems.seeded(lambda: network(bias)), examples(kind)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score=score)
    scores = scorer(inputs, targets)
    assert taken == [(4, NUM_INPUTS), (3, 4)]
    monkeypatch.setattr(native, "library", None)
    torch.testing.assert_close(scorer(inputs, targets), scores, rtol=1e-12, atol=1e-14)
    assert len(taken) == 2


@needs_native
@pytest.mark.parametrize("score", ["gradient", "dasgrad"])
def test_gradient_norms_and_steps_on_dense_data_take_the_core_for_the_first_layer(score, taken):
    model, (inputs, targets) = problems.seeded(network), examples("dense")
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, score=score, preconditioner="frozen")
    scores = scorer(inputs, targets)
    assert (4, NUM_INPUTS) in taken
    problems.force(scorer, "vmap")
    torch.testing.assert_close(scorer(inputs, targets), scores, rtol=1e-10, atol=0)


@needs_native
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_what_the_core_cannot_take_is_left_to_torch(kind, taken):
    inputs, _ = examples(kind)
    weight, bias = torch.randn(3, NUM_INPUTS, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    many = torch.randn(native.FEW_OUTPUTS + 1, NUM_INPUTS, dtype=torch.float64)
    linear = nn.functional.linear
    with ForwardShortcut():
        torch.testing.assert_close(linear(inputs, weight, bias[:1]), linear(inputs, weight) + bias[:1])
        assert taken == [(3, NUM_INPUTS)]  # not the one whose bias is expanded
        linear(inputs, many)
        if kind == "sparse":
            assert linear(inputs, weight.float(), bias).dtype == torch.float64
        else:
            with pytest.raises(RuntimeError):
                linear(inputs, weight, bias.float())
        with pytest.raises((RuntimeError, ValueError)):
            linear(inputs, weight[:, :-1])
        if kind == "dense":
            linear(inputs[:, None], weight)
            linear(inputs[0], weight)
            linear(inputs, weight[0])
            with pytest.raises(RuntimeError):
                linear(inputs.float(), weight)
    assert taken == [(3, NUM_INPUTS)]


@needs_native
def test_gradients_go_through_a_layer_inside():
    inputs, _ = examples("dense")
    layer = nn.Linear(NUM_INPUTS, 2, dtype=torch.float64)
    with ForwardShortcut():
        layer(inputs).sum().backward()
        torch.testing.assert_close(layer.weight.grad, inputs.sum(0).expand(2, -1))
        layer.requires_grad_(False)
        layer(inputs.requires_grad_()).sum().backward()
        torch.testing.assert_close(inputs.grad, layer.weight.sum(0).expand_as(inputs))


def test_a_layer_behind_the_model_belongs_to_the_last_layers_score():
    model, (inputs, targets) = problems.seeded(network), examples("dense")
    mixing = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]], dtype=torch.float64)

    def loss_fn(outputs, targets):
        return nn.functional.linear(outputs, mixing).square().sum(1)

    scores = dasgrad.ExampleScorer(model, loss_fn, score="last_layer")(inputs, targets)
    expected = (2 * model(inputs).detach() @ mixing.t() @ mixing).norm(dim=1)
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)
