"""What a program makes from literals alone: which values, and tensors as data of its document and back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping

import torch

from aotgrad.ops import is_pure
from aotgrad.torch_capabilities import TORCH
from stagewire.expr import Expr
from stagewire.grad import BoundConstant, Constant
from stagewire.graph import Graph, Node, Ref, leaves
from stagewire.graph_passes import live_nodes
from stagewire.types import ValueType


def read_constant(bound: BoundConstant) -> torch.Tensor:
    """A constant of the document as a tensor on its device."""
    constant = bound.value
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device=bound.device)
    found = torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.shape)
    return found.to(bound.device)


def write_constant(name: str, tensor: torch.Tensor, device: str = "cpu") -> BoundConstant:
    """The numbers of a real tensor, for `device`."""
    with TORCH.no_modes():
        dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        # torch does not bring numpy, and bytes(storage) goes element by element.
        data = ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""
    return BoundConstant(name, Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data), device)


def literal_values(
    nodes: Iterable[Node], fits: Callable[[ValueType], bool], given: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """The types by name of what literals and the constants `given` alone decide, these among them; each one `fits`."""
    found = dict(given)
    for node in nodes:
        used = [leaf for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg)]
        if any(isinstance(leaf, Expr) or (isinstance(leaf, Ref) and leaf.name not in found) for leaf in used):
            continue
        if is_pure(node) and all(fits(value.type) for value in node.results):
            found.update((value.name, value.type) for value in node.results)
    return found


def literal_nodes(nodes: Iterable[Node], known: Mapping[str, ValueType], names: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that make these values of known ones, in order."""
    made = tuple(node for node in nodes if all(value.name in known for value in node.results))
    return live_nodes(Graph((), made, tuple(map(Ref, names))))
