"""Scoring leaves everything as it was, also when it fails, and does not mind the mode it is called in."""

import contextlib
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()
SCORES = ("dasgrad", "gradient", "last_layer", "loss")


class Model(nn.Module):
    """Dropout, running statistics, a buffer the forward pass writes to, a recurrent layer and a hook."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("latest", torch.zeros(2), persistent=False)

    def forward(self, x):
        self.calls += 1
        hidden = self.rnn(self.drop(self.norm(self.first(x))).unsqueeze(1))[0][:, 0]
        outputs = self.head(hidden)
        self.latest = outputs.detach().mean(0)
        return outputs


def prepared():
    """A model with gradients, mixed modes, a frozen parameter, hooks, and an optimizer that has stepped."""
    model = problems.seeded(Model)
    model.norm.eval()
    model.first.bias.requires_grad_(False)
    hooks = []
    model.first.register_forward_hook(lambda *_: hooks.append("forward"))
    model.head.weight.register_hook(lambda grad: hooks.append("gradient") and None)
    optimizer = dasgrad.DASGrad([p for p in model.parameters() if p.requires_grad])
    problems.cross_entropy(model(INPUTS), TARGETS).mean().backward()
    optimizer.step()
    return model, optimizer


def snapshot(model, optimizer) -> dict:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "identity": {name: id(t) for name, t in tensors.items()},
        "version": {name: t._version for name, t in tensors.items()},
        "values": {name: t.detach().clone().tolist() for name, t in tensors.items()},
        "requires_grad": {name: t.requires_grad for name, t in tensors.items()},
        "grad": {name: (id(t.grad), None if t.grad is None else t.grad.tolist()) for name, t in tensors.items()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            name: [len(h) for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)]
            for name, m in model.named_modules()
        },
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "flat weights": [id(w) for w in model.rnn._flat_weights],
        "state": {id(p): {key: value.tolist() for key, value in state.items()} for p, state in optimizer.state.items()},
        "torch rng": torch.get_rng_state().tolist(),
        "numpy rng": repr(np.random.get_state()),  # noqa: NPY002 - the global state is the point
        "python rng": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "fast attention": torch.backends.mha.get_fastpath_enabled(),
        "warn only": torch.are_deterministic_algorithms_enabled(),
    }


def noisy_loss(outputs, targets):
    """A loss that draws from every global generator."""
    random.random()
    np.random.rand()  # noqa: NPY002 - the global state is the point
    torch.rand(1)
    return problems.cross_entropy(outputs, targets)


def compare(before, after) -> None:
    for key, value in before.items():
        assert after[key] == value, key


def make(model, optimizer, score, path, loss_fn=noisy_loss):
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer, score=score)
    problems.force(scorer, path)
    return scorer


pytestmark = pytest.mark.filterwarnings(
    "ignore:`ExampleScorer` computes per-example gradients one by one", "ignore:BatchNorm in training mode"
)


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("score", SCORES)
def test_nothing_is_changed(score, path):
    model, optimizer = prepared()
    scorer = make(model, optimizer, score, path)
    before = snapshot(model, optimizer)
    scores = scorer(INPUTS, TARGETS)
    compare(before, snapshot(model, optimizer))
    whole = scorer.score_dataset([(INPUTS[i], TARGETS[i]) for i in range(6)], chunk_size=4)
    compare(before, snapshot(model, optimizer))
    torch.testing.assert_close(whole, scores, rtol=1e-12, atol=0)


def test_modes_are_restored_module_by_module_from_training_mode():
    model, optimizer = prepared()
    model.train()
    model.drop.eval()
    before = snapshot(model, optimizer)
    make(model, optimizer, "dasgrad", False)(INPUTS, TARGETS)
    compare(before, snapshot(model, optimizer))


class OwnError(Exception):
    """Raised by the user's code."""


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("kind", [OwnError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("score", [*SCORES, "function"])
def test_nothing_is_changed_by_a_failure_in_the_middle(score, kind, path):
    model, optimizer = prepared()

    def failing(outputs, targets):
        random.random()
        np.random.rand()  # noqa: NPY002 - the global state is the point
        torch.rand(1)
        raise kind("halfway")

    if score == "function":
        score = lambda m, data: failing(*data)  # noqa: E731 - one line says it
    scorer = make(model, optimizer, score, path, failing)
    before = snapshot(model, optimizer)
    for attempt in (
        lambda: scorer(INPUTS, TARGETS),
        lambda: scorer.score_dataset([(INPUTS[i], TARGETS[i]) for i in range(6)], 2),
    ):
        with pytest.raises(kind, match="halfway"):
            attempt()
        compare(before, snapshot(model, optimizer))


def test_training_goes_on_as_if_nothing_had_been_scored():
    """Dropout masks, running statistics and steps are the same, bit for bit."""

    def run(scoring):
        torch.manual_seed(7)
        model, optimizer = prepared()
        scorer = make(model, optimizer, "dasgrad", False)
        for _ in range(3):
            if scoring:
                scorer(INPUTS, TARGETS)
            optimizer.zero_grad()
            problems.cross_entropy(model(INPUTS), TARGETS).mean().backward()
            optimizer.step()
        return model.state_dict()

    plain, scored = run(False), run(True)
    for name, value in plain.items():
        assert torch.equal(value, scored[name]), name


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "enable_grad": torch.enable_grad,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("score", SCORES)
def test_the_callers_mode_does_not_matter(score, path, mode):
    model = problems.network(dtype=torch.float32)
    optimizer = dasgrad.DASGrad(model.parameters())
    inputs = INPUTS.float()
    scorer = make(model, optimizer, score, path)
    expected = scorer(inputs, TARGETS)
    with MODES[mode]():
        held = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        scores = scorer(inputs, TARGETS)
        made_here = scorer(inputs.clone(), TARGETS.clone())  # inference tensors, in inference mode
        whole = scorer.score_dataset((inputs, TARGETS), 4)
        now = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        assert now == held
    for found in (scores, made_here, whole):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert not found.is_inference()


@pytest.mark.parametrize("score", SCORES)
def test_tables_that_shorten_their_rows_are_not_written_to(score):
    model = problems.seeded(lambda: nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(6, 2)))
    before = model[0].weight.detach().clone()
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, score=score)
    by_rules = score in ("dasgrad", "gradient")
    with pytest.warns(UserWarning, match="max_norm") if by_rules else contextlib.nullcontext():
        scorer(torch.tensor([[0, 1], [2, 3]]), TARGETS[:2])
    assert torch.equal(model[0].weight, before)


def test_nothing_of_a_pass_is_kept():
    """The tensors of a pass are freed when it ends, those of parameters without a rule too."""
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    model[2].forward = lambda x: nn.functional.linear(x, model[2].weight, model[2].bias)
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(args[0])))
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    gc.disable()
    try:
        with pytest.warns(UserWarning, match="slower path for 2"):
            scorer(INPUTS.clone(), TARGETS.clone())
        assert all(held() is None for held in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("score", SCORES)
def test_nothing_is_changed_in_a_model_without_buffers(score, dtype):
    """Losses of such a model are those of the model itself, and not of copies."""
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
    model.train()
    before = {name: (id(p), p._version, p.detach().clone()) for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    scorer = dasgrad.ExampleScorer(
        model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()), score=score, dtype=dtype
    )
    scores = scorer(INPUTS, TARGETS)
    assert not scores.requires_grad
    assert torch.equal(scores, scorer(INPUTS, TARGETS))  # without dropout
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    for name, param in model.named_parameters():
        identity, version, values = before[name]
        assert (id(param), param._version, param.grad) == (identity, version, None)
        assert torch.equal(param, values)


@pytest.mark.parametrize("has_buffer", [False, True])
def test_losses_keep_no_graph(has_buffer):
    model, graphs = problems.seeded(lambda: nn.Linear(3, 2)), []
    if has_buffer:
        model.register_buffer("other", torch.zeros(()))
    model.register_forward_hook(lambda module, args, output: graphs.append(output.requires_grad))
    dasgrad.ExampleScorer(model, problems.cross_entropy, score="loss")(INPUTS, TARGETS)
    assert graphs
    assert not any(graphs)
