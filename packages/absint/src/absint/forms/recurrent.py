"""Recurrent layers and cells on the CPU, whose C++ takes sizes as numbers alone, as ordinary calls.

    layer  ::= (linear of all steps, then a cell a step)*       the number of steps is fixed, that of rows is not
             | oneDNN's layer                                   an LSTM without gradients: neither is

Source: aten/src/ATen/native/RNN.cpp, mkldnn/RNN.cpp. An LSTM with gradients stays with C++ (the work space that oneDNN
hands to its backward has no size in symbols), and so do projections. Whoever lets graphs end (`ShapeEnv.whole`) is told
to do so in front of a layer that would take a program for each size. The sizes of packed sequences are data: refused.
So is what cuDNN computes: it takes the weights by the memory that they share, and has states of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from absint.cpu_kernels import onednn_takes_lstm
from absint.errors import DataDependentError, NoTypeRule
from absint.symbolic import is_symbolic

aten = torch.ops.aten
Cell = Callable[[Any, Any, Sequence[Any]], Any]
# at::native::rnn_kind
_LSTM = 2
_CUDNN_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _gru(gates: Any, state: Any, weights: Sequence[Any]) -> Any:
    """One step; gates: what the input gives; weights: w_ih, w_hh, b_ih, b_hh."""
    from_input, from_state = gates.chunk(3, 1), linear(state, *weights[1::2]).chunk(3, 1)
    reset = (from_state[0] + from_input[0]).sigmoid()
    update = (from_state[1] + from_input[1]).sigmoid()
    new = (from_input[2] + from_state[2] * reset).tanh()
    return (state - new) * update + new


def _lstm(gates: Any, states: Any, weights: Sequence[Any]) -> Any:
    state, cell = states
    keep, forget, new, out = (linear(state, *weights[1::2]) + gates).chunk(4, 1)
    cell = forget.sigmoid() * cell + keep.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _rnn(activation: Callable[[Any], Any]) -> Cell:
    return lambda gates, state, weights: activation(linear(state, *weights[1::2]) + gates)


_CELLS: dict[str, Cell] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn(torch.tanh), "rnn_relu": _rnn(torch.relu)}


def _cell_form(name: str) -> Callable[..., Any]:
    """torch.lstm_cell and its kin: (input, states, weights)."""
    plain, cell = getattr(torch, f"{name}_cell"), _CELLS[name]

    def form(input: Any, hx: Any, *weights: Any) -> Any:
        if not _is_open(input, hx):
            return plain(input, hx, *weights)
        weights = (*weights, None, None)[:4]
        return cell(linear(input, *weights[::2]), hx, weights)

    return form


def _layer_form(name: str) -> Callable[..., Any]:
    """torch.lstm and its kin."""
    plain = getattr(torch, name)

    def form(input: Any, hx: Any, params: Any, *rest: Any) -> Any:
        if not isinstance(rest[0], bool):  # (data, batch_sizes, hx, params, ...): C++ would read the sizes unasked
            raise DataDependentError(f"the steps that torch.{name} takes of a packed sequence are data")
        if _is_cudnn(input):
            raise NoTypeRule(f"torch.{name} on a GPU is cuDNN's, which takes weights by the memory that they share")
        if not _is_open(input, hx) or input.device.type != "cpu":
            return plain(input, hx, params, *rest)
        has_biases, num_layers, _, _, bidirectional, batch_first = rest
        is_whole = False
        if name == "lstm":
            count = num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
            wants_gradients = torch.is_grad_enabled() and any(one.requires_grad for one in (input, *hx, *params))
            if wants_gradients or len(params) != count:
                _refuse_sizes(name, [size for one in (input, *hx) for size in one.shape])
                return plain(input, hx, params, *rest)
            is_whole = onednn_takes_lstm(input.dtype)
        x = input.transpose(0, 1) if batch_first else input
        if not is_whole:
            _refuse_sizes(name, x.shape[:1])
        run = _whole(rest) if is_whole else _in_steps(_CELLS[name])
        out, states = _layers(run, x, _split(hx), _weights(params, has_biases), rest)
        out = out.transpose(0, 1) if batch_first else out
        return (out, *states)

    return form


def _is_cudnn(input: Any) -> bool:
    """Whether ATen would take cuDNN for a whole layer."""
    return input.device.type == "cuda" and torch.backends.cudnn.enabled and input.dtype in _CUDNN_DTYPES


def _is_open(input: Any, hx: Any) -> bool:
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    return any(is_symbolic(size) for one in (input, *states) for size in one.shape)


def _refuse_sizes(name: str, sizes: Sequence[Any]) -> None:
    """Refuse a layer that is a program of its own for each of these sizes, where the graph may end in front of it."""
    for size in sizes:
        if is_symbolic(size) and not size.node.env.whole:
            raise NoTypeRule(f"torch.{name} would take a program for each of the sizes that change")


def _split(hx: Any) -> list[Any]:
    """The states of each layer and direction."""
    return (
        list(hx.unbind(0)) if isinstance(hx, torch.Tensor) else list(zip(*[part.unbind(0) for part in hx], strict=True))
    )


def _weights(params: Any, has_biases: bool) -> list[tuple[Any, ...]]:
    count = 4 if has_biases else 2
    parts = [tuple(params[at : at + count]) for at in range(0, len(params), count)]
    return [(*part, None, None)[:4] for part in parts]


def _layers(run: Any, x: Any, states: list[Any], weights: list[Any], rest: Any) -> tuple[Any, tuple[Any, ...]]:
    _, num_layers, dropout, train, bidirectional, _ = rest
    last: list[Any] = []
    for layer in range(num_layers):
        outs = []
        for reverse in (False, True)[: 1 + bidirectional]:
            place = len(last)
            out, state = run(x, states[place], weights[place], reverse)
            outs.append(out)
            last.append(state)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout != 0 and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    if isinstance(last[0], tuple):
        return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    return x, (torch.stack(last),)


def _in_steps(cell: Cell) -> Callable[..., Any]:
    def run(x: Any, state: Any, weights: Sequence[Any], reverse: bool) -> Any:
        gates = linear(x.flatten(0, 1), *weights[::2])  # some versions of torch fix the sizes in more dimensions
        steps = list(gates.unflatten(0, x.shape[:2]).unbind(0))
        outs = []
        for gates in reversed(steps) if reverse else steps:
            state = cell(gates, state, weights)
            outs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outs[::-1] if reverse else outs), state

    return run


def _whole(rest: Any) -> Callable[..., Any]:
    has_biases, num_layers, _, train, bidirectional, batch_first = rest

    def run(x: Any, states: Any, weights: Sequence[Any], reverse: bool) -> Any:
        first, second, *biases = weights
        if not has_biases:
            biases = [torch.zeros(weight.shape, dtype=x.dtype) for weight in (first, second)]
        hidden_size = states[0].shape[-1]
        how = (reverse, [], _LSTM, hidden_size, num_layers, has_biases, bidirectional, batch_first, train)
        with torch.no_grad():  # else it would make a work space for its backward
            out, state, cell, _ = aten.mkldnn_rnn_layer.default(x.contiguous(), first, second, *biases, *states, *how)
        return out, (state, cell)

    return run


def _pad_packed(data: Any, batch_sizes: Any, *rest: Any) -> Any:
    """torch._pad_packed_sequence."""
    raise DataDependentError("the shape that a packed sequence is padded to is data")


RECURRENT_FORMS: dict[str, Callable[..., Any]] = {
    "torch._pad_packed_sequence": _pad_packed,
    **{f"torch.{name}_cell": _cell_form(name) for name in _CELLS},
    **{f"torch.{name}": _layer_form(name) for name in _CELLS},
}
