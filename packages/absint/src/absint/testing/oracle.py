"""`OracleMode`: runs real tensors and holds every type rule against what eager torch returned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from absint.cpu_kernels import WORK_SPACE
from absint.errors import DataDependentError, UnsupportedTensor
from absint.fallback import Fallback
from absint.meta import Meta, from_tensor
from absint.schema import OpRecord, record_of
from stagewire.errors import StageError

# The kernel library that runs these (oneDNN or ATen's own, by size, batch and number of threads) decides the
# strides of volumes, and of a gradient along dimensions of size one, where they mean nothing.
_BACKEND_DECIDES = frozenset({"aten.convolution.default", "aten.convolution_backward.default"})

_VOLUME = 5  # dimensions

# Eager returns memory of its operand although the schema says that the result is fresh.
_SHARES_UNSAID = frozenset({"aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default",
                            "aten._unsafe_view.default"})  # fmt: skip


class Mismatch(msgspec.Struct, frozen=True):
    """A rule that disagrees with eager: the call, what the rule says, what eager returned."""

    name: str
    call: str
    ruled: str
    eager: str

    def __str__(self) -> str:
        return f"{self.call}\n    rule  {self.ruled}\n    eager {self.eager}"


class OracleMode(TorchDispatchMode):
    """Checks the rule of each op it sees (the slow path where there is none), and that it says so if it draws numbers.

    mismatches: the findings. checked, unruled: how often each op was seen, with and without a rule.

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
        self.fallback = Fallback()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        record = record_of(func)
        # Types first: an op may change the type of its argument in place.
        metas = (_metas(args), _metas(kwargs))
        stream = torch.get_rng_state()
        result = func(*args, **kwargs)
        if record.effect != "draws" and not torch.equal(torch.get_rng_state(), stream):
            call = f"{record.name}{metas}"
            self.mismatches.append(Mismatch(record.name, call, "draws no random numbers", "draws random numbers"))
        if record.func._schema.returns and _all_strided((args, kwargs, result)):
            self._check(record, metas, result)
            self._check_aliases(record, metas, args, kwargs, result)
        return result

    def _check(self, record: OpRecord, metas: tuple[Any, Any], result: Any) -> None:
        rule, operands = _rule_of(record, metas)
        if rule is None:
            self.unruled[record.name] += 1
            if record.writes:
                return
            ruled = _outcome(self.fallback.types, ((record, *metas), {}))
            if isinstance(ruled, StageError):
                return
        else:
            ruled = _outcome(rule, operands)
            if isinstance(ruled, (DataDependentError, UnsupportedTensor)):
                return
            self.checked[record.name] += 1
        eager = _metas(result)
        if record.name in _BACKEND_DECIDES:
            ruled, eager = _without_free_strides(ruled), _without_free_strides(eager)
        if record.name == "aten.mkldnn_rnn_layer.default":
            ruled, eager = ruled[:WORK_SPACE], eager[:WORK_SPACE]
        agrees = _inplace_agrees if record.writes and record.rule is None else _agrees
        if not agrees(ruled, eager):
            self.mismatches.append(Mismatch(record.name, f"{record.name}{metas}", repr(ruled), repr(eager)))

    def _check_aliases(
        self, record: OpRecord, metas: tuple[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        wrong = None if record.name in _SHARES_UNSAID else _wrong_alias(record, args, kwargs, result)
        if wrong is not None:
            said, found = wrong
            call = f"{record.name}{metas}"
            self.mismatches.append(Mismatch(record.name, call, f"result on {said}", f"result on {found}"))


def _rule_of(record: OpRecord, metas: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
    """The rule that answers an op, its own or that of its functional twin, and the operands it takes."""
    if record.rule is not None or record.functional_rule is None:
        return record.rule, metas
    kept = {k: v for k, v in metas[1].items() if k not in (*record.out_names, "generator")}
    return record.functional_rule, (metas[0], kept)


def _wrong_alias(
    record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[str, str] | None:
    """The first result that stands on other memory than the record says: what it says, what eager did."""
    owners: dict[int, set[str]] = {}
    for position, argument in enumerate(record.func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if isinstance(value, torch.Tensor):
            owners.setdefault(value.untyped_storage()._cdata, set()).add(argument.name)
    results = result if len(record.aliases) > 1 else (result,)
    for item, alias in zip(results, record.aliases, strict=False):
        piece = next(iter(item), None) if isinstance(item, (list, tuple)) else item
        if not isinstance(piece, torch.Tensor) or not piece.untyped_storage().nbytes():
            continue
        found = owners.get(piece.untyped_storage()._cdata, {"new memory"})
        said = "new memory" if alias is None else alias[1]
        if said not in found:
            return said, " and ".join(sorted(found))
    return None


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


def _without_free_strides(types: Any) -> Any:
    if isinstance(types, Meta):
        is_free = types.ndim == _VOLUME
        stride = tuple([1 if n == 1 or is_free else s for n, s in zip(types.shape, types.stride, strict=True)])
        return Meta(types.shape, stride, types.dtype, types.device, types.storage_offset)
    return tuple(map(_without_free_strides, types)) if isinstance(types, tuple) else types


def _all_strided(tree: Any) -> bool:
    if isinstance(tree, torch.Tensor):
        return tree.layout is torch.strided and not tree.is_quantized and not tree.is_nested
    if isinstance(tree, (list, tuple)):
        return all(_all_strided(item) for item in tree)
    if isinstance(tree, dict):
        return all(_all_strided(item) for item in tree.values())
    return True


def _agrees(ruled: Any, eager: Any) -> bool:
    if isinstance(eager, Meta):
        return isinstance(ruled, Meta) and _key(ruled) == _key(eager)
    if isinstance(eager, (list, tuple)):
        return (
            isinstance(ruled, (list, tuple))
            and len(ruled) == len(eager)
            and all(_agrees(r, e) for r, e in zip(ruled, eager, strict=True))
        )
    return type(ruled) is type(eager)


def _key(meta: Meta) -> tuple[Any, ...]:
    return meta.shape, meta.stride, meta.dtype, meta.device, meta.storage_offset


def _inplace_agrees(ruled: Any, eager: Any) -> bool:
    """The functional rule of an in-place op must give the shape of the tensor written."""
    if isinstance(eager, Meta):
        return isinstance(ruled, Meta) and ruled.shape == eager.shape
    if isinstance(eager, (list, tuple)):
        return isinstance(ruled, (list, tuple)) and all(
            _inplace_agrees(r, e) for r, e in zip(ruled, eager, strict=False)
        )
    return True
