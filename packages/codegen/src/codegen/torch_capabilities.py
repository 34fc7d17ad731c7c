"""What codegen needs of torch beyond its documented interface; see `stagewire.capabilities`.

The functions of torch's shared libraries that the native executor calls are in `codegen.runtime.native`.
"""

from __future__ import annotations

import torch

from stagewire.capabilities import Capabilities, Capability

__all__ = ["RECORDING", "TORCH"]

_RECORDINGS = "GPU programs are not recorded as CUDA graphs"

TORCH = Capabilities(
    torch,
    "codegen",
    pack_convolution=Capability(
        "torch._C._nn.mkldnn_reorder_conv2d_weight", "packing the weights of frozen convolutions",
        "weights of frozen convolutions are not packed",
    ),
    convolve_packed=Capability(
        "torch.ops.mkldnn._convolution_pointwise", "convolutions with packed weights",
        "weights of frozen convolutions are not packed",
    ),
    pack_product=Capability(
        "torch.ops.mkldnn._reorder_linear_weight", "packing the weights of frozen products",
        "weights of frozen products are not packed",
    ),
    multiply_packed=Capability(
        "torch.ops.mkldnn._linear_pointwise", "products with packed weights",
        "weights of frozen products are not packed",
    ),
    below_autograd=Capability(
        "torch._C._AutoDispatchBelowAutograd", "collectives", "each collective passes through Python of torch's"
    ),
    storage_users=Capability("torch._C._storage_Use_Count", "reusing memory of results", _RECORDINGS),
    copy_all=Capability("torch._foreach_copy_", "moving inputs into a recording", _RECORDINGS),
    current_stream=Capability(
        "torch._C._cuda_getCurrentRawStream", "recording CUDA graphs", _RECORDINGS, given="torch.version.cuda"
    ),
    precision=Capability(
        "torch._C._get_fp32_precision_getter", "how precise products are to be", _RECORDINGS,
        given="torch.version.cuda",
    ),
    reduces_in_float16=Capability(
        "torch._C._get_cublas_allow_fp16_reduced_precision_reduction", "how precise products are to be", _RECORDINGS,
        given="torch.version.cuda",
    ),
    reduces_in_bfloat16=Capability(
        "torch._C._get_cublas_allow_bf16_reduced_precision_reduction", "how precise products are to be", _RECORDINGS,
        given="torch.version.cuda",
    ),
    fused_dropout=Capability(
        "torch._fused_dropout", "comparing drawn numbers with ATen's on a GPU", "ATen draws random numbers on GPUs",
        given="torch.version.cuda",
    ),
)  # fmt: skip

RECORDING = ("storage_users", "copy_all", "current_stream", "precision", "reduces_in_float16", "reduces_in_bfloat16")
"""Without one of these no CUDA graph is recorded."""
