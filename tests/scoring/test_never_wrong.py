"""Models that no list of layer rules describes: exact all the same, the slower path announced, or refused."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import dasgrad
from dasgrad.scoring import forms, rules
from scoring import exact, problems
from scoring.exact import integers, numbers


class Model(nn.Module):
    """A few layers, and a forward pass given as a function."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def linear(inputs=3, outputs=3):
    return nn.Linear(inputs, outputs)


def matrix(*shape):
    return nn.Parameter(torch.randn(shape))


def tied():
    model = Model(lambda m, x: m.head(m.table(x).tanh()), table=nn.Embedding(5, 4), head=nn.Linear(4, 5))
    model.head.weight = model.table.weight
    return model


def with_hook(change):
    def build():
        model = nn.Sequential(linear(), nn.Tanh(), linear())
        model[0].register_forward_hook(change)
        return model

    return build


def prehooked():
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return model


def partly_frozen():
    """As in low-rank adaptation: a frozen matrix and a small trained one beside it."""
    model = Model(
        lambda m, x: m.base(x) + m.up(m.down(x)), base=linear(), down=nn.Linear(3, 1, bias=False), up=linear(1)
    )
    model.base.requires_grad_(False)
    model.up.bias.requires_grad_(False)
    return model


class Standardised(nn.Conv1d):
    """A subclass that changes the weight on its way: not what the rule of its class says."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight / weight.norm(), bias)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Documented(nn.Linear):
    """A subclass that changes nothing."""

    def extra_repr(self):
        return "mine"


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(linear())


def replaced_forward():
    layer = linear()
    original = layer.forward
    layer.forward = lambda x: original(x) ** 2
    return layer


def two_names():
    layer = nn.LayerNorm(3)
    layer.bias = layer.weight
    return layer


def expert(m, x):
    """Rows of a batch that take another way, by the values of each."""
    out = m.first(x)
    chosen = x.sum(1) > 3
    return out.index_add(0, chosen.nonzero().flatten(), m.second(x[chosen]))


def reentrant(m, x):
    return m.c(checkpoint(lambda z: m.b(z).tanh(), m.a(x), use_reentrant=True))


def reentrant_from_the_input_on(m, x):
    return m.c(checkpoint(lambda z: m.b(m.a(z)).tanh(), x.detach().clone().requires_grad_(), use_reentrant=True))


def not_reentrant(m, x):
    return m.c(checkpoint(lambda z: m.b(z.tanh()).tanh(), m.a(x), use_reentrant=False))


def all_checkpointed(m, x):
    return m.c(checkpoint(lambda z: m.b(m.a(z).tanh()).tanh(), x, use_reentrant=False))


def attention_checkpointed(m, x):
    return checkpoint(lambda z: m.layer(z + m.place), x, use_reentrant=False)


def both_ways(m, x):
    return checkpoint(m.a, m.a(x), use_reentrant=True)


def overwrites_its_input(m, x):
    hidden = m.a(x).detach()
    out = m.b(hidden)
    hidden.mul_(2)
    return out


def overwriting():
    """Allowed as long as nothing needs the input any more: only a bias is trained."""
    model = Model(overwrites_its_input, a=linear(), b=linear())
    model.b.weight.requires_grad_(False)
    return model


ROWS, STEPS = numbers(4, 3), numbers(4, 5, 3)
THREE = {"a": linear, "b": linear, "c": linear}
WHOLE = {  # served by rules, every parameter
    "a tied table": (tied, integers(5, 4, 3)),
    "a module called twice": (lambda: Model(lambda m, x: m.a(m.a(x).tanh()), a=linear()), ROWS),
    "a module called three times": (lambda: Model(lambda m, x: m.a(m.a(x) + m.a(x.tanh())), a=linear()), STEPS),
    "a convolution called twice": (
        lambda: Model(lambda m, x: m.a(m.a(x).tanh()), a=nn.Conv1d(4, 4, 3, padding=1, groups=2)),
        numbers(3, 4, 5),
    ),
    "attention called twice": (
        lambda: Model(lambda m, x: m.a(m.a(x, x, x)[0], x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)),
        numbers(3, 3, 4),
    ),
    "a parameter added": (lambda: Model(lambda m, x: m.a(x + m.p), a=linear(), p=matrix(3)), ROWS),
    "a parameter multiplied": (lambda: Model(lambda m, x: m.p * m.a(x), a=linear(), p=matrix(3)), STEPS),
    "a product with a matrix": (
        lambda: Model(lambda m, x: m.a(x @ m.p.transpose(0, 1)), a=linear(2), p=matrix(2, 3)),
        STEPS,
    ),
    "a product with a vector": (
        lambda: Model(lambda m, x: (m.a(x) @ m.p).unsqueeze(-1), a=linear(), p=matrix(3)),
        ROWS,
    ),
    "a parameter of no dimensions": (lambda: Model(lambda m, x: m.p * m.a(x), a=linear(), p=matrix()), ROWS),
    "a parameter alone": (lambda: Model(lambda m, x: m.p + x, p=matrix(1, 3)), ROWS),
    "a parameter added twice": (lambda: Model(lambda m, x: (x + m.p).tanh() + m.p, p=matrix(3)), ROWS),
    "a slice of a parameter": (
        lambda: Model(lambda m, x: x + m.p[:, : x.shape[1]].transpose(1, 2), p=matrix(1, 3, 3)),
        numbers(4, 3, 3),
    ),
    "a table of positions": (
        lambda: Model(lambda m, x: x + m.t(torch.arange(x.shape[1])), t=nn.Embedding(9, 3)),
        STEPS,
    ),
    "a table of positions with a batch of one": (
        lambda: Model(lambda m, x: x + m.t(torch.arange(x.shape[1])[None] % 2), t=nn.Embedding(9, 3)),
        STEPS,
    ),
    "a class token": (
        lambda: Model(lambda m, x: m.a(torch.cat([m.p.expand(len(x), -1, -1), x], 1)), a=linear(), p=matrix(1, 1, 3)),
        STEPS,
    ),
    "checkpointing, reentrant": (lambda: Model(reentrant, **{k: v() for k, v in THREE.items()}), ROWS),
    "checkpointing, reentrant, from the input on": (
        lambda: Model(reentrant_from_the_input_on, **{k: v() for k, v in THREE.items()}),
        ROWS,
    ),
    "checkpointing, not reentrant": (lambda: Model(not_reentrant, **{k: v() for k, v in THREE.items()}), ROWS),
    "checkpointing from the input on": (lambda: Model(all_checkpointed, **{k: v() for k, v in THREE.items()}), ROWS),
    "checkpointed attention": (
        lambda: Model(
            attention_checkpointed,
            layer=nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
            place=matrix(1, 3, 4),
        ),
        numbers(3, 3, 4),
    ),
    "a hook that changes the output": (with_hook(lambda module, args, output: output**2), ROWS),
    "a hook that keeps nothing": (with_hook(lambda module, args, output: output.detach() * 1.0), ROWS),
    "a hook that changes the input": (prehooked, ROWS),
    "frozen and low rank": (partly_frozen, ROWS),
    "in place after a layer": (
        lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.LeakyReLU(inplace=True), linear()),
        ROWS,
    ),
    "added in place": (lambda: Model(lambda m, x: m.b(m.a(x).add_(x).tanh_()), a=linear(), b=linear()), ROWS),
    "an expanded output": (
        lambda: Model(lambda m, x: m.b(m.a(x).unsqueeze(1).expand(-1, 4, -1) * 1), a=linear(), b=linear()),
        ROWS,
    ),
    "an output the loss does not use": (
        lambda: Model(lambda m, x: (m.a(x), m.b(x))[0], a=linear(), b=linear()),
        ROWS,
    ),
    "a layer that is not called": (lambda: Model(lambda m, x: m.a(x), a=linear(), b=linear(), p=nn.GRU(2, 2)), ROWS),
    "sequence first, as long as the batch": (
        lambda: Model(lambda m, x: m.b(m.a(x.transpose(0, 1)).tanh()).transpose(0, 1), a=linear(), b=nn.LayerNorm(3)),
        numbers(3, 3, 3),
    ),
    "sequence first transformer": (
        lambda: Model(lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), a=nn.TransformerEncoderLayer(4, 2, 8)),
        numbers(4, 4, 4),
    ),
    "a subclass that changes nothing": (lambda: Documented(3, 2), ROWS),
    "inputs that require gradients inside": (
        lambda: Model(lambda m, x: m.b(m.a(x.detach().requires_grad_()).tanh()), a=linear(), b=linear()),
        ROWS,
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 2)),
        numbers(2, 3, 6, 6).to(memory_format=torch.channels_last),
    ),
    "compiled inside": (
        lambda: Model(lambda m, x: m.b(m.a(x).tanh()), a=torch.compile(linear(), backend="eager"), b=linear()),
        ROWS,
    ),
}


@pytest.mark.parametrize("options", exact.COMBINATIONS, ids=lambda o: f"{o['preconditioner']}-{o['momentum']}")
@pytest.mark.parametrize("case", WHOLE)
def test_served_whole_by_rules(case, options):
    build, data = WHOLE[case]
    exact.check(build, data, options)
    exact.check(build, data[:1], options)


PARTS = {  # the parameters that take the slower path, and why
    "a product with a parameter on the left": (
        lambda: Model(lambda m, x: m.a((m.p @ x.t()).t()), a=linear(), p=matrix(3, 3)),
        ROWS,
        {"p": "used outside a layer, by (__)?matmul"},
    ),
    "a parameter in place": (
        lambda: Model(lambda m, x: m.a(x).add_(m.p), a=linear(), p=matrix(3)),
        ROWS,
        {"p": "used outside a layer, by add_"},
    ),
    "a linear layer by hand": (
        lambda: Model(lambda m, x: functional.linear(m.a(x), m.p), a=linear(), p=matrix(3, 3)),
        ROWS,
        {"p": "used outside a layer, by linear"},
    ),
    "a layer's weight used elsewhere": (
        lambda: Model(lambda m, x: m.a(x) + m.a.weight.sum() + m.b(x), a=linear(), b=linear()),
        ROWS,
        {"a.weight": "used outside its layer, by sum"},
    ),
    "a parameter shared with a module of one's own": (
        lambda: Model(lambda m, x: m.a(x) @ m.a.weight, a=linear()),
        ROWS,
        {"a.weight": "used outside its layer"},
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(linear()),
        ROWS,
        {f"parametrizations.weight.original{k}": "by _weight_norm" for k in (0, 1)},
    ),
    "weight norm of old": (old_weight_norm, ROWS, {"weight_g": "used outside", "weight_v": "used outside"}),
    "a subclass that changes the weight": (
        lambda: Standardised(3, 2, 2),
        numbers(3, 3, 4),
        {"weight": "used outside a layer", "bias": "used outside a layer"},
    ),
    "a forward of its own": (lambda: Doubled(3, 2), ROWS, dict.fromkeys(("weight", "bias"), "used outside a layer")),
    "a forward replaced": (replaced_forward, ROWS, dict.fromkeys(("weight", "bias"), "used outside a layer")),
    "one parameter under two names": (two_names, ROWS, {"weight": "two names"}),
    "folded batches": (
        lambda: Model(lambda m, x: m.b(m.a(x.flatten(0, 1)).unflatten(0, x.shape[:2])), a=linear(), b=linear()),
        STEPS,
        dict.fromkeys(("a.weight", "a.bias"), "without the examples"),
    ),
    "examples that are chosen": (
        lambda: Model(expert, first=linear(), second=linear()),
        numbers(6, 3),
        dict.fromkeys(("second.weight", "second.bias"), "without the examples"),
    ),
    "examples in another order": (
        lambda: Model(lambda m, x: m.b(m.a(x.flip(0)).flip(0)), a=linear(), b=linear()),
        ROWS,
        dict.fromkeys(("a.weight", "a.bias"), "does not have the examples"),
    ),
    "with and without gradients": (
        lambda: Model(both_ways, a=linear()),
        ROWS,
        dict.fromkeys(("a.weight", "a.bias"), "called with and without gradients"),
    ),
    "an input overwritten": (
        overwriting,
        ROWS,
        {"b.bias": "overwritten after its call"},
    ),
    "one image alone": (
        lambda: Model(lambda m, x: torch.stack([m.a(image) for image in x]), a=nn.Conv1d(2, 2, 2)),
        numbers(2, 2, 4),
        dict.fromkeys(("a.weight", "a.bias"), "without the examples|called on 2 dimensions"),
    ),
}


@pytest.mark.parametrize("case", PARTS)
@pytest.mark.filterwarnings("ignore:.*FutureWarning")
def test_the_slower_path_for_just_those_parameters(case):
    build, data, expected = PARTS[case]
    for options in exact.COMBINATIONS[:2]:
        scorer = exact.check(build, data, options, irregular=expected)
        for name, reason in expected.items():
            assert_matches(reason, scorer._engine.irregular[f"model.{name}"])


def assert_matches(pattern, text):
    assert re.search(pattern, text), text


def branch(m, x):
    return m.a(x) if x.sum().item() > 9 else m.b(x)


def test_control_flow_by_the_values_of_a_batch_takes_the_slower_path_for_all():
    names = [f"{layer}.{part}" for layer in "ab" for part in ("weight", "bias")]
    data = torch.tensor([[1.0, 1.0, 1.0], [4.0, 4.0, 4.0], [0.5, 0.2, 0.1]], dtype=torch.float64)
    build = lambda: Model(branch, a=linear(), b=linear())  # noqa: E731
    scorer = exact.check(build, data, exact.COMBINATIONS[0], irregular=names)
    assert "values of a whole batch" in scorer._engine.irregular["model.a.weight"]


def test_control_flow_that_does_not_change_an_example_is_served_by_rules():
    exact.check(lambda: Model(branch, a=linear(), b=linear()), ROWS + 5, exact.COMBINATIONS[0])


TOGETHER = {
    "a loss over the batch": (lambda: linear(), lambda m, x: m(x).softmax(0).sum(1).square()),
    "a contrast between examples": (lambda: linear(), lambda m, x: (m(x) @ m(x).t()).logsumexp(1)),
    "batch norm without running statistics": (
        lambda: nn.Sequential(linear(), nn.BatchNorm1d(3, track_running_stats=False)),
        lambda m, x: m(x).square().sum(1),
    ),
    "batch norm kept in training mode": (
        lambda: Model(lambda m, x: m.norm.train()(m.a(x)), a=linear(), norm=nn.BatchNorm1d(3)),
        lambda m, x: m(x).square().sum(1),
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
@pytest.mark.filterwarnings("ignore:BatchNorm in training mode")
def test_examples_that_interact_are_refused_with_the_reason(case):
    build, losses = TOGETHER[case]
    model = problems.seeded(build)
    scorer = dasgrad.ExampleScorer(model, losses=losses, optimizer=dasgrad.DASGrad(model.parameters()))
    with pytest.raises(ValueError, match="must not depend on the others of its batch"):
        scorer(ROWS)


def test_features_of_a_trained_model_outside_do_not_hide_the_scored_one():
    outside = problems.seeded(lambda: nn.Linear(3, 3))
    scorer = exact.check(linear, ROWS, exact.COMBINATIONS[0], losses=lambda m, x: m(outside(x).tanh()).square().sum(1))
    assert scorer._engine._anchor_all
    outside.zero_grad()
    scorer(ROWS)
    assert all(param.grad is None for param in outside.parameters())


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 2, 3))
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (x * self.factors.exp() + self.shift).tanh()


@pytest.fixture
def own_rule():
    """Registers rules for `Scale`, and takes them back."""
    yield rules.rule(Scale)
    rules._RULES.pop(Scale, None)


def slopes(module, x, grad):
    y = (x * module.factors.detach().exp().to(x.dtype) + module.shift.detach().to(x.dtype)).tanh()
    return grad * (1 - y * y)


def test_a_rule_of_ones_own_serves_its_layer(own_rule):
    @own_rule
    def scale(module, x, *, grad):
        inner, factors = slopes(module, x, grad), module.factors.detach().exp().to(x.dtype)
        return {
            "factors": forms.Dense(lambda rows: inner[rows] * x[rows] * factors),
            "shift": forms.Dense(lambda rows: inner[rows]),
        }

    for options in exact.COMBINATIONS:
        exact.check(lambda: nn.Sequential(linear(), Scale(), linear()), ROWS, options)


def test_a_rule_that_leaves_a_parameter_out(own_rule):
    @own_rule
    def scale(module, x, *, grad):
        inner = slopes(module, x, grad)
        return {"shift": forms.Dense(lambda rows: inner[rows])}

    build = lambda: nn.Sequential(linear(), Scale(), linear())  # noqa: E731
    scorer = exact.check(build, ROWS, exact.COMBINATIONS[0], irregular=["1.factors"])
    assert "does not name it" in scorer._engine.irregular["model.1.factors"]


def test_a_rule_that_is_wrong_is_found_out(own_rule):
    @own_rule
    def scale(module, x, *, grad):
        inner = slopes(module, x, grad)
        return {
            "factors": forms.Dense(lambda rows: inner[rows] * x[rows]),  # exp forgotten
            "shift": forms.Dense(lambda rows: inner[rows]),
        }

    build = lambda: nn.Sequential(linear(), Scale(), linear())  # noqa: E731
    scorer = exact.check(build, ROWS, exact.COMBINATIONS[0], irregular=["1.factors"])
    assert "autograd" in scorer._engine.irregular["model.1.factors"]


def test_rules_are_for_modules():
    with pytest.raises(TypeError, match=r"subclasses of nn\.Module, got 3"):
        rules.rule(3)


def test_examples_that_have_converged_are_no_evidence_against_a_rule():
    """Their gradients in float32 are rounding alone: in float64 the rule is seen to be right."""
    model = problems.seeded(lambda: nn.Linear(40, 1)).float()
    inputs = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    goals = model(inputs).detach().squeeze(1) + 1e-6
    scorer = dasgrad.ExampleScorer(model, lambda out, y: (out.squeeze(1) - y).square(), score="gradient")
    scorer(inputs, goals)  # a warning would be an error
    assert scorer._engine.irregular == {}


def test_models_that_cannot_be_run_in_float64_are_compared_as_they_are():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda module, args, output: output.float())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="gradient")
    expected = problems.norms(problems.pair_gradients(model, ROWS.float(), torch.tensor([0, 1, 1, 0])))
    torch.testing.assert_close(scorer(ROWS.float(), torch.tensor([0, 1, 1, 0])), expected, rtol=1e-5, atol=0)
    assert scorer._engine.irregular == {}
