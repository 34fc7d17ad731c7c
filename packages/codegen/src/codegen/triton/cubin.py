"""Machine code for an NVIDIA GPU; none needs to be there.

compile_cubin(module, info, types, capability=90) -> Cubin
"""

from __future__ import annotations

import warnings
from types import ModuleType

import msgspec

from codegen.errors import UnsupportedKernel
from codegen.triton.expressions import POINTER
from stagewire.program import KernelInfo

ALIGNMENT = 16
"""Bytes; loads and stores of this width need it."""


class Cubin(msgspec.Struct, frozen=True):
    """One kernel. `code`: an ELF file. `shared`: bytes of dynamic shared memory."""

    code: bytes
    symbol: str
    shared: int
    warps: int


def compile_cubin(
    module: ModuleType,
    info: KernelInfo,
    dtypes: tuple[str, ...],
    capability: int = 90,
    aligned: frozenset[int] = frozenset(),
    sizes: tuple[int, ...] = (),
    values: frozenset[int] = frozenset(),
) -> Cubin:
    """Compile one kernel of an imported Triton module for compute capability `capability` / 10.

    dtypes: of its buffers, in the order of its parameters. aligned: which of them always begin at a multiple of
    `ALIGNMENT` bytes. values: of which it takes the only element, a number of 64 bits, instead of the address. sizes:
    for each size that it takes, a number of which that is always a multiple. Needs the CUDA back end of Triton
    (its own ptxas is enough), no GPU and no driver. The module must have been imported without TRITON_INTERPRET.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {f"p{i}": "i64" if i in values else POINTER[dtype] for i, dtype in enumerate(dtypes)}
    signature.update({f"n{i}": "i32" for i in range(len(sizes))})
    divisors = dict.fromkeys(sorted(aligned), ALIGNMENT)
    divisors |= {len(dtypes) + i: divisor for i, divisor in enumerate(sizes) if divisor > 1}
    constants = dict(info.constants)
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(
        fn=getattr(module, info.function or info.name),
        signature=signature,
        constexprs={(list(signature).index(name),): value for name, value in constants.items()},
        attrs={(number,): [["tt.divisibility", divisor]] for number, divisor in divisors.items()},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton warns of its own deprecated syntax
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": info.num_warps, "num_stages": info.num_stages, "enable_fp_fusion": True},
        )
    made = compiled.metadata
    if made.global_scratch_size or made.num_ctas != 1:
        raise UnsupportedKernel(f"kernel {info.name} needs scratch memory or a cluster of blocks")
    return Cubin(compiled.asm["cubin"], made.name, made.shared, made.num_warps)
