"""Machine code of one kernel, made in this process."""

from __future__ import annotations

from types import ModuleType

from codegen.triton.compile_server import result_of
from codegen.triton.cubins import Cubin, CubinSpec, cubin_of


def compile_cubin(module: ModuleType, wanted: CubinSpec, capability: int = 90) -> Cubin:
    """Compile one kernel of an imported Triton module for compute capability `capability` / 10.

    Needs the CUDA back end of Triton (its own ptxas is enough), no GPU and no driver. The module must have been
    imported without TRITON_INTERPRET.
    """
    job = wanted.job(capability)
    return cubin_of(wanted, result_of(getattr(module, job["function"]), job))
