"""Faster ways to compute torch functions: the same to rounding, in the scorer's own passes alone, and checked there."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import dasgrad
from dasgrad.scoring import native, rules
from dasgrad.scoring.rules import DeclinedError
from dasgrad.scoring.rules.dot_products import attend
from dasgrad.scoring.rules.pooling import max_pool2d
from dasgrad.scoring.rules.response_norm import local_response_norm
from scoring import exact, problems


@pytest.mark.parametrize("beta", [0.75, 0.5, 1.3])
@pytest.mark.parametrize("size", [1, 2, 5, 9, 12])
@pytest.mark.parametrize("shape", [(2, 5, 7), (3, 10, 4, 4), (2, 6, 3, 2, 2), (1, 1, 1)])
def test_response_norms_are_torchs(shape, size, beta):
    x, gradient = exact.numbers(*shape).requires_grad_(), exact.numbers(*shape, seed=1)
    options = (size, 0.5, beta, 1.5)
    expected, found = functional.local_response_norm(x, *options), local_response_norm(x, *options)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    wanted, got = (torch.autograd.grad(output, x, gradient)[0] for output in (expected, found))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"stride": (1, 2), "dilation": 2}, {"stride": 2, "ceil_mode": True}],
)
@pytest.mark.parametrize("kernel", [3, (2, 3)])
def test_maxima_are_torchs_ties_and_all(kernel, options):
    x = exact.numbers(2, 16, 7, 8).relu().mul(2).round().requires_grad_()
    expected, found = functional.max_pool2d(x, kernel, **options), max_pool2d(x, kernel, **options)
    assert torch.equal(found, expected)
    assert found.is_contiguous()
    gradient = exact.numbers(*expected.shape, seed=1)
    wanted, got = (torch.autograd.grad(output, x, gradient)[0] for output in (expected, found))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, 3, 4, 4),
        torch.ones(16, 4, 4),
        torch.ones(2, 16, 4, 4, dtype=torch.bfloat16),
        torch.ones(2, 4, 4, 16).permute(0, 3, 1, 2),
        torch.ones(0, 16, 4, 4),
    ],
)
def test_maxima_that_have_no_faster_way_are_declined(x):
    with pytest.raises(DeclinedError):
        max_pool2d(x, 2)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_response_norms_in_any_layout(layout):
    x = exact.numbers(2, 6, 3, 4).to(memory_format=layout).float()
    torch.testing.assert_close(local_response_norm(x, 3), functional.local_response_norm(x, 3), rtol=1e-6, atol=0)


def test_what_has_no_faster_way_is_declined(monkeypatch):
    for x, size in ((torch.ones(2, 3, 4, dtype=torch.bfloat16), 2), (torch.ones(2, 3), 2), (torch.ones(2, 0, 4), 2)):
        with pytest.raises(DeclinedError):
            local_response_norm(x, size)
    with pytest.raises(DeclinedError):
        local_response_norm(torch.ones(2, 3, 4), 0)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")  # products of rounded numbers
    with pytest.raises(DeclinedError):
        local_response_norm(torch.ones(2, 3, 4), 2)


needs_attention = pytest.mark.skipif(
    not native.attends(torch.zeros(1)), reason="needs the compiled core and its widest vectors"
)


@needs_attention
@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7, 3, 9), (1, 1, 1, 1, 1, 1), (2, 2, 17, 33, 20, 8), (2, 4, 64, 64, 16, 16)]
)
def test_attention_is_torchs(shape, dtype, num_threads, scale, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    num_examples, num_heads, num_queries, num_keys, width, value_width = shape
    sizes = (num_queries, width), (num_keys, width), (num_keys, value_width), (num_queries, value_width)
    parts = [exact.numbers(num_examples, n, num_heads, k, seed=i).transpose(1, 2) for i, (n, k) in enumerate(sizes)]
    *inputs, gradient = (part.to(dtype) for part in parts)
    precise = [part.double().requires_grad_() for part in inputs]
    inputs = [part.requires_grad_() for part in inputs]
    expected = functional.scaled_dot_product_attention(*precise, scale=scale)
    found = attend(*inputs, scale=scale)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    wanted = torch.autograd.grad(expected, precise, gradient.double())
    for got, want in zip(torch.autograd.grad(found, inputs, gradient), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=10 * tolerance)


@needs_attention
def test_attention_on_products_that_are_far_apart():
    query, key, value = (exact.numbers(1, 1, 4, 2, seed=k).float() for k in range(3))
    query, key = -100 * query, 100 * key
    expected = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attend(query, key, value), expected)


@needs_attention
def test_gradients_of_attentions_gradient_are_refused():
    query, key, value = exact.numbers(3, 2, 1, 4, 16, seed=0).requires_grad_().unbind()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(attend(query, key, value).sum(), query, create_graph=True)


def test_attention_that_has_no_faster_way_is_declined():
    plain = torch.ones(2, 2, 4, 8)
    for parts, options in (
        ([plain] * 3, {"is_causal": True}),
        ([plain] * 3, {"attn_mask": torch.ones(4, 4)}),
        ([plain] * 3, {"dropout_p": 0.1}),
        ([plain.bfloat16()] * 3, {}),
        ([plain[0]] * 3, {}),
        ([plain, plain[:1], plain[:1]], {}),
        ([plain[:0]] * 3, {}),
        ([torch.ones(1, 1, 300, 8)] * 3, {}),
    ):
        with pytest.raises(DeclinedError):
            attend(*parts, **options)


def test_scores_through_attention_are_exact():
    def build():
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    exact.check(build, exact.numbers(3, 5, 8), exact.COMBINATIONS[3])


def network():
    return nn.Sequential(nn.Conv1d(2, 6, 2), nn.LocalResponseNorm(3, alpha=0.9), nn.Flatten(), nn.Linear(18, 3))


DATA = exact.numbers(4, 2, 4)


@pytest.mark.parametrize("options", exact.COMBINATIONS, ids=lambda o: f"{o['preconditioner']}-{o['momentum']}")
def test_scores_by_a_stand_in_are_exact(options, monkeypatch):
    called = []

    def counting(*args, **kwargs):
        called.append(args)
        return local_response_norm(*args, **kwargs)

    monkeypatch.setitem(rules._STAND_INS, functional.local_response_norm, counting)
    exact.check(network, DATA, options)
    assert called


def test_scores_through_pooling_are_exact():
    def build():
        return nn.Sequential(nn.Conv2d(1, 16, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(64, 3))

    exact.check(build, exact.numbers(3, 1, 4, 4), exact.COMBINATIONS[1])


def test_a_wrong_stand_in_is_found_out(monkeypatch):
    monkeypatch.setitem(rules._STAND_INS, functional.local_response_norm, lambda x, *args, **kwargs: x * 0.9)
    names = [f"{layer}.{name}" for layer in (0, 3) for name in ("weight", "bias")]
    exact.check(network, DATA, exact.COMBINATIONS[0], irregular=names)


def test_listening_leaves_the_step_to_torch(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a stand-in took part in a training step")

    model = problems.seeded(network)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    targets = torch.arange(4) % 3
    batch = dasgrad.WeightedBatch((DATA, targets), torch.arange(4), torch.ones(4))
    expected = scorer(DATA, targets)
    monkeypatch.setitem(rules._STAND_INS, functional.local_response_norm, refuse)
    for _ in range(2):
        with scorer.listen(batch) as heard:
            batch.weighted_mean(problems.cross_entropy(model(DATA), targets)).backward()
        torch.testing.assert_close(heard.scores, expected, rtol=1e-9, atol=0)
