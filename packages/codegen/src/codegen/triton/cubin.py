"""Machine code for an NVIDIA GPU; none needs to be there.

compile_cubin(module, info, types, capability=90) -> Cubin
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import msgspec

from codegen.errors import CompileFailed, UnsupportedKernel
from codegen.triton.compile_server import Job, Result, result_of
from codegen.triton.expressions import POINTER
from stagewire.program import KernelInfo

NUMBER = {"int64": "i64", "float32": "fp32", "float64": "i64"}
"""As what kernels take numbers of the CPU, by dtype: Triton makes fp32 of what Python's floats are, hence the bits."""

ALIGNMENT = 16
"""Bytes; loads and stores of this width need it."""


class Cubin(msgspec.Struct, frozen=True):
    """One kernel. `code`: an ELF file. `shared`: bytes of dynamic shared memory."""

    code: bytes
    symbol: str
    shared: int
    warps: int


class CubinSpec(NamedTuple):
    """A kernel to be compiled.

    dtypes: of its buffers, in the order of its parameters. aligned: which of them always begin at a multiple of
    `ALIGNMENT` bytes. sizes: for each size that it takes, a number of which that is always a multiple. values: of which
    buffers it takes the only element instead of the address.
    """

    info: KernelInfo
    dtypes: tuple[str, ...]
    aligned: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = ()
    values: frozenset[int] = frozenset()

    def job(self, capability: int) -> Job:
        """What is asked of Triton for compute capability `capability` / 10."""
        kinds = [NUMBER[dtype] if i in self.values else POINTER[dtype] for i, dtype in enumerate(self.dtypes)]
        buffers = {f"p{i}": kind for i, kind in enumerate(kinds)}
        constants = dict(self.info.constants)
        divisors = dict.fromkeys(sorted(self.aligned), ALIGNMENT)
        divisors |= {len(self.dtypes) + i: divisor for i, divisor in enumerate(self.sizes) if divisor > 1}
        return Job(
            function=self.info.function or self.info.name,
            signature=buffers
            | {f"n{i}": "i32" for i in range(len(self.sizes))}
            | dict.fromkeys(constants, "constexpr"),
            constants=constants,
            divisors=divisors,
            warps=self.info.num_warps,
            stages=self.info.num_stages,
            registers=self.info.registers,
            capability=capability,
        )


def compile_cubin(module: ModuleType, wanted: CubinSpec, capability: int = 90) -> Cubin:
    """Compile one kernel of an imported Triton module for compute capability `capability` / 10.

    Needs the CUDA back end of Triton (its own ptxas is enough), no GPU and no driver. The module must have been
    imported without TRITON_INTERPRET.
    """
    job = wanted.job(capability)
    return cubin_of(wanted, result_of(getattr(module, job["function"]), job))


def cubin_of(wanted: CubinSpec, result: Result | str) -> Cubin:
    """What came of a kernel; `CompileFailed` where nothing did."""
    if isinstance(result, str):
        raise CompileFailed(f"kernel {wanted.info.name}: {result}")
    code, symbol, shared, warps, takes_more = result
    if takes_more:
        raise UnsupportedKernel(f"kernel {wanted.info.name} needs scratch memory or a cluster of blocks")
    return Cubin(code, symbol, shared, warps)
