"""What each node of a GraphModule returns, as fake tensors: the `meta["example_value"]` that back ends read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from bytecap import set_torch_modes, torch_modes
from stagefold.adapters.torch_sizes import TorchSizes
from stagefold.torch_capabilities import foreign
from stagewire.capture import Symbol
from stagewire.graph import Value
from stagewire.symbols import symbols_of_type
from stagewire.types import TensorType

Path = tuple[int | str, ...]


class ExampleValues:
    """Evaluates nodes on fake tensors, in order; nothing is computed and no random number is drawn.

    Nodes that change torch's modes (gradients, autocast) do so; the modes are put back on leaving. sizes: torch's, for
    the symbols of the graph. mode: the mode of the fake tensors.
    """

    def __init__(self, symbols: Sequence[Symbol] = ()) -> None:
        self.sizes = TorchSizes(symbols)
        self.mode = foreign().fake_mode(allow_non_fake_inputs=True, shape_env=self.sizes.env, static_shapes=not symbols)
        self._modes = torch_modes()

    def __enter__(self) -> ExampleValues:
        return self

    def __exit__(self, *exception: object) -> None:
        set_torch_modes(self._modes)

    def placeholder(self, node: torch.fx.Node, example: torch.Tensor, value: Value) -> None:
        """The fake twin of an input."""
        if not symbols_of_type(value.type):
            node.meta["example_value"] = self.mode.from_tensor(example, static_shapes=True)
            return
        self.typed(node, value)
        # Who makes a fake tensor of the example gets this one, as behind torch's own capture.
        self.mode.fake_tensor_converter.set_tensor_memo(example, node.meta["example_value"])

    def call(self, node: torch.fx.Node) -> tuple[Path, ...] | None:
        """Evaluate a call; where in its value each tensor lies (the empty path: the value itself).

        None where fake tensors cannot run it: then only `typed` can tell.
        """
        try:
            returned = self._evaluate(node)
        except Exception:  # whatever an operator without a fake kernel raises: the values only describe
            return None
        if returned is not None:
            node.meta["example_value"] = returned
        return tuple(path for path, _ in tensors_with_paths(returned))

    def typed(self, node: torch.fx.Node, value: Value) -> None:
        """A fake tensor of the value's type alone: what it is a view of stays unknown."""
        if isinstance(value.type, TensorType):
            node.meta["example_value"] = self._of_type(value.type)

    def _evaluate(self, node: torch.fx.Node) -> Any:
        args = torch.fx.node.map_arg(node.args, _example_of)
        kwargs = torch.fx.node.map_arg(node.kwargs, _example_of)
        with self.mode:
            if node.op == "call_method":
                receiver, *rest = args
                return getattr(receiver, str(node.target))(*rest, **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _of_type(self, type_: TensorType) -> torch.Tensor:
        with self.mode, torch.no_grad():
            shape, stride = ([self.sizes.value(dim) for dim in dims] for dims in (type_.shape, type_.stride))
            made = torch.empty_strided(shape, stride, dtype=getattr(torch, type_.dtype), device=type_.device)
        return made.requires_grad_(type_.requires_grad)


def _example_of(node: torch.fx.Node) -> Any:
    return node.meta["example_value"]


def tensors_with_paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors inside tuples, lists and dicts, in order, with the keys that lead to them.

    >>> [path for path, _ in tensors_with_paths((torch.ones(1), {"k": torch.ones(2)}))]
    [(0,), (1, 'k')]
    """
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from tensors_with_paths(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_with_paths(item, (*path, key))
