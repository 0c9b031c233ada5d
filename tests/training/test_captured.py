"""`CapturedLoop` takes the steps of an ordinary loop: same draws, same weights, same states after."""

import contextlib
import copy
import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import dasgrad
import helpers
from dasgrad.training import AutoRefresh, Costs, captured, step_graph
from dasgrad.training.step_graph import StepGraph

LR = 2.0**-5  # the same number in float32, in which a learning rate on the device is kept
COSTS = Costs(step=1.0, example=1e-4)
REFRESHES = {
    "every step": lambda: 1,
    "every fourth": lambda: 4,
    "once a pass": lambda: None,
    "auto": lambda: AutoRefresh(costs=COSTS, first=3),
}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")
quiet = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning")


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
    if loop.loader._position == len(loop.loader):
        loop.loader._position = 0  # the end of a pass, as when its `for` loop ends by itself
    return torch.stack(losses)


def assert_same(ours, theirs, where="", **tolerance):
    """Equal values of nested states; tensors up to a tolerance if one is given."""
    if isinstance(ours, torch.Tensor):
        if tolerance and ours.is_floating_point():
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


# --- on the CPU: the same steps, without a graph ------------------------------------------------------------


@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize(("n", "batch_size"), [(12, 3), (23, 4), (5, 7)])
@pytest.mark.parametrize("parts", [(40,), (5, 0, 1, 17, 17)], ids=["one run", "several"])
def test_runs_are_the_steps_of_an_ordinary_loop(refresh, n, batch_size, parts):
    loop, other = (build(n, batch_size, REFRESHES[refresh]()) for _ in range(2))
    seen = []
    loop.loader.on_refresh(lambda event: seen.append(event.step))
    compare(loop, other, 40, parts)
    assert len(seen) >= (1 if refresh == "auto" else 2)
    assert loop.loader.num_steps == 40
    assert not loop.captured


@pytest.mark.parametrize(("limit", "value"), [("MOST_STEPS", 4), ("MOST_DRAWS", 9), ("MOST_DRAWS", 3)])
def test_however_few_draws_are_made_at_once_the_steps_are_the_same(monkeypatch, limit, value):
    """A table of four rows, of two, and of one where not even one batch of four is within the limit."""
    monkeypatch.setattr(captured, limit, value)
    loop, other = (build(refresh=9) for _ in range(2))
    compare(loop, other, 30, (30,))


def test_without_a_scorer_draws_follow_the_target_or_scores_given_by_hand():
    loop, other = (build(scored=False) for _ in range(2))
    compare(loop, other, 10, (10,))
    for one in (loop, other):
        one.loader.load_state_dict(one.loader.state_dict())  # both go on in the middle of their pass
        one.loader.sampler.refresh(torch.arange(23.0))
    compare(loop, other, 20, (13, 7))
    assert loop.loader.num_steps == 0  # as in an ordinary loop, this loader was given no optimizer


@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
@pytest.mark.parametrize("path", [{"fused": False}, {"foreach": True}, {"foreach": False}])
def test_all_ways_to_step(weighting, path):
    options = {"weighting": weighting, "projection": dasgrad.projections.L2Ball(1.0), "weight_decay": 0.1, **path}
    loop, other = (build(scheduled=True, **options) for _ in range(2))
    compare(loop, other, 15, (15,))


def test_a_run_without_a_number_ends_with_the_pass():
    loop = build()
    assert [len(loop.run()), len(loop.run(2)), len(loop.run()), len(loop.run())] == [6, 2, 4, 6]
    assert loop.loader.state_dict()["position"] == 0


def test_an_ordinary_loop_goes_on_where_a_run_ended_and_the_other_way_round():
    loop, other = build(), build()
    loop.run(4)
    assert sum(1 for _ in zip(range(99), loop.loader, strict=False)) == 2
    train(other, 4)
    pass_left = iter(other.loader)
    next(pass_left)
    losses = other.run(3)
    assert len(losses) == 3
    assert other.loader.state_dict()["position"] == 3  # an ordinary pass that was left is over
    with pytest.raises(RuntimeError, match="This pass over the `AdaptiveLoader` is over"):
        next(pass_left)


def test_a_run_can_be_saved_and_gone_on_with(tmp_path):
    whole, first, second = (build(scheduled=True) for _ in range(3))
    expected = whole.run(50)[20:]
    first.run(20)
    for save, load in ((first, second),):
        parts = [
            {"model": one.model, "optimizer": one.optimizer, "scheduler": one.scheduler, "loader": one.loader}
            for one in (save, load)
        ]
        dasgrad.save_checkpoint(tmp_path / "run.pt", **parts[0])
        dasgrad.load_checkpoint(tmp_path / "run.pt", **parts[1])
    assert torch.equal(second.run(30), expected)
    assert_same(state_of(second), state_of(whole))


def test_draws_of_steps_that_an_error_prevented_are_the_next_ones():
    calls = 0

    def losses(model, data):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise MemoryError
        return helpers.squared_losses(model(data[0]), data[1])

    other = build()
    loop = dasgrad.CapturedLoop(build().loader, losses=losses)
    with pytest.raises(MemoryError):
        loop.run(30)
    assert loop.loader.num_steps == 8
    state = loop.loader.state_dict()
    assert (state["position"], len(state["indices_in_flight"]), state["num_batches"]) == (2, 3, 8)
    expected = train(other, 30)
    assert torch.equal(loop.run(22), expected[8:])
    assert_same(state_of(loop), state_of(other))


@given(
    st.integers(1, 30), st.integers(1, 7), st.integers(1, 9), st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)))
)
def test_draws_taken_at_once_are_those_of_a_loop(n, batch_size, interval, pieces):
    """Whatever is asked for, and however much of it is given back."""
    ours, theirs = (build(n, batch_size, interval).loader for _ in range(2))
    taken = []
    for most, num_back in pieces:
        left = ours.num_left
        indices, weights = ours.take_draws(most)
        assert 1 <= len(indices) <= min(most, left)  # what is given back must belong to the pass that is going on
        num_used = max(0, len(indices) - num_back)
        ours.put_back(indices[num_used:], weights[num_used:])
        taken += zip(indices[:num_used], weights[:num_used], strict=True)
        for _ in range(num_used):
            ours.counter.count()
    batches = itertools.chain.from_iterable(itertools.repeat(theirs))
    for draws, batch in zip(taken, batches, strict=False):
        assert_same(draws, (batch.indices, batch.weights))
        theirs.counter.count()
    assert (ours.num_steps, ours.state_dict()["num_batches"]) == (len(taken), len(taken))
    assert ours.state_dict()["position"] == len(taken) % len(ours)


def test_the_shortest_call_and_other_kinds_of_data():
    inputs, targets, model = helpers.regression(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = dasgrad.AdaptiveLoader({"x": inputs, "y": targets}, 4, optimizer=optimizer)

    def losses(model, data):
        return helpers.squared_losses(model(data["x"]), data["y"])

    assert len(dasgrad.CapturedLoop(loader, model, losses=losses).run(7)) == 7
    rows = dasgrad.SparseRows(torch.arange(21), torch.arange(20) % 3, torch.ones(20, dtype=torch.float64), 3)
    loader = dasgrad.AdaptiveLoader((rows, targets), 4)
    assert len(dasgrad.CapturedLoop(loader, model, helpers.squared_losses, optimizer).run(7)) == 7


def test_what_cannot_be_a_loop_is_refused_with_the_reason():
    inputs, targets, model = helpers.regression(20)
    optimizer = dasgrad.DASGrad(model.parameters())
    loader = dasgrad.AdaptiveLoader((inputs, targets), 4)
    loss_fn = helpers.squared_losses
    with pytest.raises(ValueError, match="needs `model`, `loss_fn`, `optimizer`"):
        dasgrad.CapturedLoop(loader)
    with pytest.raises(ValueError, match="needs `optimizer`"):
        dasgrad.CapturedLoop(loader, model, loss_fn)
    with pytest.raises(ValueError, match="one of `loss_fn` and `losses`, got both"):
        dasgrad.CapturedLoop(loader, model, loss_fn, optimizer, losses=lambda model, data: None)
    for other in (helpers.Rows(inputs, targets), [(inputs[0], targets[0])]):
        fetching = dasgrad.AdaptiveLoader(other, 4)
        with pytest.raises(ValueError, match=r"needs tensors in memory .* got a loader of (Rows|list)"):
            dasgrad.CapturedLoop(fetching, model, loss_fn, optimizer)
    with pytest.raises(ValueError, match="needs its data on the model's device, meta, got cpu"):
        dasgrad.CapturedLoop(loader, copy.deepcopy(model).to("meta"), loss_fn, optimizer)
    moving = dasgrad.AdaptiveLoader((inputs, targets), 4, device="meta")
    with pytest.raises(
        ValueError, match=r"`AdaptiveLoader\(device=...\)` must be the model's, cpu, or None .* got meta"
    ):
        dasgrad.CapturedLoop(moving, model, loss_fn, optimizer)
    counting = dasgrad.AdaptiveLoader((inputs, targets), 4, optimizer=optimizer)
    with pytest.raises(ValueError, match="must be the one whose steps the loader counts"):
        dasgrad.CapturedLoop(counting, model, loss_fn, dasgrad.DASGrad(model.parameters()))
    loop = dasgrad.CapturedLoop(loader, model, loss_fn, optimizer)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match=r"run\(num_steps=...\)` must be a non-negative integer, got"):
            loop.run(wrong)
        with pytest.raises(ValueError, match=r"take_draws\(most=...\)` must be a positive integer, got"):
            loader.take_draws(wrong)
    reduced = dasgrad.CapturedLoop(loader, model, lambda outputs, targets: outputs.mean(), optimizer)
    with pytest.raises(ValueError, match=r"one value per example, shape \(4,\), got \(\)"):
        reduced.run(1)
    triple = dasgrad.AdaptiveLoader((inputs, targets, targets), 4)
    with pytest.raises(TypeError, match=r"`CapturedLoop\(loss_fn=...\)` needs data that is a pair"):
        dasgrad.CapturedLoop(triple, model, loss_fn, optimizer).run(1)
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="outside autocast"):
        loop.run(1)


# --- what goes on around a graph, with a graph that is none -------------------------------------------------


class FakeGraph:
    """Replays a step as a CUDA graph would: without hooks, into the gradients of its capture, whatever ``.grad`` is."""

    made = ()
    loop = None

    def __init__(self):
        FakeGraph.made += (self,)

    def replay(self):
        hooks = FakeGraph.loop.optimizer._optimizer_step_post_hooks
        kept, grads = dict(hooks), FakeGraph.loop._graph._grads
        shown = [param.grad for param, _ in grads]
        hooks.clear()
        try:
            FakeGraph.loop._step()
        finally:
            hooks.update(kept)
        for (param, grad), before in zip(grads, shown, strict=True):
            if grad is not None:
                grad.copy_(param.grad)
            param.grad = before


@contextlib.contextmanager
def fake_capture(graph, stream):
    """Whatever is done inside leaves no trace in tensors."""
    loop = FakeGraph.loop
    states = [value for state in loop.optimizer.state.values() for value in state.values()]
    tensors = [*loop.model.parameters(), *loop.model.buffers(), *states, loop._row, loop._means_K]
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


class FakeStream:
    def wait_stream(self, other):
        pass


@pytest.fixture
def with_graph(monkeypatch):
    """A function that lets a loop on the CPU capture its steps, so to speak."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", fake_capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream())
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda thing: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(FakeGraph, "made", ())

    def change(loop):
        counter = None if loop.loader.optimizer is None else loop.loader.counter
        loop._graph = StepGraph(loop.model, loop.optimizer, counter, torch.device("cpu"))
        monkeypatch.setattr(FakeGraph, "loop", loop)
        return loop

    return change


@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize("parts", [(40,), (2, 1, 1, 36)], ids=["one run", "several"])
def test_steps_are_counted_once_and_refreshes_come_when_due(with_graph, refresh, parts):
    loop, other = with_graph(build(refresh=REFRESHES[refresh]())), build(refresh=REFRESHES[refresh]())
    compare(loop, other, 40, parts)
    assert loop.captured
    assert len(FakeGraph.made) == 1
    assert loop.loader.num_steps == 40


def test_replays_are_timed_by_themselves(with_graph):
    loop, times = with_graph(build()), []
    loop.optimizer.register_step_pre_hook(lambda *_: times.append(loop.loader.step_seconds))
    loop.run(10)
    known = [time is not None for time in times]  # before each of three steps, the capture, and each replay
    assert known == [False, True, True, True, False, False, True, True, True, True, True]


def test_a_scheduler_fills_the_rate_that_the_graph_reads(with_graph):
    loop, other = with_graph(build(scheduled=True, fused=False)), build(scheduled=True, fused=False)
    loop.run(30)
    rate = loop.optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    train(other, 30)
    assert float(rate) == pytest.approx(other.optimizer.param_groups[0]["lr"], rel=1e-6)
    torch.testing.assert_close(loop.model.weight, other.model.weight, rtol=1e-5, atol=0)
    loop.optimizer.param_groups[0]["lr"] = 0.0  # by hand, as a number
    before = loop.model.weight.detach().clone()
    loop.scheduler = None
    loop.run(5)
    assert loop.optimizer.param_groups[0]["lr"] is rate
    assert torch.equal(loop.model.weight, before)
    assert len(FakeGraph.made) == 1


def test_a_rate_that_was_given_as_a_tensor_is_the_one_that_is_filled(with_graph):
    rate = torch.tensor(LR)
    loop = with_graph(build(make_optimizer=lambda params: dasgrad.DASGrad(params, lr=rate, capturable=True)))
    loop.run(5)
    loop.optimizer.param_groups[0]["lr"] = 0.5 * LR
    loop.run(5)
    assert loop.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.5 * LR
    assert len(FakeGraph.made) == 1


def test_the_last_step_before_the_capture_may_not_wait_for_the_device(with_graph, monkeypatch):
    loop, mode, modes = with_graph(build()), ["default"], []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda value: mode.__setitem__(0, value))
    loop.optimizer.register_step_pre_hook(lambda *_: modes.append(mode[0]))
    loop.run(5)
    assert modes == ["default", "default", "error", *["default"] * 3]  # then the capture, and two replays


def test_a_scheduler_may_not_change_what_a_graph_keeps(with_graph):
    class Momentum:
        def step(self):
            loop.optimizer.param_groups[0]["betas"] = (0.5 / (1 + loop.loader.num_steps), 0.99)

    loop = with_graph(build())
    loop.scheduler = Momentum()
    with pytest.raises(
        ValueError, match=r"must change learning rates alone.* got a change of 'betas' in param group 0"
    ):
        loop.run(10)
    assert loop.loader.num_steps == step_graph.NUM_EAGER + 1


@pytest.mark.parametrize("change", ["state", "option", "mode", "buffer", "frozen", "frozen for a while", "none"])
def test_what_a_graph_cannot_follow_is_captured_anew(with_graph, change):
    loop, other = with_graph(build()), build()
    for one in (loop, other):
        one.model.register_buffer("seen", torch.zeros(1))
        one.model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    for one, take in ((loop, loop.run), (other, lambda number: train(other, number))):
        take(10)
        if change == "state":
            one.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
        elif change == "option":
            one.optimizer.param_groups[0]["weight_decay"] = 0.5
        elif change == "mode":
            one.model.eval()
        elif change == "buffer":
            one.model.seen = torch.ones(1)
        elif change == "frozen":
            one.model.unused.requires_grad_(False)
        elif change == "frozen for a while":
            one.model.weight.requires_grad_(False).requires_grad_(True)
        one.optimizer.zero_grad()
        one.loader.load_state_dict(one.loader.state_dict())
        take(20)
    assert len(FakeGraph.made) == (1 if change in ("frozen for a while", "none") else 2)
    assert_same(state_of(loop), state_of(other))


def test_an_optimizer_must_be_capturable(with_graph):
    with pytest.raises(ValueError, match="built with capturable=True on a GPU, got capturable=False in param group 0"):
        with_graph(build(capturable=False))
    with pytest.raises(ValueError, match="got an optimizer without it in param group 0 of Adagrad"):
        with_graph(build(make_optimizer=torch.optim.Adagrad))
    loop = with_graph(build(make_optimizer=lambda params: torch.optim.SGD(params, LR)))
    other = build(make_optimizer=lambda params: torch.optim.SGD(params, LR))
    compare(loop, other, 20, (20,))
    assert loop.optimizer.param_groups[0]["lr"] == LR


def test_a_capture_that_fails_says_what_may_be_wrong_and_takes_no_step(with_graph, monkeypatch):
    loop = with_graph(build())

    @contextlib.contextmanager
    def failing(graph, stream):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", failing)
    with pytest.raises(RuntimeError, match="not permitted") as caught:
        loop.run(10)
    assert "must not make the host wait for the device" in caught.value.__notes__[0]
    assert loop.loader.num_steps == loop.loader.state_dict()["num_batches"] == step_graph.NUM_EAGER
    assert not loop.captured


def test_a_paused_counter_does_not_count():
    loop = build()
    with loop.loader.counter.paused():
        train(loop, 1)
    train(loop, 2)
    assert loop.loader.num_steps == 2


# --- on a GPU -----------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """Models of several kinds on the same 8 × 8 images."""

    def __init__(self, kind):
        super().__init__()
        if kind == "logistic":
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        elif kind == "dropout":
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5))
        elif kind == "cnn":
            self.layers = nn.Sequential(
                *(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(128, 5)),
            )

    def forward(self, images):
        return self.layers(images)


LOSS = nn.CrossEntropyLoss(reduction="none")
OPTIMIZERS = {
    "DASGrad": lambda params: dasgrad.DASGrad(params, lr=LR, capturable=True),
    "DASGrad foreach": lambda params: dasgrad.DASGrad(
        params, lr=LR, foreach=True, bias_correction=True, weight_decay=0.01, capturable=True
    ),
    "DASGrad loop": lambda params: dasgrad.DASGrad(
        params, lr=LR, foreach=False, projection=dasgrad.projections.L2Ball(2.0), capturable=True
    ),
    "DASGrad update": lambda params: dasgrad.DASGrad(params, lr=LR, weighting="update", capturable=True),
    "DASGrad sgd": lambda params: dasgrad.DASGrad(params, lr=LR, moments="sgd", capturable=True),
    "Adam foreach": lambda params: torch.optim.Adam(params, lr=LR, amsgrad=True, foreach=True, capturable=True),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=LR, fused=True, capturable=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=LR, momentum=0.5),
    "SGD fused": lambda params: torch.optim.SGD(params, lr=LR, momentum=0.5, fused=True),
}


def build_on_gpu(kind="logistic", optimizer="DASGrad", refresh=7, scheduled=False, device="cuda"):
    """300 images, a tenth of them hard; not divided by the batch size."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(300, 1, 8, 8, generator=generator), torch.arange(300) % 5
    images[torch.arange(300), 0, 0, labels] += 3.0
    labels[::10] = (labels[::10] + 1) % 5
    torch.manual_seed(0)
    model = Classifier(kind).to(device)
    stepping = OPTIMIZERS[optimizer](model.parameters())
    scorer = dasgrad.ExampleScorer(model, LOSS, stepping, score="gradient")
    data = (images.to(device), labels.to(device))
    loader = dasgrad.AdaptiveLoader(data, 16, seed=3, scorer=scorer, refresh=refresh)
    return dasgrad.CapturedLoop(loader, scheduler=dasgrad.InverseSqrtLR(stepping) if scheduled else None)


@contextlib.contextmanager
def same_kernels():
    """Float32 products as they are, convolutions by kernels that add up in one order."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = before


def compare_on_gpu(loop, other, num_steps, parts):
    """Random numbers on the device begin alike; small differences of kernels are allowed for."""
    tolerance = {"rtol": 1e-3, "atol": 1e-5}
    with same_kernels():
        torch.cuda.manual_seed(5)
        losses = []
        for part in parts:
            loop.optimizer.zero_grad()  # which is no business of the graph's
            losses.append(loop.run(part))
        losses = torch.cat(losses)
        random_after = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(5)
        assert_same(losses, train(other, num_steps, LOSS), "losses", **tolerance)
        assert torch.equal(torch.cuda.get_rng_state(), random_after)
        assert_same(state_of(loop), state_of(other), "state", **tolerance)
    assert loop.captured
    assert losses.is_cuda


@cuda
@quiet
@pytest.mark.parametrize("kind", ["logistic", "dropout", "cnn"])
@pytest.mark.parametrize("parts", [(60,), (2, 1, 17, 40)], ids=["one run", "several"])
def test_a_captured_run_is_an_ordinary_loop_on_the_gpu(kind, parts):
    compare_on_gpu(build_on_gpu(kind), build_on_gpu(kind), 60, parts)


@cuda
@quiet
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
def test_optimizers_that_can_be_captured(optimizer, scheduled):
    if optimizer == "SGD" and scheduled:
        with pytest.raises(ValueError, match="got a change of 'lr' in param group 0"):
            build_on_gpu(optimizer=optimizer, scheduled=True).run(10)
        return
    loop, other = (build_on_gpu(optimizer=optimizer, scheduled=scheduled) for _ in range(2))
    compare_on_gpu(loop, other, 40, (40,))


@cuda
@pytest.mark.parametrize("refresh", REFRESHES)
def test_refreshes_on_the_gpu_come_when_due(refresh):
    loops = [build_on_gpu(refresh=REFRESHES[refresh]()) for _ in range(2)]
    seen = [[], []]
    for loop, steps in zip(loops, seen, strict=True):
        loop.loader.on_refresh(lambda event, steps=steps: steps.append(event.step))
    compare_on_gpu(*loops, 60, (60,))
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 2
    assert loops[0].loader.num_steps == 60
    assert loops[0].loader.step_seconds > 0


@cuda
@pytest.mark.parametrize("path", [{}, {"foreach": True}, {"foreach": False}], ids=["fused", "foreach", "loop"])
def test_float64_on_the_gpu(path):
    loop, other = (build(device="cuda", scheduled=True, **path) for _ in range(2))
    loop.run(40)
    train(other, 40)
    torch.testing.assert_close(loop.model.weight, other.model.weight, rtol=1e-5, atol=1e-6)


@cuda
@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
def test_batches_drawn_together_on_the_gpu_are_those_drawn_one_by_one(stratified):
    samplers = [
        dasgrad.AdaptiveSampler(1000, 48, stratified=stratified, seed=2, device="cuda", floor=floor)
        for floor in (0.2, 0.2)
    ]
    changes = [
        lambda sampler: None,
        lambda sampler: sampler.refresh(torch.linspace(0, 3, 1000, device="cuda").exp()),
        lambda sampler: sampler.update([3, 999], [7.0, 0.0]),
    ]
    for change in changes:
        for sampler in samplers:
            change(sampler)
        indices, weights = samplers[0].draw_batches(50)
        for row in range(50):
            assert_same(samplers[1].draw(), (indices[row], weights[row]))
        assert_same(samplers[0].state_dict(), samplers[1].state_dict())


@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_a_run_without_a_refresh_does_not_wait_for_the_gpu():
    loop = build_on_gpu(refresh=10_000, scheduled=True)
    loop.run(5)
    assert loop.captured
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = loop.run(50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses.isfinite().all()


@cuda
def test_a_loop_on_the_gpu_goes_on_after_a_checkpoint_evaluation_and_other_steps(tmp_path):
    loop, other = build_on_gpu("dropout", scheduled=True), build_on_gpu("dropout", scheduled=True)

    def parts(one):
        return {"model": one.model, "optimizer": one.optimizer, "scheduler": one.scheduler, "loader": one.loader}

    def evaluate(one):
        one.model.eval()
        with torch.no_grad():
            LOSS(one.model(one.loader.dataset[0]), one.loader.dataset[1]).mean().item()
        one.model.train()
        one.optimizer.zero_grad()

    with same_kernels():
        torch.cuda.manual_seed(1)
        loop.run(30)
        evaluate(loop)
        dasgrad.save_checkpoint(tmp_path / "run.pt", **parts(loop))
        loop.run(11)
        dasgrad.load_checkpoint(tmp_path / "run.pt", **parts(loop))  # other tensors of state: captured anew
        losses = loop.run(25)
        assert loop.captured
        torch.cuda.manual_seed(1)
        train(other, 30, LOSS)
        evaluate(other)
        dasgrad.save_checkpoint(tmp_path / "other.pt", **parts(other))
        dasgrad.load_checkpoint(tmp_path / "other.pt", **parts(other))
        assert_same(losses, train(other, 25, LOSS), "losses", rtol=1e-3, atol=1e-5)
        assert_same(state_of(loop), state_of(other), "state", rtol=1e-3, atol=1e-5)


@cuda
def test_what_cannot_be_captured_is_refused_on_the_gpu():
    inputs, targets, model = helpers.regression(20)
    model.cuda()
    optimizer = dasgrad.DASGrad(model.parameters(), capturable=True)
    on_host = dasgrad.AdaptiveLoader((inputs, targets), 4, device="cuda")
    with pytest.raises(ValueError, match="needs its data on the model's device, cuda:0, got cpu"):
        dasgrad.CapturedLoop(on_host, model, helpers.squared_losses, optimizer)
    rows = dasgrad.SparseRows(torch.arange(21), torch.arange(20) % 3, torch.ones(20, dtype=torch.float64), 3)
    sparse = dasgrad.AdaptiveLoader((rows.to("cuda"), targets.cuda()), 4)
    with pytest.raises(ValueError, match="needs dense tensors on a GPU, got SparseRows"):
        dasgrad.CapturedLoop(sparse, model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs.cuda(), targets.cuda()), 4)
    plain = dasgrad.DASGrad(model.parameters())
    with pytest.raises(ValueError, match="must be built with capturable=True on a GPU, got capturable=False"):
        dasgrad.CapturedLoop(loader, model, helpers.squared_losses, plain)
    there = dasgrad.DASGrad(nn.Linear(3, 1).parameters(), capturable=True)
    with pytest.raises(ValueError, match="must have its parameters on the model's device, cuda:0, got one on cpu"):
        dasgrad.CapturedLoop(loader, model, helpers.squared_losses, there)


WAITING = """
import sys
import torch
import dasgrad

inputs = torch.randn(20, 3, device="cuda")
model = torch.nn.Linear(3, 1).cuda()
optimizer = dasgrad.DASGrad(model.parameters(), capturable=True)
loader = dasgrad.AdaptiveLoader((inputs, inputs.sum(1)), 4, optimizer=optimizer)

def losses(model, data):
    values = (model(data[0])[:, 0] - data[1]).square()
    return values * (1.0 if values.sum().item() > -1 else 2.0)

loop = dasgrad.CapturedLoop(loader, model, losses=losses)
try:
    loop.run(10)
except RuntimeError as error:
    assert any("must not make the host wait" in note for note in error.__notes__), error
else:
    sys.exit("nothing was raised")
assert loader.num_steps == loader.state_dict()["num_batches"] == 2, loader.num_steps
again = dasgrad.CapturedLoop(loader, model, lambda outputs, targets: (outputs[:, 0] - targets).square())
torch.rand(3, device="cuda")
assert again.run(10).isfinite().all() and again.captured and loader.num_steps == 12
"""


@cuda
def test_a_loss_that_waits_for_the_gpu_is_refused_before_the_capture():
    """In a process of its own, which a failed capture could leave useless."""
    run = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
