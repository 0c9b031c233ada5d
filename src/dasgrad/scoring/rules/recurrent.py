"""Recurrent layers: gᵢ = Σ_t bᵢₜ xᵢₜᵀ for the weights of the input and Σ_t bᵢₜ hᵢₜ₋₁ᵀ for those of the hidden state.

bᵢₜ is the gradient at what goes into the gates at time t. torch computes all steps in one function and keeps that
to itself, so the steps are taken here one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dasgrad.scoring.forms import Dense, Form, Outer
from dasgrad.scoring.rules import DeclinedError, Watcher, rewrite

States = tuple[Tensor, ...]
"""What a step hands to the next: ``[B, width]`` each, the hidden state first."""


@rewrite(torch.lstm, owners=[nn.LSTM])
def lstm(watcher: Watcher, *args: Any) -> tuple[Tensor, ...]:
    """``torch.lstm``: output, hidden states and cells."""

    def step(gates: Tensor, states: States) -> States:
        into, forget, new, out = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * states[1] + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell

    return _run(_simple_scan(step), watcher, *args)


@rewrite(torch.rnn_tanh, owners=[nn.RNN])
def rnn_tanh(watcher: Watcher, *args: Any) -> tuple[Tensor, ...]:
    """``torch.rnn_tanh``: output and hidden states."""
    return _run(_simple_scan(lambda gates, states: (gates.tanh(),)), watcher, *args)


@rewrite(torch.rnn_relu, owners=[nn.RNN])
def rnn_relu(watcher: Watcher, *args: Any) -> tuple[Tensor, ...]:
    """``torch.rnn_relu``: output and hidden states."""
    return _run(_simple_scan(lambda gates, states: (gates.relu(),)), watcher, *args)


@rewrite(torch.gru, owners=[nn.GRU])
def gru(watcher: Watcher, *args: Any) -> tuple[Tensor, ...]:
    """``torch.gru``: output and hidden states."""
    return _run(_gru_scan, watcher, *args)


Scan = Callable[[Watcher, Tensor, States, Sequence[Tensor | None]], tuple[Tensor, States]]
"""All steps of one layer in one direction: inputs ``[B, T, k]`` and first states to outputs and last states."""


def _run(
    scan: Scan,
    watcher: Watcher,
    input: Tensor,
    first: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers and directions, as torch's recurrent functions do."""
    if not isinstance(params, list | tuple):
        raise DeclinedError("on packed sequences has no rule")
    directions, per_layer = 1 + bidirectional, 4 if has_biases else 2
    if (train and dropout) or len(params) != num_layers * directions * per_layer:
        raise DeclinedError("with dropout or a projection has no rule")
    states = (first,) if isinstance(first, Tensor) else tuple(first)
    x = input if batch_first else input.transpose(0, 1)
    last: list[States] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            own = [*params[k * per_layer : (k + 1) * per_layer], None, None][:4]
            given = x.flip(1) if direction else x
            found, final = scan(watcher, given, tuple(state[k] for state in states), own)
            outputs.append(found.flip(1) if direction else found)
            last.append(final)
        x = torch.cat(outputs, dim=-1) if bidirectional else outputs[0]
    output = x if batch_first else x.transpose(0, 1)
    return (output, *(torch.stack(column) for column in zip(*last, strict=True)))


def _simple_scan(step: Callable[[Tensor, States], States]) -> Scan:
    """For cells whose gates see the sum of what input and hidden state bring: one gradient serves all weights."""

    def scan(watcher: Watcher, x: Tensor, states: States, params: Sequence[Tensor | None]) -> tuple[Tensor, States]:
        from_input, from_hidden, bias, other_bias = params
        assert from_input is not None
        assert from_hidden is not None
        hidden: list[Tensor] = [states[0]]
        total = None if bias is None or other_bias is None else bias + other_bias
        gates = watcher.watch(
            functional.linear(x, from_input, total),
            [from_input, bias, from_hidden, other_bias],
            lambda grad: [*_weight_and_bias(grad, x), *_weight_and_bias(grad, _before(hidden))],
        )
        for gates_now in gates.unbind(1):
            states = step(torch.addmm(gates_now, hidden[-1], from_hidden.t()), states)
            hidden.append(states[0])
        return torch.stack(hidden[1:], dim=1), states

    return scan


def _gru_scan(watcher: Watcher, x: Tensor, states: States, params: Sequence[Tensor | None]) -> tuple[Tensor, States]:
    """The reset gate multiplies what the hidden state brings, so that has a gradient of its own."""
    from_input, from_hidden, bias, other_bias = params
    assert from_input is not None
    assert from_hidden is not None
    hidden: list[Tensor] = [states[0]]
    inputs = functional.linear(x, from_input, bias)
    inputs = watcher.watch(inputs, [from_input, bias], lambda grad: _weight_and_bias(grad, x))
    brought = torch.zeros_like(inputs) if other_bias is None else other_bias.expand(inputs.shape).clone()
    brought = watcher.watch(brought, [from_hidden, other_bias], lambda grad: _weight_and_bias(grad, _before(hidden)))
    for given, recurrent in zip(inputs.unbind(1), brought.unbind(1), strict=True):
        ours = torch.addmm(recurrent, hidden[-1], from_hidden.t()).chunk(3, dim=1)
        reset, update, new = given.chunk(3, dim=1)
        update = (update + ours[1]).sigmoid()
        new = (new + (reset + ours[0]).sigmoid() * ours[2]).tanh()
        hidden.append(new + update * (hidden[-1] - new))
    return torch.stack(hidden[1:], dim=1), (hidden[-1],)


def _before(hidden: list[Tensor]) -> Tensor:
    """``[B, T, width]``: the hidden state each step began with."""
    return torch.stack(hidden[:-1], dim=1).detach()


def _weight_and_bias(grad: Tensor, x: Tensor) -> list[Form]:
    """Of ``x @ weight.T + bias`` at T positions."""
    products = Outer(lambda rows: grad[rows], lambda rows: x[rows])
    return [products, Dense(lambda rows: grad[rows].sum(1), workspace=grad[:1].numel())]
