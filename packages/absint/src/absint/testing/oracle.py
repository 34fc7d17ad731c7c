"""`OracleMode`: runs real tensors and holds every type rule against what eager torch returned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from absint.errors import DataDependentError
from absint.meta import Meta, from_tensor
from absint.schema import record_of

__all__ = ["Mismatch", "OracleMode"]


# The kernel library that runs these (oneDNN or ATen's own, by size, batch and number of threads) decides the
# stride that a result has along dimensions of size one, where it means nothing.
_BACKEND_DECIDES = frozenset({"aten.convolution_backward.default"})


class Mismatch(msgspec.Struct, frozen=True):
    """A rule that disagrees with eager: the call, what the rule says, what eager returned."""

    name: str
    call: str
    ruled: str
    eager: str

    def __str__(self) -> str:
        return f"{self.call}\n    rule  {self.ruled}\n    eager {self.eager}"


class OracleMode(TorchDispatchMode):
    """Checks the rule of each op it sees; `mismatches`, `checked` and `unruled` hold the findings.

    >>> with OracleMode() as oracle:
    ...     _ = torch.ones(2, 3).t() + 1
    >>> oracle.mismatches
    []
    """

    def __init__(self) -> None:
        super().__init__()
        self.mismatches: list[Mismatch] = []
        self.checked: Counter[str] = Counter()
        self.unruled: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        record = record_of(func)
        rule = record.rule
        operands = (args, kwargs)
        if rule is None and record.functional_rule is not None and record.func._schema.returns:
            rule = record.functional_rule
            kept = {k: v for k, v in kwargs.items() if k not in (*record.out_names, "generator")}
            operands = (args, kept)
        if rule is None:
            result = func(*args, **kwargs)
            if record.func._schema.returns:
                self.unruled[record.name] += 1
            return result
        metas = _metas(operands)
        result = func(*args, **kwargs)
        if not _all_strided((args, kwargs, result)):
            return result
        ruled = _outcome(rule, metas)
        if isinstance(ruled, DataDependentError):
            return result
        self.checked[record.name] += 1
        eager = _metas(result)
        agrees = _inplace_agrees if record.writes and record.rule is None else _agrees
        if record.name in _BACKEND_DECIDES:
            ruled, eager = _without_unit_strides(ruled), _without_unit_strides(eager)
        if not agrees(ruled, eager, record.is_view):
            call = f"{record.name}{metas}"
            self.mismatches.append(Mismatch(record.name, call, repr(ruled), repr(eager)))
        return result


def _outcome(rule: Any, operands: tuple[Any, Any]) -> Any:
    try:
        return rule(*operands[0], **operands[1])
    except DataDependentError as error:
        return error
    except Exception as error:  # a rule that fails on a call eager accepts is the finding
        return error


def _metas(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return from_tensor(tree) if tree.layout is torch.strided else tree.layout
    if isinstance(tree, (list, tuple)):
        return type(tree)(_metas(item) for item in tree) if type(tree) in (list, tuple) else tree
    if isinstance(tree, dict):
        return {key: _metas(value) for key, value in tree.items()}
    return tree


def _without_unit_strides(types: Any) -> Any:
    if isinstance(types, Meta):
        stride = tuple([1 if n == 1 else s for n, s in zip(types.shape, types.stride, strict=True)])
        return Meta(types.shape, stride, types.dtype, types.device, types.storage_offset)
    return tuple(map(_without_unit_strides, types)) if isinstance(types, tuple) else types


def _all_strided(tree: Any) -> bool:
    if isinstance(tree, torch.Tensor):
        return tree.layout is torch.strided and not tree.is_quantized and not tree.is_nested
    if isinstance(tree, (list, tuple)):
        return all(_all_strided(item) for item in tree)
    if isinstance(tree, dict):
        return all(_all_strided(item) for item in tree.values())
    return True


def _agrees(ruled: Any, eager: Any, with_offset: bool) -> bool:
    if isinstance(eager, Meta):
        return isinstance(ruled, Meta) and _key(ruled, with_offset) == _key(eager, with_offset)
    if isinstance(eager, (list, tuple)):
        return (
            isinstance(ruled, (list, tuple))
            and len(ruled) == len(eager)
            and all(_agrees(r, e, with_offset) for r, e in zip(ruled, eager, strict=True))
        )
    return type(ruled) is type(eager)


def _key(meta: Meta, with_offset: bool) -> tuple[Any, ...]:
    offset = meta.storage_offset if with_offset else None
    return meta.shape, meta.stride, meta.dtype, meta.device, offset


def _inplace_agrees(ruled: Any, eager: Any, with_offset: bool) -> bool:
    """The functional rule of an in-place op must give the shape of the tensor written."""
    if isinstance(eager, Meta):
        return isinstance(ruled, Meta) and ruled.shape == eager.shape
    if isinstance(eager, (list, tuple)):
        return isinstance(ruled, (list, tuple)) and all(
            _inplace_agrees(r, e, with_offset) for r, e in zip(ruled, eager, strict=False)
        )
    return True
