"""`capture_by_torch_function`: a `Capture` of a Python function, by recording the torch calls it makes.

It sees torch calls only: Python control flow is taken as it went, side effects on Python objects are lost. Tensors
that the function reaches without being given them (module parameters, closed-over tensors) become inputs by identity.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from absint import from_tensor, to_wire
from absint.functions import tensor_leaves
from absint.targets import target_name
from absint.wire import to_arg
from stagewire.capture import Capture, Code, GlobalState, Guard, HandleSource, Input, InputRole, Item, Local, TensorIs
from stagewire.graph import Arg, Graph, Node, Ref, SourceLine, Value


def capture_by_torch_function(
    function: Callable[..., Any], example_inputs: Sequence[torch.Tensor]
) -> tuple[Capture, tuple[torch.Tensor, ...]]:
    """The capture of `function(*example_inputs)`, and the tensors for its inputs, in order.

    The function runs once, for real, on copies of nothing: what it mutates is mutated. Its outputs are the tensors in
    its result, flattened in order.
    """
    mode = _Recording()
    for index, tensor in enumerate(example_inputs):
        mode.name_of(tensor, Item(Local("inputs"), index))
    state = _global_state()
    with mode:
        result = function(*example_inputs)
    outputs = tuple(Ref(mode.name_of(tensor)) for tensor in tensor_leaves(_plain(result)))
    graph = Graph(tuple(given.value for given in mode.inputs), tuple(mode.nodes), outputs)
    code = getattr(function, "__code__", None)
    capture = Capture(
        code=Code(getattr(function, "__name__", type(function).__name__),
                  code.co_filename if code else "", code.co_firstlineno if code else 0),
        inputs=tuple(mode.inputs),
        graph=graph,
        guards=tuple(mode.guards),
        state=state,
        portable=False,
    )  # fmt: skip
    return capture, tuple(mode.tensors)


def _global_state() -> GlobalState:
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        default_dtype=_dtype_name(torch.get_default_dtype()),
        autocast=tuple(
            (device, _dtype_name(torch.get_autocast_dtype(device)))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(result: Any) -> Any:
    """Model outputs (transformers) behave like dicts that leave out what is None."""
    return dict(result) if hasattr(result, "to_tuple") and hasattr(result, "keys") else result


class _Recording(TorchFunctionMode):
    """Writes a node for each torch call that takes or makes tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.inputs: list[Input] = []
        self.guards: list[Guard] = []
        self.tensors: list[torch.Tensor] = []
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        encoded = self._encode(func, args, kwargs)
        result = func(*args, **kwargs)
        self._record(func, encoded, result)
        return result

    def _encode(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_query(func):
            return None
        return (
            tuple(to_arg(a, self._leaf) for a in args),
            {key: to_arg(value, self._leaf) for key, value in kwargs.items()},
        )

    def _record(self, func: Any, encoded: Any, result: Any) -> None:
        leaves = list(tensor_leaves(result))
        if encoded is None or (not leaves and result is not None):
            return
        values = []
        for leaf in leaves:
            name = f"v{len(self._kept)}"
            self._kept.append(leaf)
            self._names[id(leaf)] = name
            values.append(Value(name, to_wire(from_tensor(leaf), requires_grad=leaf.requires_grad)))
        args, kwargs = encoded
        self.nodes.append(Node(_name(func), args, kwargs, tuple(values), _line()))

    def _leaf(self, value: object) -> Arg:
        return Ref(self.name_of(value)) if isinstance(value, torch.Tensor) else NotImplemented

    def name_of(self, tensor: torch.Tensor, source: Any = None) -> str:
        """The graph's name of a tensor; one that was not seen before becomes an input."""
        name = self._names.get(id(tensor))
        if name is not None:
            return name
        name = f"x{len(self.inputs)}"
        self._names[id(tensor)] = name
        self._kept.append(tensor)
        self.tensors.append(tensor)
        role: InputRole = "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
        source = source or HandleSource(name)
        kind = to_wire(from_tensor(tensor), requires_grad=tensor.requires_grad)
        self.inputs.append(Input(Value(name, kind), source, role))
        self.guards.append(TensorIs(source, kind, is_leaf=tensor.is_leaf))
        return name


def _is_query(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__get__" and func.__self__.__name__ in _PLAIN_GETTERS


_PLAIN_GETTERS = frozenset(
    ("shape", "dtype", "device", "requires_grad", "is_leaf", "ndim", "layout", "is_cuda", "grad", "grad_fn", "itemsize",
     "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "nbytes", "is_mkldnn", "is_mps", "is_xpu", "names")
)  # fmt: skip


def _name(func: Any) -> str:
    if getattr(func, "__name__", "") == "__get__":
        return f"torch.Tensor.{func.__self__.__name__}.__get__"
    return target_name(func)


def _line() -> SourceLine | None:
    frame = sys._getframe(3)
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
