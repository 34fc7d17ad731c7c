"""From the arguments of a call to leaves that are what the artifact was compiled for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from absint.wire import from_arg
from stagefold.artifact.file_format import Header, Leaf, bounds_text
from stagefold.artifact.trees import tree_of
from stagefold.errors import OtherInputs
from stagefold.torch_capabilities import TORCH
from stagewire.capture import Relation, holds
from stagewire.expr import Dim, evaluate
from stagewire.graph import Value
from stagewire.symbols import size_reader
from stagewire.types import TensorType


class Arguments:
    """The arguments of an artifact. What does not fit is `OtherInputs`, which names the argument, the dimension and
    what the program needs there."""

    def __init__(self, header: Header, rules: Sequence[Relation] = ()) -> None:
        """rules: conditions on sizes, besides those of the header."""
        self._header, self._known = header, None
        self._rules = tuple(dict.fromkeys((*header.rules, *rules)))
        self._tensors = tuple(number for number, leaf in enumerate(header.leaves) if leaf.type is not None)
        types = [header.leaves[number].type for number in self._tensors]
        self._read = size_reader([Value("", type_) for type_ in types])  # type: ignore[arg-type]
        self._labels = {one.symbol: one.label for one in header.ranges}
        positional, named = header.arguments.children
        is_plain = all(child.kind == "leaf" for child in positional.children) and not named.children
        self._plain = len(self._tensors) if is_plain and len(self._tensors) == len(header.leaves) else -1
        self._passed: object = None

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call, checked. Keyword arguments may come in any order."""
        if len(args) == self._plain and not kwargs and {*map(type, args)} <= {torch.Tensor}:
            self.check(args)
            return list(args)
        names = self._header.arguments.children[1].keys
        if kwargs.keys() == set(names):
            kwargs = {name: kwargs[name] for name in names}  # type: ignore[index, misc]
        found, spec = TORCH.tree_flatten((args, kwargs))
        if spec != self._known:
            if tree_of(spec) != self._header.arguments:
                labels = ", ".join(leaf.label for leaf in self._header.leaves)
                raise OtherInputs(f"{self._header.name} takes {labels}, in the same containers as when it was exported")
            self._known = spec
        self.check(found)
        return found  # type: ignore[no-any-return]

    def check(self, leaves: Sequence[Any]) -> None:
        """Refuse leaves that the program was not made for. What passed last is not looked at again."""
        seen = torch.is_grad_enabled(), [_seen(leaf) for leaf in leaves]
        if seen != self._passed:
            self._check(leaves)
            self._passed = seen

    def _check(self, leaves: Sequence[Any]) -> None:
        if len(leaves) != len(self._header.leaves):
            raise OtherInputs(
                f"{self._header.name} takes {len(self._header.leaves)} leaves, and {len(leaves)} are given"
            )
        for leaf, have in zip(self._header.leaves, leaves, strict=True):
            if leaf.type is None:
                _check_value(leaf, have)
            else:
                self._check_tensor(leaf.label, leaf.type, have)
        sizes = {} if self._read is None else self._read([leaves[number] for number in self._tensors])
        for one in self._header.ranges:
            size = sizes[one.symbol]
            if size < (one.lower or 0) or (one.upper is not None and size > one.upper):
                raise OtherInputs(f"{one.label} is {size}, and was exported for {bounds_text(one)}")
        for number in self._tensors:
            self._check_layout(self._header.leaves[number], leaves[number], sizes)
        for rule in self._rules:
            if not holds(rule, sizes):
                raise OtherInputs(self._broken(rule, sizes), where=rule.line)

    def _check_tensor(self, label: str, want: TensorType, have: Any) -> None:
        if type(have) not in (torch.Tensor, torch.nn.Parameter):
            raise OtherInputs(f"{label} is a {type(have).__name__}, and was a tensor")
        if (str(have.dtype), str(have.device)) != (f"torch.{want.dtype}", want.device):
            raise OtherInputs(f"{label} is {have.dtype} on {have.device}, and was torch.{want.dtype} on {want.device}")
        if have.dim() != len(want.shape):
            raise OtherInputs(f"{label} has {have.dim()} dimensions, and had {len(want.shape)}")
        if have.requires_grad and torch.is_grad_enabled() and not (want.requires_grad and self._header.gradients):
            fix = "Call it under torch.no_grad(), or export with gradients=True and an input that requires gradients."
            raise OtherInputs(f"{label} requires gradients, for which it was not exported", fix=fix)

    def _check_layout(self, leaf: Leaf, have: torch.Tensor, sizes: dict[str, int]) -> None:
        assert leaf.type is not None
        for dimension, (size, length) in enumerate(zip(leaf.type.shape, have.shape, strict=True)):
            if evaluate(size, sizes) != length:
                known = "" if isinstance(size, int) else f", which is {evaluate(size, sizes)}"
                need = f"{in_words(size, self._labels)}{known}"
                raise OtherInputs(f"{leaf.label} has size {length} in dimension {dimension}, where it needs {need}")
        for dimension, (step, stride) in enumerate(zip(leaf.type.stride, have.stride(), strict=True)):
            if have.shape[dimension] > 1 and have.numel() and evaluate(step, sizes) != stride:
                fix = "Lay the tensor out as it was at export; most often .contiguous() does so."
                need = in_words(step, self._labels)
                raise OtherInputs(f"{leaf.label} has stride {stride} in dimension {dimension}, and had {need}", fix=fix)

    def _broken(self, rule: Relation, sizes: dict[str, int]) -> str:
        told = f"{in_words(rule.left, self._labels)} {rule.operator} {in_words(rule.right, self._labels)}"
        met = ", ".join(f"{label} is {sizes[symbol]}" for symbol, label in self._labels.items() if label in told)
        return f"{self._header.name} needs {told}: {met}"


def _seen(leaf: Any) -> tuple[Any, ...]:
    """All of a leaf that the checks ask for."""
    if isinstance(leaf, torch.Tensor):
        return type(leaf), leaf.dtype, leaf.device, leaf.requires_grad, leaf.shape, leaf.stride()
    return type(leaf), repr(leaf)


def in_words(size: Dim, labels: dict[str, str]) -> str:
    """A size with the names of what its symbols are."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: labels.get(found[0], found[0]), str(size))


def _check_value(leaf: Leaf, have: Any) -> None:
    want = from_arg(leaf.value, lambda ref: ref)
    if type(have) is not type(want) or repr(have) != repr(want):
        raise OtherInputs(f"{leaf.label} is {have!r}, and was {want!r}: it is a part of what was compiled")
