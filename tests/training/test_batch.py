from collections import namedtuple

import pytest
import torch

import dasgrad


def make(weights=(0.5, 2.0, 1.0), data=None):
    data = (torch.ones(3, 2), torch.zeros(3)) if data is None else data
    return dasgrad.WeightedBatch(data, torch.tensor([4, 0, 4]), torch.as_tensor(weights).double())


def test_weighted_mean_divides_by_the_batch_size_not_by_the_weights():
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    value = make().weighted_mean(losses)
    torch.testing.assert_close(value, torch.tensor((0.5 + 4.0 + 3.0) / 3))
    value.backward()
    torch.testing.assert_close(losses.grad, torch.tensor([0.5, 2.0, 1.0]) / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weighted_mean_is_taken_in_at_least_float32(dtype):
    value = make().weighted_mean(torch.ones(3, dtype=dtype))
    assert value.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_does_not_lower_the_precision_of_the_weighted_mean(dtype):
    losses = torch.tensor([1.0, 2.0, 3.0]) * (1 + 2**-20)
    expected = make().weighted_mean(losses)
    with torch.autocast("cpu", dtype=dtype):
        value = make().weighted_mean(losses)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)


def test_weighted_mean_adds_a_single_node_to_the_graph_and_leaves_the_weights_alone():
    for dtype in (torch.float32, torch.float64):
        batch = make()
        losses = torch.ones(3, dtype=dtype, requires_grad=True) * 2
        before = batch.weights.clone()
        assert batch.weighted_mean(losses).grad_fn.next_functions[0][0] is losses.grad_fn
        assert torch.equal(batch.weights, before)


def test_pairs_and_other_data():
    batch = make()
    assert batch.inputs.shape == (3, 2)
    assert batch.targets.shape == (3,)
    assert len(batch) == 3
    other = make(data={"a": torch.zeros(3)})
    with pytest.raises(TypeError, match=r"`WeightedBatch.inputs` needs .* got dict; use `.data`"):
        _ = other.inputs
    with pytest.raises(TypeError, match=r"got tuple of length 3; use `.data`"):
        _ = make(data=(1, 2, 3)).targets


def test_to_moves_nested_data():
    pair = namedtuple("Pair", "x y")
    data = {"p": pair(torch.zeros(3), [torch.ones(3), "text"]), "none": None}
    moved = make(data=data).to("meta")
    assert moved.data["p"].x.device.type == "meta"
    assert moved.data["p"].y[0].device.type == "meta"
    assert moved.data["p"].y[1] == "text"
    assert moved.weights.device.type == moved.indices.device.type == "meta"


@pytest.mark.parametrize("shape", [(), (3, 1), (2,), (1, 3)])
def test_losses_must_be_one_value_per_example(shape):
    with pytest.raises(ValueError, match=r"one value per example, shape \(3,\)"):
        make().weighted_mean(torch.zeros(shape))


def test_backward_serves_both_weightings_and_any_optimizer():
    """gradient: p.grad is g̃; update: p.grad is ḡ and the optimizer holds g̃ and w̄, to the letter."""
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    weights = torch.tensor([0.5, 2.0, 1.0])
    for optimizer_of in (
        lambda p: dasgrad.DASGrad(p),
        lambda p: dasgrad.DASGrad(p, weighting="update"),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ):
        theta = torch.nn.Parameter(torch.ones(2))
        unused = torch.nn.Parameter(torch.ones(1))
        optimizer = optimizer_of([theta, unused])
        loss = make(weights).backward(x @ theta, optimizer, num_accumulated=2)
        torch.testing.assert_close(loss, torch.tensor((0.5 * 1 + 2 * 3 + 4.0) / 3))
        weighted = (weights[:, None] * x).mean(0) / 2
        if getattr(optimizer, "weighting", "") == "update":
            torch.testing.assert_close(theta.grad, x.mean(0) / 2)
            torch.testing.assert_close(optimizer._update_grads[theta], weighted)
            torch.testing.assert_close(float(optimizer._mean_weight), float(weights.mean()) / 2)
            assert unused not in optimizer._update_grads
        else:
            torch.testing.assert_close(theta.grad, weighted)


def test_backward_refuses_a_bad_count():
    with pytest.raises(ValueError, match=r"num_accumulated=.*positive integer, got 0"):
        make().backward(torch.zeros(3), torch.optim.SGD([torch.zeros(1)], lr=0.1), num_accumulated=0)
