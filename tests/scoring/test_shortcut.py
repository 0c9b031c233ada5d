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
@pytest.mark.usefixtures("small_layers")
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
@pytest.mark.usefixtures("small_layers")
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
@pytest.mark.usefixtures("small_layers")
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
@pytest.mark.parametrize(
    ("dtype", "num_inputs", "num_outputs", "pays"),
    [
        (torch.float32, 784, 10, True),
        (torch.float32, 784, 32, True),
        (torch.float64, 128, 1, True),
        (torch.float32, 64, 32, False),
        (torch.float32, 20, 1, False),
        (torch.float32, 300, 32, False),  # ends amid a vector
        (torch.float32, 1000, 32, True),
        (torch.bfloat16, 784, 10, True),
        (torch.bfloat16, 784, 11, False),
        (torch.bfloat16, 64, 3, False),
    ],
)
def test_the_core_takes_the_layers_for_which_it_is_faster(dtype, num_inputs, num_outputs, pays, taken):
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(each, num_inputs, generator=generator) for each in (20, num_outputs)]
    inputs, weight = (each.to(dtype) for each in numbers)
    expected, tolerance = nn.functional.linear(inputs, weight), 0.02 if dtype == torch.bfloat16 else 1e-4
    with ForwardShortcut():
        torch.testing.assert_close(nn.functional.linear(inputs, weight), expected, rtol=tolerance, atol=tolerance)
    assert taken == ([(num_outputs, num_inputs)] if pays else [])


@needs_native
@pytest.mark.parametrize(("num_outputs", "pays"), [(1, True), (8, True), (9, False)])
def test_on_sparse_rows_the_core_takes_layers_of_few_outputs(num_outputs, pays, taken):
    inputs, _ = examples("sparse")
    with ForwardShortcut():
        nn.functional.linear(inputs, torch.ones(num_outputs, NUM_INPUTS, dtype=torch.float64))
    assert bool(taken) == pays


@needs_native
@pytest.mark.usefixtures("small_layers")
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
