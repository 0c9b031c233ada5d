"""Bad input: each error names the argument, what is allowed and what came."""

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()
CE = problems.cross_entropy
MODEL = problems.network()
OPTIMIZER = dasgrad.DASGrad(MODEL.parameters())


def make(model=MODEL, loss_fn=CE, optimizer=OPTIMIZER, **options):
    return dasgrad.ExampleScorer(model, loss_fn, optimizer, **options)


def stepped(kind):
    model = problems.network()
    optimizer = kind(model.parameters())
    problems.train(model, optimizer, INPUTS, TARGETS, steps=1)
    return model, CE, optimizer


def frozen(model):
    return model.requires_grad_(False)


CONSTRUCTION = {
    "score": (lambda: make(score="norm"), ValueError, "(score=...)` must be one of dasgrad, gradient", "'norm'"),
    "score type": (lambda: make(score=3), ValueError, "(score=...)` must be one of", "3"),
    "preconditioner": (lambda: make(preconditioner="mine"), ValueError, "must be 'own' or 'frozen'", "'mine'"),
    "layers": (lambda: make(layers="conv"), ValueError, "(layers=...)` must be 'all' or 'linear'", "'conv'"),
    "momentum": (lambda: make(momentum=0.9), ValueError, "(momentum=...)` must be True, False or None", "0.9"),
    "dtype name": (lambda: make(dtype="float65"), ValueError, "(dtype=...)` must be a floating dtype", "'float65'"),
    "dtype of torch's": (lambda: make(dtype="nn"), ValueError, "(dtype=...)` must be a floating dtype", "'nn'"),
    "dtype not floating": (lambda: make(dtype=torch.int32), ValueError, "must be a floating dtype", "torch.int32"),
    "model": (lambda: make(lambda x: x), TypeError, "(model=...)` must be an nn.Module", "function"),
    "no loss": (lambda: make(loss_fn=None), ValueError, "exactly one of `loss_fn` and `losses`", ""),
    "two losses": (lambda: make(losses=lambda m, d: d), ValueError, "exactly one of `loss_fn` and `losses`", ""),
    "no optimizer": (lambda: make(optimizer=None), ValueError, 'score="dasgrad")` needs `optimizer`', "None"),
    "optimizer type": (lambda: make(optimizer="adam"), TypeError, "(optimizer=...)` must be a torch.optim", "str"),
    "foreign optimizer": (
        lambda: make(optimizer=dasgrad.DASGrad(problems.network().parameters())),
        ValueError,
        "must share at least one parameter",
        "none",
    ),
    "foreign optimizer, gradient": (
        lambda: make(optimizer=torch.optim.SGD(problems.network().parameters()), score="gradient"),
        ValueError,
        "must share at least one parameter",
        "none",
    ),
    "frozen model": (
        lambda: make(frozen(problems.network()), optimizer=None, score="gradient"),
        ValueError,
        "must share at least one parameter that requires a gradient",
        "none",
    ),
    "no linear layers": (
        lambda: make(nn.Conv1d(1, 1, 1), optimizer=None, score="gradient", layers="linear"),
        ValueError,
        "must share at least one parameter",
        "layers='linear'",
    ),
    "SGD": (
        lambda: make(optimizer=torch.optim.SGD(MODEL.parameters())),
        ValueError,
        "needs DASGrad or an optimizer with Adam's options",
        'SGD; use score="gradient"',
    ),
    "Adamax": (lambda: make(*stepped(torch.optim.Adamax)), ValueError, "needs exp_avg_sq in", "Adamax with step"),
}


@pytest.mark.parametrize("case", CONSTRUCTION)
def test_construction(case):
    build, kind, allowed, got = CONSTRUCTION[case]
    with pytest.raises(kind) as error:
        build()
    assert "`ExampleScorer" in str(error.value)
    assert allowed in str(error.value)
    assert got in str(error.value).split("got")[-1]


def test_sgd_is_fine_with_the_gradient_score():
    scorer = make(optimizer=torch.optim.SGD(MODEL.parameters()), score="gradient")
    assert scorer(INPUTS, TARGETS).shape == (6,)


def test_a_parameter_frozen_later_is_reported_at_the_call():
    model = problems.network()
    scorer = make(model, optimizer=dasgrad.DASGrad(model.parameters()))
    frozen(model)
    with pytest.raises(ValueError, match="at least one parameter that requires a gradient"):
        scorer(INPUTS, TARGETS)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize("build", [dasgrad.DASGrad, torch.optim.Adam])
def test_moments_of_another_shape_than_the_parameter_are_refused(build, preconditioner):
    """Also of one that they could be expanded to."""
    model = nn.Linear(3, 1)
    optimizer = build(model.parameters(), lr=0.1)
    scorer = make(model, optimizer=optimizer, preconditioner=preconditioner)
    inputs, targets = torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
    model(inputs).sum().backward()
    optimizer.step()
    assert scorer(inputs, targets).shape == (6,)
    model.weight.data, model.bias.data = torch.randn(2, 3), torch.randn(2)
    with pytest.raises(ValueError, match=r"exp_avg\w* of shape \(1, 3\) for a parameter that now has shape \(2, 3\)"):
        scorer(inputs, targets)


LOSSES = {
    "scalar": (nn.CrossEntropyLoss(), r"one value per example, shape \(\d,\), got shape \(\)"),
    "a column": (lambda out, y: CE(out, y).unsqueeze(1), r"one value per example, .* got shape \(\d, 1\)"),
    "per class": (lambda out, y: out, r"one value per example, .* got shape \(\d, 2\)"),
    "not a tensor": (lambda out, y: [1.0], "one value per example, .* got list"),
}


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("score", ["dasgrad", "gradient", "last_layer", "loss"])
@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_that_is_not_one_value_per_example(case, score, path):
    loss_fn, message = LOSSES[case]
    scorer = make(loss_fn=loss_fn, score=score)
    problems.force(scorer, path)
    with pytest.raises(ValueError, match=message + '.*reduction="none"'):
        scorer(INPUTS, TARGETS)
    assert scorer._engine.gradients.looping == (path == "loop")


class Stream(IterableDataset):
    def __iter__(self):
        yield INPUTS[0], TARGETS[0]


CALLS = {
    "lengths": (lambda: make()(INPUTS, TARGETS[:4]), ValueError, "same number of examples in every tensor"),
    "no tensor": (lambda: make()("text"), ValueError, "`data` must hold tensors with examples"),
    "numpy": (lambda: make()(INPUTS.numpy(), TARGETS.numpy()), ValueError, "`data` must hold tensors"),
    "0-dim": (lambda: make()((INPUTS[0, 0], TARGETS[0])), ValueError, "along their first dimension"),
    "inputs alone": (lambda: make()(INPUTS), TypeError, r"pair \(inputs, targets\), got Tensor; use `losses=`"),
    "a dict": (lambda: make()({"x": INPUTS, "y": TARGETS}), TypeError, r"pair \(inputs, targets\), got dict"),
    "a triple": (lambda: make()((INPUTS, TARGETS, TARGETS)), TypeError, r"pair \(inputs, targets\), got tuple"),
    "stream": (lambda: make().score_dataset(Stream()), TypeError, "must be map-style, got an IterableDataset"),
    "empty": (lambda: make().score_dataset((INPUTS[:0], TARGETS[:0])), ValueError, "at least one example, got 0"),
    "empty list": (lambda: make().score_dataset([]), ValueError, "at least one example, got 0"),
    "chunk 0": (lambda: make().score_dataset((INPUTS, TARGETS), 0), ValueError, r"chunk_size=\.\.\.\)` .* got 0"),
    "chunk -1": (lambda: make().score_dataset((INPUTS, TARGETS), -1), ValueError, "positive integer, got -1"),
    "chunk 2.5": (lambda: make().score_dataset((INPUTS, TARGETS), 2.5), ValueError, "positive integer, got 2.5"),
    "progress": (
        lambda: make().score_dataset((INPUTS, TARGETS), progress="yes"),
        TypeError,
        "`progress` must be a bool or a function",
    ),
    "function's shape": (
        lambda: make(score=lambda m, data: data[0])(INPUTS, TARGETS),
        ValueError,
        r"one score per example, shape \(6,\), got \(6, 3\)",
    ),
    "function's type": (
        lambda: make(score=lambda m, data: 1.0)(INPUTS, TARGETS),
        ValueError,
        r"one score per example, shape \(6,\), got float",
    ),
    "last layer, no tensor": (
        lambda: make(nn.LSTM(3, 2).double(), optimizer=None, score="last_layer")(INPUTS.unsqueeze(1), TARGETS),
        ValueError,
        "output is one tensor, got tuple",
    ),
    "last layer, two calls": (
        lambda: make(loss_fn=None, losses=lambda m, d: CE(m(d[0]) + m(d[0]), d[1]), optimizer=None, score="last_layer")(
            (INPUTS, TARGETS)
        ),
        ValueError,
        "calls the model once, got 2 calls",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case):
    attempt, kind, message = CALLS[case]
    with pytest.raises(kind, match=message):
        attempt()
