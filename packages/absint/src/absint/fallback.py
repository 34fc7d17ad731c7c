"""The slow, correct path for an op without a type rule: run it once on zeros and read the types.

An operator of the program that has a kernel for types (device "meta") runs that instead: its own may do more than to
compute.

Zeros are valid as indices, masks and sizes of groups, so that nearly every kernel accepts them. Each use is
counted on the `Fallback` object, so that a missing rule is seen. Nothing here is shared between modes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from absint.errors import DataDependentError, NoTypeRule
from absint.meta import CPU, Meta, from_tensor, leaves, map_leaves, span
from absint.schema import OpRecord
from absint.torch_capabilities import TORCH


class Fallback:
    """Runs kernels on zero-filled tensors of the operands' exact types.

    max_bytes: refuse calls whose operands together are larger.
    counts: uses by op name.
    """

    def __init__(self, max_bytes: int = 1 << 28) -> None:
        self.max_bytes = max_bytes
        self.counts: Counter[str] = Counter()

    def types(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result types of `record.func` on operands whose tensors are `Meta`s.

        Raises `DataDependentError` where data decides the result's shape, `NoTypeRule` where the kernel
        is too large to run or refuses zeros.
        """
        if record.is_data_dependent:
            raise DataDependentError(f"the result of {record.name} depends on data")
        on_types = record.func.namespace != "aten" and TORCH.has_kernel(record.func.name(), "Meta")
        metas = [leaf for leaf in leaves((args, kwargs)) if type(leaf) is Meta]
        bytes_needed = 0 if on_types else sum(int(span(meta)) * meta.dtype.itemsize for meta in metas)
        if bytes_needed > self.max_bytes:
            raise NoTypeRule(f"{record.name} has no type rule and its operands take {bytes_needed} bytes")
        self.counts[record.name] += 1
        device = metas[0].device if metas else CPU
        stand_in = _META if on_types else CPU
        true_device = None
        if on_types or (device.type != "cpu" and not torch.accelerator.is_available()):
            (args, kwargs), true_device = _replace_device((args, kwargs), stand_in), device
        zeros: dict[int, torch.Tensor] = {}
        # Tags do not tell every random kernel (whole recurrent layers drop out too).
        state = torch.get_rng_state()
        try:
            with torch.no_grad():
                result = record.func(*_real(args, zeros), **_real(kwargs, zeros))
        except DataDependentError:
            raise
        except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
            raise NoTypeRule(f"{record.name} has no type rule, and on zeros it says: {error}") from error
        finally:
            torch.set_rng_state(state)
        types = map_leaves(result, lambda leaf: from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf)
        return types if true_device is None else _replace_device(types, true_device)


_META = torch.device("meta")


def _replace_device(tree: Any, stand_in: torch.device) -> Any:
    """Every device becomes another one: where the build cannot run the true one, types do not depend on it."""

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, Meta):
            return Meta(leaf.shape, leaf.stride, leaf.dtype, stand_in, leaf.storage_offset)
        return stand_in if isinstance(leaf, torch.device) else leaf

    return map_leaves(tree, visit)


def _real(tree: Any, zeros: dict[int, torch.Tensor]) -> Any:
    def visit(leaf: Any) -> Any:
        if isinstance(leaf, torch.SymInt):
            return int(leaf)
        if not isinstance(leaf, Meta):
            return leaf
        key = id(leaf)
        if key not in zeros:
            memory = torch.zeros(int(span(leaf)), dtype=leaf.dtype, device=leaf.device)
            # A kernel takes numbers: sizes that are symbolic are fixed.
            shape, stride = tuple(map(int, leaf.shape)), tuple(map(int, leaf.stride))
            zeros[key] = memory.as_strided(shape, stride, int(leaf.storage_offset))
        return zeros[key]

    return map_leaves(tree, visit)
