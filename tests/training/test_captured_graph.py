"""What goes on around the graph of a `CapturedLoop`, on the CPU, with a graph that is none."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import dasgrad
from dasgrad.training import step_graph
from dasgrad.training.step_graph import StepGraph
from training.captured_runs import LR, REFRESHES, assert_same, build, compare, state_of, train


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
    loop.run(12)
    known = [time is not None for time in times]  # before each of three steps, the capture, and each replay
    assert known[:6] == [False, True, True, True, False, False]
    assert known[6:] == sorted(known[6:])  # one replay in four is timed
    assert known[-1]


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


def test_a_scheduler_made_between_runs_is_no_reason_to_capture_anew(with_graph):
    loop = with_graph(build())
    loop.run(5)
    loop.scheduler = dasgrad.InverseSqrtLR(loop.optimizer)
    loop.run(5)
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


@pytest.mark.parametrize("change", ["state", "momentum", "option", "mode", "buffer", "frozen", "thawed", "none"])
def test_what_a_graph_cannot_follow_is_captured_anew(with_graph, change):
    loop, other = with_graph(build()), build()
    for one in (loop, other):
        one.model.register_buffer("seen", torch.zeros(1))
        one.model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    for one, take in ((loop, loop.run), (other, lambda number: train(other, number))):
        take(10)
        if change == "state":
            one.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
        elif change == "momentum":
            (state,) = one.optimizer.state.values()
            state["exp_avg"] = state["exp_avg"].clone()
        elif change == "option":
            one.optimizer.param_groups[0]["weight_decay"] = 0.5
        elif change == "mode":
            one.model.eval()
        elif change == "buffer":
            one.model.seen = torch.ones(1)
        elif change == "frozen":
            one.model.unused.requires_grad_(False)
        elif change == "thawed":
            one.model.weight.requires_grad_(False).requires_grad_(True)
        one.optimizer.zero_grad()
        one.loader.load_state_dict(one.loader.state_dict())
        take(20)
    assert len(FakeGraph.made) == (1 if change in ("thawed", "none") else 2)
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
    assert loop.model.weight.grad is None  # which would be memory of the graph that failed


def test_a_paused_counter_does_not_count():
    loop = build()
    with loop.loader.counter.paused():
        train(loop, 1)
    train(loop, 2)
    assert loop.loader.num_steps == 2
