"""Machine code for an NVIDIA GPU without one: proof that an emitted kernel is valid Triton.

compile_cubin(module, info, types, capability=90) -> the bytes of an ELF cubin
"""

from __future__ import annotations

import warnings
from types import ModuleType

from codegen.triton.expressions import POINTER
from stagewire.program import KernelInfo
from stagewire.types import TensorType


def compile_cubin(module: ModuleType, info: KernelInfo, types: dict[str, TensorType], capability: int = 90) -> bytes:
    """Compile one kernel of an imported Triton module for compute capability `capability` / 10.

    Needs the CUDA back end of Triton (its own ptxas is enough), no GPU and no driver. The module must have been
    imported without TRITON_INTERPRET.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {f"p{i}": POINTER[types[name].dtype] for i, name in enumerate(info.parameters)}
    constants = dict(info.constants)
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(
        fn=getattr(module, info.name),
        signature=signature,
        constexprs={(list(signature).index(name),): value for name, value in constants.items()},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton warns of its own deprecated syntax
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": info.num_warps, "num_stages": info.num_stages, "enable_fp_fusion": True},
        )
    return compiled.asm["cubin"]
