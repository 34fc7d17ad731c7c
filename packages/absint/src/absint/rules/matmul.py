"""Rules of matrix products; results are row-major."""

from __future__ import annotations

from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import Meta, contiguous
from absint.rules.pointwise import broadcast, common_device, pointwise
from absint.rules.shapes import expand_stride, fresh
from absint.rules.table import RuleTable

TABLE = RuleTable()


def _same_dtype(first: Meta, second: Meta) -> torch.dtype:
    if first.dtype is not second.dtype:
        raise TypeRuleError(f"expected m1 and m2 to have the same dtype, but got: {first.dtype} != {second.dtype}")
    return first.dtype


def _mm(self: Meta, mat2: Meta, out_dtype: torch.dtype | None = None) -> Meta:
    if self.ndim != 2 or mat2.ndim != 2:
        raise TypeRuleError("mat1 and mat2 must be matrices" if self.ndim != 2 else "mat2 must be a matrix")
    if self.shape[1] != mat2.shape[0]:
        raise TypeRuleError(f"mm of {list(self.shape)} and {list(mat2.shape)}")
    dtype = out_dtype or _same_dtype(self, mat2)
    return contiguous((self.shape[0], mat2.shape[1]), dtype, common_device((self, mat2)))


def _int_mm(self: Meta, mat2: Meta) -> Meta:
    if self.dtype not in (torch.int8, torch.uint8) or mat2.dtype is not torch.int8:
        raise TypeRuleError(f"expected int8 or uint8 times int8, but got {self.dtype} times {mat2.dtype}")
    return _mm(self, mat2, torch.int32)


def _bmm(self: Meta, mat2: Meta, out_dtype: torch.dtype | None = None) -> Meta:
    if self.ndim != 3 or mat2.ndim != 3:
        raise TypeRuleError("batch1 must be a 3D tensor" if self.ndim != 3 else "batch2 must be a 3D tensor")
    if self.shape[0] != mat2.shape[0] or self.shape[2] != mat2.shape[1]:
        raise TypeRuleError(f"bmm of {list(self.shape)} and {list(mat2.shape)}")
    shape = (self.shape[0], self.shape[1], mat2.shape[2])
    return contiguous(shape, out_dtype or _same_dtype(self, mat2), common_device((self, mat2)))


def _expanded(self: Meta, product: Meta) -> Meta:
    if broadcast(self.shape, product.shape) != product.shape:
        raise TypeRuleError(f"{list(self.shape)} does not expand to {list(product.shape)}")
    return product


def _mv(self: Meta, vec: Meta) -> Meta:
    if self.ndim != 2 or vec.ndim != 1 or self.shape[1] != vec.shape[0]:
        raise TypeRuleError(f"size mismatch, got input {list(self.shape)}, vec {list(vec.shape)}")
    return fresh(self, self.shape[:1], _same_dtype(self, vec))


def _dot(self: Meta, other: Meta, /) -> Meta:
    if self.ndim != 1 or other.ndim != 1 or self.shape != other.shape:
        raise TypeRuleError(f"dot of {list(self.shape)} and {list(other.shape)}")
    return fresh(self, (), _same_dtype(self, other))


def _addmv(self: Meta, mat: Meta, vec: Meta, beta: Any) -> Meta:
    made = _expanded(self, _mv(mat, vec))
    return fresh(self) if beta != 0 and 0 in mat.shape else made  # eager scales self, and expands nothing


def _addr(self: Meta, vec1: Meta, vec2: Meta) -> Meta:
    shape = vec1.shape[0], vec2.shape[0]
    expanded = Meta(shape, expand_stride(self, shape), self.dtype, self.device)  # its dtype counts as a matrix's
    return pointwise((expanded, Meta((shape[0], 1), (vec1.stride[0], 0), vec1.dtype, vec1.device), vec2))


def _grouped_mm(self: Meta, mat2: Meta, offs: Meta | None, out_dtype: torch.dtype | None) -> Meta:
    if self.ndim == 2 and mat2.ndim == 2 and offs is None:
        raise TypeRuleError("_grouped_mm of two matrices needs offs")
    groups = offs.shape[:1] if self.ndim == mat2.ndim == 2 else ()
    rows = self.shape[1:2] if self.ndim == 3 and mat2.ndim == 2 else self.shape[:-1]
    return fresh(self, (*groups, *rows, mat2.shape[-1]), out_dtype)


TABLE.rows({
    "mm mm.dtype": _mm,
    "_int_mm": _int_mm,
    "addmm _addmm_activation": lambda self, mat1, mat2: _expanded(self, _mm(mat1, mat2)),
    "bmm bmm.dtype": _bmm,
    "baddbmm": lambda self, batch1, batch2: _expanded(self, _bmm(batch1, batch2)),
    "mv": _mv,
    "addmv": _addmv,
    "dot vdot": _dot,
    "addr": _addr,
    "_grouped_mm": _grouped_mm,
})  # fmt: skip
TABLE.ask("addmm _addmm_activation addmv addr baddbmm bmm dot mm mv vdot")
