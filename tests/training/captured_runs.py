"""Runs of a `CapturedLoop` and of the ordinary loop over the same parts, and how the two are compared."""

import copy
import itertools

import pytest
import torch
from torch.utils.data import TensorDataset

import dasgrad
import helpers
from dasgrad.sampling.odds import WHOLE
from dasgrad.training import AutoRefresh, Costs

LR = 2.0**-5  # the same number in float32, in which a learning rate on the device is kept
COSTS = Costs(step=1.0, example=1e-4)
REFRESHES = {
    "every step": lambda: 1,
    "every fourth": lambda: 4,
    "once a pass": lambda: None,
    "auto": lambda: AutoRefresh(costs=COSTS, first=3),
}


def build(n=23, batch_size=4, refresh=4, scored=True, device="cpu", make_optimizer=None, scheduled=False, **options):
    """A loader and the loop over it; options are the optimizer's."""
    inputs, targets, model = helpers.regression(n)
    model.to(device)
    if make_optimizer is None:
        optimizer = dasgrad.DASGrad(model.parameters(), lr=LR, **{"capturable": True, **options})
    else:
        optimizer = make_optimizer(model.parameters())
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer, score="gradient")
    data = TensorDataset(inputs.to(device), targets.to(device))
    rest = {"scorer": scorer, "refresh": refresh} if scored else {}
    loader = dasgrad.AdaptiveLoader(data, batch_size, seed=3, **rest)
    scheduler = dasgrad.InverseSqrtLR(optimizer) if scheduled else None
    given = () if scored else (model, helpers.squared_losses, optimizer)
    return dasgrad.CapturedLoop(loader, *given, scheduler=scheduler)


def train(loop, num_steps, loss_fn=helpers.squared_losses):
    """The ordinary loop over the same parts."""
    losses = []
    batches = itertools.chain.from_iterable(itertools.repeat(loop.loader))
    for batch in itertools.islice(batches, num_steps):
        loop.optimizer.zero_grad()
        loss = batch.backward(loss_fn(loop.model(batch.inputs), batch.targets), loop.optimizer)
        loop.optimizer.step()
        if loop.scheduler is not None:
            loop.scheduler.step()
        losses.append(loss)
    if loop.loader._at.position == len(loop.loader):
        loop.loader._at.close()  # the end of a pass, as when its `for` loop ends by itself
    return torch.stack(losses)


def assert_same(ours, theirs, where="", **tolerance):
    """Equal values of nested states; tensors up to a tolerance if one is given."""
    if isinstance(ours, torch.Tensor):
        if tolerance and where.endswith("['credits']"):  # modulo 1; they add up what shares differ by
            apart = (ours - theirs) % WHOLE
            assert torch.minimum(apart, WHOLE - apart).max() < 1e-3 * WHOLE, where
        elif tolerance and ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, msg=lambda text: f"{where}: {text}", **tolerance)
        else:
            assert torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]", **tolerance)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for k, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where}[{k}]", **tolerance)
    elif tolerance and isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-3, nan_ok=True), where
    else:
        assert ours == theirs, where


def state_of(loop):
    parts = (loop.model, loop.optimizer, loop.loader)
    grads = [None if param.grad is None else param.grad.clone() for param in loop.model.parameters()]
    state = copy.deepcopy([part.state_dict() for part in parts])
    for group in state[1]["param_groups"]:
        group["lr"] = float(group["lr"])
        group.pop("initial_lr", None)
    return [*state, grads]


def compare(loop, other, num_steps, parts, **tolerance):
    """The runs of a loop, of so many steps each, against as many steps of the ordinary loop over the other's parts."""
    losses = torch.cat([loop.run(part) for part in parts])
    assert len(losses) == num_steps == sum(parts)
    assert_same(losses, train(other, num_steps), "losses", **tolerance)
    assert_same(state_of(loop), state_of(other), "state", **tolerance)
    assert_same(loop.loader.sampler.draw(), other.loader.sampler.draw(), "next draws", **tolerance)
