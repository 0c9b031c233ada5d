"""Listening without a tape: only to passes that are known, and never wrong about one that is not."""

import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import dasgrad
from dasgrad.scoring import forms, native, rules
from scoring import problems

INPUTS, TARGETS = problems.classification()
WEIGHTS = torch.tensor((0.5, 1.0, 2.0, 0.25, 1.5, 1.0), dtype=torch.float64)


class Changing(nn.Module):
    """A plain network, until it is told to compute something else with the same modules and parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 2)
        self.change = Changing.plain

    def forward(self, x):
        return self.change(self, x)

    def plain(self, x):
        return self.second(self.first(x).tanh())

    def used_beside_its_layer(self, x):
        return self.plain(x) + x[:, :1] * self.second.weight.sum()

    def used_before_its_layer(self, x):
        return self.second((self.first(x) * self.second.weight.mean()).tanh())

    def called_twice(self, x):
        return self.second(self.first(self.first(x).tanh()).tanh())

    def by_functions_alone(self, x):
        hidden = functional.linear(x, self.first.weight, self.first.bias).tanh()
        return functional.linear(hidden, self.second.weight, self.second.bias)

    def one_by_a_function(self, x):
        hidden = functional.linear(x, self.first.weight, self.first.bias).tanh()
        return self.second(hidden)

    def also_called_without_gradients(self, x):
        with torch.no_grad():
            self.first(2 * x)
        return self.plain(x)

    def first_without_gradients(self, x):
        with torch.no_grad():
            hidden = self.first(x).tanh()
        return self.second(hidden)

    def checkpointed(self, x):
        return self.second(checkpoint(lambda v: self.first(v).tanh(), x, use_reentrant=False))

    def checkpointed_with_reentrance(self, x):
        x = x.clone().requires_grad_()
        return self.second(checkpoint(lambda v: self.first(v).tanh(), x, use_reentrant=True))

    def called_with_fewer_examples(self, x):
        last = functional.linear(x[-1:], self.first.weight, self.first.bias)
        return self.second(torch.cat([self.first(x[:-1]), last]).tanh())


def make(model, **options):
    options = {"score": "gradient", **options}
    return dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()), **options)


def batch():
    return dasgrad.WeightedBatch((INPUTS, TARGETS), torch.arange(6), WEIGHTS)


def step(model, listened):
    return listened.weighted_mean(problems.cross_entropy(model(listened.inputs), listened.targets))


def hear(scorer, model, backward=torch.Tensor.backward):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the slower path is announced
        with scorer.listen(batch()) as heard:
            backward(step(model, batch()))
    return heard.scores


def expected(model):
    return problems.norms(problems.pair_gradients(model, INPUTS, TARGETS))


def learn(scorer, model):
    """Listen to a pass, so that the next one of its kind is known."""
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert [plan is not None for plan in scorer._ear._plans.values()] == [True]


def without_tape(scorer, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a tape was asked for")

    monkeypatch.setattr(scorer._engine, "tape", refuse)


def is_known(scorer):
    return all(plan is not None for plan in scorer._ear._plans.values())


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (problems.network, INPUTS),
        (lambda: nn.Sequential(nn.Linear(3, 2, bias=False)), INPUTS),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 2)), INPUTS),
        (
            lambda: nn.Sequential(nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 2)),
            INPUTS.unsqueeze(1),
        ),
        (lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 2), nn.Flatten(), nn.Linear(6, 2)), INPUTS),
        (lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(9, 2)), INPUTS.abs().long() % 5),
    ],
)
@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_a_known_pass_is_heard_without_a_tape(build, inputs, weighting, monkeypatch):
    model = problems.seeded(build)
    optimizer = dasgrad.DASGrad(model.parameters(), weighting=weighting, lr=0.05)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")
    drawn = dasgrad.WeightedBatch((inputs, TARGETS), torch.arange(6), WEIGHTS)
    for number in range(3):
        wanted = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")(*drawn.data)
        with scorer.listen(drawn) as heard:
            optimizer.zero_grad()
            drawn.backward(problems.cross_entropy(model(drawn.inputs), drawn.targets), optimizer)
        torch.testing.assert_close(heard.scores, wanted, rtol=1e-9, atol=1e-12)
        optimizer.step()
        if number == 0:
            without_tape(scorer, monkeypatch)
    assert all(not module._forward_hooks for module in model.modules())
    assert all(not param._backward_hooks for param in model.parameters())


@pytest.mark.parametrize(
    "change",
    [
        Changing.used_beside_its_layer,
        Changing.used_before_its_layer,
        Changing.called_twice,
        Changing.by_functions_alone,
        Changing.one_by_a_function,
        Changing.also_called_without_gradients,
        Changing.first_without_gradients,
        Changing.called_with_fewer_examples,
        Changing.checkpointed,
        Changing.checkpointed_with_reentrance,
    ],
    ids=lambda change: change.__name__,
)
def test_another_pass_through_the_same_modules_is_noticed(change):
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    model.change = change
    for _ in range(2):  # scored anew, then by a tape
        torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=1e-12)
        assert not is_known(scorer)


def test_a_second_backward_pass_is_looked_at_too():
    """A graph of its own, through none of the layers."""

    def backward(loss):
        loss.backward()
        model.second.weight.sum().backward()

    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    torch.testing.assert_close(hear(scorer, model, backward), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def test_a_block_without_a_backward_pass_is_scored_all_the_same():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    torch.testing.assert_close(hear(scorer, model, lambda loss: None), expected(model), rtol=1e-9, atol=0)


def test_a_layer_that_computes_something_else_is_noticed(monkeypatch):
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * plain(self, x))
    hear(scorer, model)
    assert not is_known(scorer)


def test_a_square_layer_that_no_longer_transposes_its_weight_is_noticed(monkeypatch):
    def forward(layer, x):
        return plain(layer, x) if layer is model.second else torch.addmm(layer.bias, x, layer.weight)

    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", forward)
    hear(scorer, model)
    assert not is_known(scorer)


def test_a_hook_that_changes_the_input_by_the_weight_is_noticed():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    model.second.register_forward_pre_hook(lambda module, args: (args[0] * module.weight.sum(),))
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def test_hooks_that_change_input_or_output_alone_are_heard(monkeypatch):
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    model.second.register_forward_pre_hook(lambda module, args: (args[0].clone() * 2,))
    model.first.register_forward_hook(lambda module, args, output: output.sin())
    wanted = expected(model)
    without_tape(scorer, monkeypatch)
    torch.testing.assert_close(hear(scorer, model), wanted, rtol=1e-9, atol=0)
    assert is_known(scorer)


def test_a_layer_without_the_examples_is_noticed(monkeypatch):
    def forward(self, x):
        half = len(x) // 2
        return torch.cat([self.layer(x[:half]), 0 * x[half:]]) if self.halved else self.layer(x)

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @rules.rule(Copying, misfit=lambda *args, **kwargs: None)
    def scale(module, x, *, grad):
        return {"factors": forms.Dense(lambda rows: grad[rows] * x[rows])}

    monkeypatch.setattr(nn.ModuleDict, "forward", forward, raising=False)
    model = problems.seeded(lambda: nn.ModuleDict({"layer": Copying()}))
    model.halved, model.layer = False, model["layer"]
    scorer = make(model)
    learn(scorer, model)
    model.halved = True
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)


class Copying(nn.Module):
    """A layer that keeps a copy of its input for the backward pass, so that nobody minds the input overwritten."""

    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x.clone() * self.factors


def test_an_input_overwritten_after_the_call_is_noticed(monkeypatch):
    def forward(self, x):
        x = x.clone()
        scaled = self.scale(x)
        if self.overwriting:
            x.zero_()
        return self.head(scaled)

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @rules.rule(Copying)
    def scale(module, x, *, grad):
        return {"factors": forms.Dense(lambda rows: grad[rows] * x[rows])}

    monkeypatch.setattr(nn.ModuleDict, "forward", forward, raising=False)
    model = problems.seeded(lambda: nn.ModuleDict({"scale": Copying(), "head": nn.Linear(3, 2)}))
    model.overwriting = False
    model.scale, model.head = model["scale"], model["head"]
    scorer = make(model)
    learn(scorer, model)
    model.overwriting = True
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def freeze(model, optimizer):
    model.first.weight.requires_grad_(False)


def replace_parameter(model, optimizer):
    model.second.weight = nn.Parameter(model.second.weight.detach() * 2)
    optimizer.add_param_group({"params": [model.second.weight]})


def replace_module(model, optimizer):
    model.first = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    optimizer.add_param_group({"params": list(model.first.parameters())})


def step_less(model, optimizer):
    optimizer.param_groups[0]["params"].pop()


def own_forward(model, optimizer):
    model.first.forward = lambda x: nn.Linear.forward(model.first, 3 * x)


@pytest.mark.parametrize("change", [freeze, replace_parameter, replace_module, step_less, own_forward])
def test_a_changed_model_is_another_kind(change):
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    change(model, scorer.optimizer)
    fresh = dasgrad.ExampleScorer(model, problems.cross_entropy, scorer.optimizer, score="gradient")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = fresh(INPUTS, TARGETS)
    torch.testing.assert_close(hear(scorer, model), wanted, rtol=1e-9, atol=0)


def test_a_layer_whose_parameters_have_their_examples_in_different_places_is_not_known():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    (plan,) = scorer._ear._plans.values()
    plan.bearings.clear()
    plan.dims["model.second.bias"] = 1
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def test_batch_statistics_are_another_kind():
    """In training mode the layer has no rule; it is scored in eval mode, by the slower path."""
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).eval()
    scorer = make(model)
    learn(scorer, model)
    model.train()
    hear(scorer, model)
    assert list(scorer._ear._plans.values())[1:] == [None]


def test_autocast_is_noticed():
    model = problems.seeded(Changing).float()
    scorer = make(model)
    data = (INPUTS.float(), TARGETS)
    drawn = dasgrad.WeightedBatch(data, torch.arange(6), WEIGHTS)
    for cast in (False, True):
        with scorer.listen(drawn) as heard, torch.autocast("cpu", torch.bfloat16, enabled=cast):
            step(model, drawn).backward()
        assert is_known(scorer) is not cast
    torch.testing.assert_close(heard.scores, scorer(*data), rtol=1e-5, atol=0)


def test_a_hook_that_changes_a_gradient_keeps_the_tape():
    model = problems.seeded(Changing)
    model.first.weight.register_hook(lambda gradient: gradient * 2)
    scorer = make(model)
    hear(scorer, model)
    assert not is_known(scorer)


def test_shared_parameters_keep_the_tape():
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)))
    model[2].weight = model[0].weight
    scorer = make(model)
    for _ in range(2):
        torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
        assert not is_known(scorer)


def test_a_graph_used_after_the_block_is_left_alone():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    with scorer.listen(batch()) as heard:
        loss = step(model, batch())
        loss.backward(retain_graph=True)
    first = heard.scores.clone()
    loss.backward()
    assert torch.equal(heard.scores, first)
    assert is_known(scorer)


def test_a_graph_of_an_earlier_block_is_no_part_of_a_later_one():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    with scorer.listen(batch()):
        earlier = step(model, batch())
        earlier.backward(retain_graph=True)

    def backward(loss):
        loss.backward()
        earlier.backward()

    assert is_known(scorer)
    torch.testing.assert_close(hear(scorer, model, backward), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def test_nothing_of_a_batch_is_held_after_its_block():
    model = problems.seeded(lambda: nn.Linear(3, 2))
    scorer = make(model, score="dasgrad", preconditioner="frozen")
    hear(scorer, model)
    inputs = INPUTS.clone()
    held, data = weakref.ref(inputs), dasgrad.WeightedBatch((inputs, TARGETS), torch.arange(6), WEIGHTS)
    gc.collect()
    gc.disable()  # a cycle would be there until it is collected
    try:
        with scorer.listen(data):
            step(model, data).backward()
        assert is_known(scorer)
        del inputs, data
        assert held() is None
    finally:
        gc.enable()


def test_blocks_may_be_nested():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    with scorer.listen(batch()) as outer, scorer.listen(batch()) as inner:
        step(model, batch()).backward()
    for heard in (outer, inner):
        torch.testing.assert_close(heard.scores, expected(model), rtol=1e-9, atol=0)
    assert is_known(scorer)
    assert_no_hooks(model)


def test_nested_blocks_may_be_left_in_any_order():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    for _ in range(3):
        first, second = scorer.listen(batch()), scorer.listen(batch())
        heard = first.__enter__(), second.__enter__()
        step(model, batch()).backward()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        for each in heard:
            torch.testing.assert_close(each.scores, expected(model), rtol=1e-9, atol=0)
        assert is_known(scorer)
        assert_no_hooks(model)


def test_a_layer_with_a_forward_of_its_own_keeps_it():
    model = problems.seeded(Changing)
    scorer, wanted, plain = make(model), expected(model), model.first.forward
    model.first.forward = own = lambda x: plain(x)
    for _ in range(3):
        torch.testing.assert_close(hear(scorer, model), wanted, rtol=1e-9, atol=0)
        assert model.first.forward is own


def test_a_forward_put_on_in_the_block_stays_and_is_another_kind():
    def wrap(loss):
        inner = model.first.forward
        wrapped.append(lambda x: inner(x))
        model.first.forward = wrapped[-1]
        loss.backward()

    model = problems.seeded(Changing)
    scorer, wanted, wrapped = make(model), expected(model), []
    learn(scorer, model)
    for backward in (wrap, wrap, torch.Tensor.backward, torch.Tensor.backward):
        torch.testing.assert_close(hear(scorer, model, backward), wanted, rtol=1e-9, atol=0)
        assert model.first.forward is wrapped[-1]
    assert len(scorer._ear._plans) == 2


def test_an_error_in_a_known_pass_leaves_no_trace():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    model.change = lambda self, x: {}[self.first(x)]
    with pytest.raises(KeyError), scorer.listen(batch()):
        step(model, batch())
    assert_no_hooks(model)
    model.change = Changing.plain
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert is_known(scorer)


def test_hooks_somebody_took_away_are_put_back():
    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    hear(scorer, model)
    for param in model.parameters():
        param._backward_hooks = None
    model.change = Changing.used_beside_its_layer
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=1e-12)
    assert not is_known(scorer)
    assert_no_hooks(model)


def test_hooks_somebody_takes_away_in_the_block_are_missed():
    def backward(loss):
        for param in model.parameters():
            param._backward_hooks = None
        loss.backward()

    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    torch.testing.assert_close(hear(scorer, model, backward), expected(model), rtol=1e-9, atol=0)
    assert not is_known(scorer)


def test_a_gradient_changed_at_a_layers_output_is_heard_as_its_parameters_get_it():
    def forward(module, args, output):
        output.register_hook(lambda gradient: gradient * 2)

    model = problems.seeded(Changing)
    scorer = make(model)
    learn(scorer, model)
    model.second.register_forward_hook(forward)
    torch.testing.assert_close(hear(scorer, model), expected(model), rtol=1e-9, atol=0)
    assert is_known(scorer)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_small_layers_are_measured_the_same_with_and_without_the_core(compiled, dtype, bias, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "library", None)
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 40, bias=bias), nn.ReLU(), nn.Linear(40, 2))).to(dtype)
    model[2].bias.requires_grad_(False)
    # So slow that no probability comes near 1, where 1 − p has few digits in float32, whoever computes it.
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.005, bias_correction=True)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")
    drawn = dasgrad.WeightedBatch((INPUTS.to(dtype), TARGETS), torch.arange(6), WEIGHTS)
    for number in range(4):
        exact = problems.pair_gradients(model, drawn.inputs, drawn.targets)
        wanted = torch.zeros(6, dtype=torch.float64)
        for name, param in model.named_parameters():
            if not param.requires_grad:
                continue
            state = optimizer.state[param]
            curvature = state["max_exp_avg_sq"].double() if number else torch.zeros_like(param, dtype=torch.float64)
            metric = (curvature / (1 - 0.99 ** max(1, number))).sqrt() + optimizer.param_groups[0]["eps"]
            wanted += (exact[name].double().square() / metric).flatten(1).sum(1)
        with scorer.listen(drawn) as heard:
            optimizer.zero_grad()
            step(model, drawn).backward()
        tolerance = 1e-9 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(heard.scores.double(), wanted.sqrt(), rtol=tolerance, atol=0)
        optimizer.step()
    assert is_known(scorer)


class Showing(nn.Module):
    """A network that lets others at what its layers get in the forward and in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        self.hidden = self.first(x).tanh()
        outputs = self.second(self.hidden)
        if outputs.requires_grad:
            outputs.register_hook(partial(setattr, self, "gradient"))
        return outputs


@pytest.mark.parametrize("which", ["hidden", "gradient"])
def test_what_is_overwritten_after_the_backward_pass_does_no_harm(which):
    def overwrite(loss):
        loss.backward()
        with torch.no_grad():
            getattr(model, which).zero_()

    model = problems.seeded(Showing)
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")
    wanted = scorer(INPUTS, TARGETS)
    for backward in (torch.Tensor.backward, torch.Tensor.backward, overwrite):
        torch.testing.assert_close(hear(scorer, model, backward), wanted, rtol=1e-9, atol=0)
        assert is_known(scorer)


def swap_state(optimizer, param):
    optimizer.state[param]["max_exp_avg_sq"] = optimizer.state[param]["max_exp_avg_sq"] * 4


def replace_state(optimizer, param):
    optimizer.state[param] = {key: value * 4 for key, value in optimizer.state[param].items()}


def load_state(optimizer, param):
    saved = optimizer.state_dict()
    saved["state"] = {k: {key: value * 4 for key, value in state.items()} for k, state in saved["state"].items()}
    optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, param: optimizer.step(),
        lambda optimizer, param: optimizer.param_groups[0].update(lr=0.5),
        lambda optimizer, param: optimizer.param_groups[0].update(lr=torch.tensor(0.5)),
        lambda optimizer, param: optimizer.param_groups[1].update(eps=0.1),
        lambda optimizer, param: optimizer.param_groups[0].update(bias_correction=True),
        lambda optimizer, param: optimizer.param_groups[0].update(weighting="update"),
        lambda optimizer, param: optimizer.state[param]["max_exp_avg_sq"].mul_(4),
        swap_state,
        replace_state,
        load_state,
    ],
)
def test_measures_are_used_again_only_while_they_are_the_same(change):
    model = problems.seeded(Changing)
    groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.05}]
    optimizer = dasgrad.DASGrad(groups, lr=0.01)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")
    for number in range(5):
        if number == 3:
            change(optimizer, model.first.weight)
        wanted = scorer(INPUTS, TARGETS)
        torch.testing.assert_close(hear(scorer, model), wanted, rtol=1e-9, atol=0)
        if number < 2:
            optimizer.step()
    assert is_known(scorer)


def test_measures_are_used_again(monkeypatch):
    if not native.supports(INPUTS):
        pytest.skip("needs the compiled core")
    model = problems.seeded(Changing)
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner="frozen")
    for _ in range(3):
        hear(scorer, model)
        optimizer.step()
    wanted = scorer(INPUTS, TARGETS)
    monkeypatch.setattr(scorer, "_measures", None)
    torch.testing.assert_close(hear(scorer, model), wanted, rtol=1e-9, atol=0)


def assert_no_hooks(model):
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(not module._forward_hooks and not module._forward_hooks_with_kwargs for module in model.modules())
    assert all(not param._backward_hooks for param in model.parameters())
