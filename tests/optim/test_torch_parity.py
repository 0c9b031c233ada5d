"""Where our definitions coincide with torch.optim's, the trajectories do too."""

import pytest
import torch

import dasgrad

PATHS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}, "default": {}}


def trajectory(make_optimizer, make_scheduler=None, num_steps=100):
    """Parameters along a small non-convex problem whose gradients depend on them."""
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(4, 3, generator=generator).double()),
        torch.nn.Parameter(torch.zeros(3).double()),
    ]
    optimizer = make_optimizer(params)
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    inputs = torch.randn(num_steps, 8, 4, generator=generator).double()
    path = []
    for x in inputs:
        optimizer.zero_grad()
        (torch.tanh(x @ params[0] + params[1]) - x[:, :3]).square().mean().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
        path.append(torch.cat([p.detach().flatten() for p in params]))
    return torch.stack(path)


def assert_agree(ours, theirs, tolerance=1e-6):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True, "weight_decay": 0.01}])
def test_adam_with_bias_correction(path, amsgrad, options):
    ours = trajectory(
        lambda p: dasgrad.DASGrad(
            p, lr=0.02, moments="amsgrad" if amsgrad else "adam", bias_correction=True, **options, **PATHS[path]
        )
    )
    theirs = trajectory(lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.9, 0.99), amsgrad=amsgrad, **options))
    assert_agree(ours, theirs)


@pytest.mark.parametrize("path", PATHS)
def test_adamw(path):
    options = {"lr": 0.02, "weight_decay": 0.1, "betas": (0.9, 0.99)}
    ours = trajectory(
        lambda p: dasgrad.DASGrad(
            p, moments="adam", bias_correction=True, decoupled_weight_decay=True, **options, **PATHS[path]
        )
    )
    assert_agree(ours, trajectory(lambda p: torch.optim.AdamW(p, **options)))


@pytest.mark.parametrize("path", ["loop", "foreach"])
def test_sgd(path):
    ours = trajectory(lambda p: dasgrad.DASGrad(p, lr=0.1, moments="sgd", weight_decay=0.1, **PATHS[path]))
    assert_agree(ours, trajectory(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1)))


@pytest.mark.parametrize("path", ["loop", "foreach"])
def test_rmsprop(path):
    ours = trajectory(lambda p: dasgrad.DASGrad(p, lr=0.01, moments="rmsprop", **PATHS[path]))
    assert_agree(ours, trajectory(lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.99, eps=1e-8)))


@pytest.mark.parametrize("path", ["loop", "foreach"])
def test_adagrad_with_inverse_sqrt_rate(path):
    """α/√t · g/√((1/t) Σg²) is AdaGrad's α g/√(Σg²)."""
    ours = trajectory(
        lambda p: dasgrad.DASGrad(p, lr=0.1, moments="adagrad", eps=1e-10, **PATHS[path]), dasgrad.InverseSqrtLR
    )
    assert_agree(ours, trajectory(lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10)))


@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_equal_scores_give_amsgrad_on_the_same_index_sequence(weighting):
    """Equal scores: weights are 1, and what is left is AMSGrad without bias correction."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(10, 3, generator=generator), torch.randn(10, generator=generator)
    ours, theirs = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    theirs.load_state_dict(ours.state_dict())
    optimizer = dasgrad.DASGrad(ours.parameters(), lr=0.05, weighting=weighting)
    peer = torch.optim.Adam(theirs.parameters(), lr=0.05, betas=(0.9, 0.99), amsgrad=True)
    for param in theirs.parameters():  # torch's Adam corrects bias, but at a very large step count by nothing
        zeros = {key: torch.zeros_like(param) for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")}
        peer.state[param] = {"step": torch.tensor(1e9), **zeros}
    sampler = dasgrad.AdaptiveSampler(10, 4, seed=5)
    sampler.refresh(torch.full((10,), 0.3))
    for _ in range(100):
        indices, weights = sampler.draw()
        torch.testing.assert_close(weights, torch.ones_like(weights), rtol=1e-12, atol=0)
        batch = dasgrad.WeightedBatch((inputs[indices], targets[indices]), indices, weights)
        optimizer.zero_grad()
        batch.backward((ours(batch.inputs).squeeze(1) - batch.targets).square(), optimizer)
        optimizer.step()
        peer.zero_grad()
        (theirs(inputs[indices]).squeeze(1) - targets[indices]).square().mean().backward()
        peer.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
