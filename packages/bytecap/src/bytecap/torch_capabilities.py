"""What bytecap needs of torch beyond its documented interface; see `stagewire.capabilities`.

Two kinds: what the package calls itself, and what programs call and the evaluator knows the meaning of (`_KNOWN`). Of
the latter nothing is lost where a release has no such function: no program can call it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from stagewire.capabilities import Capabilities, Capability, is_anything, is_class

__all__ = ["ESSENTIAL", "SETTINGS", "TORCH", "numpy_on_tensors"]

_ALL = "every program runs plain"


def _known(path: str, **settings: Any) -> Capability:
    """A function whose meaning the evaluator knows."""
    return Capability(path, "what programs call", **settings)


_GUARDS = {
    "dispatch_keys": "_dispatch_keys",
    "included_keys": "_dispatch_tls_local_include_set",
    "excluded_keys": "_dispatch_tls_local_exclude_set",
    "count_function_modes": "_len_torch_function_stack",
    "function_mode": "_get_function_stack_at",
    "transform": "_functorch.peek_interpreter_stack",
    "count_dispatch_modes": "_len_torch_dispatch_stack",
    "leave_dispatch_mode": "_pop_torch_dispatch_stack",
}
"""Functions of torch._C that tell in which state a capture was made."""

_KNOWN = {
    "tracing_state": "_C._get_tracing_state",
    "has_transforms": "_C._are_functorch_transforms_active",
    "log_use": "_C._log_api_usage_once",
    "accelerator": "_C._accelerator_getAccelerator",
    "sees_torch_function": "_C._is_torch_function_enabled",
    "has_torch_function": "_C._has_torch_function",
    "is_grad_enabled": "_C.is_grad_enabled",
    "no_subclass_function": "_C.DisableTorchFunctionSubclass",
    "group_tensors": "_C._group_tensors_by_device_and_dtype",
    "exchange_gpu": "cuda._exchange_device",
    "maybe_exchange_gpu": "cuda._maybe_exchange_device",
    "value_of_step": "optim.optimizer._get_value",
    "push_function_mode": "_C._push_on_torch_function_stack",
    "pop_function_mode": "_C._pop_torch_function_stack",
    "default_device": "get_default_device",
    "hooks_on_saved_tensors": "_C._autograd._top_saved_tensors_default_hooks",
    "check": "_check",
    "check_index": "_check_index",
    "check_is_size": "_check_is_size",
    "check_not_implemented": "_check_not_implemented",
    "check_tensor_all": "_check_tensor_all",
    "check_tensor_all_with": "_check_tensor_all_with",
    "check_type": "_check_type",
    "check_value": "_check_value",
    "is_constraint_met": "distributions.distribution._all_true_or_runtime_assert",
}
"""Functions of torch that programs call."""

SETTINGS = (
    ("_set_sdp_use_flash", "_get_flash_sdp_enabled", False, 0),
    ("_set_sdp_use_mem_efficient", "_get_mem_efficient_sdp_enabled", False, 0),
    ("_set_sdp_use_math", "_get_math_sdp_enabled", False, 0),
    ("_set_sdp_use_cudnn", "_get_cudnn_sdp_enabled", False, 0),
    ("_set_sdp_use_overrideable", "_get_overrideable_sdp_enabled", False, 0),
    ("_set_cudnn_enabled", "_get_cudnn_enabled", False, 0),
    ("_set_cudnn_benchmark", "_get_cudnn_benchmark", False, 0),
    ("_set_cudnn_deterministic", "_get_cudnn_deterministic", False, 0),
    ("_set_cudnn_depthwise_kernel", "_get_cudnn_depthwise_kernel", False, 0),
    ("_set_mkldnn_enabled", "_get_mkldnn_enabled", False, 0),
    ("_set_mkldnn_deterministic", "_get_mkldnn_deterministic", False, 0),
    ("_set_cudnn_allow_tf32", "_get_cudnn_allow_tf32", True, 0),
    ("_set_onednn_allow_tf32", "_get_onednn_allow_tf32", True, 0),
    ("_set_cublas_allow_tf32", "_get_cublas_allow_tf32", True, 0),
    ("_cuda_set_cudnn_benchmark_limit", "_cuda_get_cudnn_benchmark_limit", True, 0),
    ("_set_float32_matmul_precision", "_get_float32_matmul_precision", True, 0),
    ("_set_fp32_precision_setter", "_get_fp32_precision_getter", True, 2),
)
"""Of torch._C, that choose between kernels: setter, getter, whether numbers change, how many arguments say which."""

_TRANSFORMS = {
    "grad": "jacrev.__globals__.grad_impl",
    "grad_and_value": "jacrev.__globals__.grad_and_value_impl",
    "vmap": "vmap.__globals__.vmap_impl",
    "jvp": "jacrev.__globals__._jvp_with_argnums",
    "vjp": "jacrev.__globals__._vjp_with_argnums",
}
"""What the closures of torch.func call: torch.func.grad(f) is one that calls `grad_impl`."""

ESSENTIAL = (
    *_GUARDS,
    *("dispatch_mode_stack", "dual_level", "set_grad_enabled"),
    *("op_overload", "op_overload_packet", "call_impl"),
)
"""Without one of these nothing is captured."""

TORCH = Capabilities(
    torch,
    "bytecap",
    **{name: Capability(f"torch._C.{path}", "guards on torch's modes", _ALL) for name, path in _GUARDS.items()},
    **{name: _known(f"torch.{path}") for name, path in _KNOWN.items()},
    **{name: _known(f"torch._C.{name}") for pair in SETTINGS for name in pair[:2]},
    **{
        name: Capability(f"torch.func.{path}", f"torch.func.{name}", f"programs that call torch.func.{name} run plain")
        for name, path in _TRANSFORMS.items()
    },
    **{
        name: Capability(f"torch._higher_order_ops.{name}", name, "programs that call it run plain")
        for name in ("associative_scan", "while_loop", "scan", "map")
    },
    dispatch_mode_stack=Capability(
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack", "guards on torch's modes", _ALL
    ),
    dual_level=Capability(
        "torch.autograd.forward_ad._current_level", "guards on torch's modes", _ALL, accepts=is_anything
    ),
    set_grad_enabled=Capability("torch._C._set_grad_enabled", "changes of the grad mode in graphs", _ALL),
    op_overload=Capability("torch._ops.OpOverload", "telling operators from other callables", _ALL, accepts=is_class),
    op_overload_packet=Capability(
        "torch._ops.OpOverloadPacket", "telling operators from other callables", _ALL, accepts=is_class
    ),
    call_impl=Capability("torch.nn.Module._call_impl", "calls of modules", _ALL),
    key_set=Capability(
        "torch._C.DispatchKeySet.from_raw_repr", "saying which dispatch keys of a tensor have changed",
        "a recompile for a tensor of another kind (a conjugate, an inference tensor) is told without its cause",
    ),
    device_mode=Capability(
        "torch.utils._device.DeviceContext", "programs under `with torch.device(...)`", "these run plain",
        accepts=is_class,
    ),
    inference_mode=Capability(
        "torch._C._InferenceMode", "torch.inference_mode() in programs", "programs that enter it run plain",
        accepts=is_class,
    ),
    apply_function=Capability(
        # A class method of C from torch 2.14 on, which `ClassValue.call_method` knows.
        "torch.autograd.Function.apply.__func__", "custom autograd functions",
    ),
    backward_class=Capability(
        "torch.autograd.Function._backward_cls", "torch.autograd.grad in programs", "programs that call it run plain",
        accepts=is_anything,
    ),
    set_versions=Capability(
        "torch._C._autograd._unsafe_set_version_counter", "undoing the writes of a call whose check fails",
        "programs with checks on data run plain",
    ),
    no_torch_function=Capability(
        "torch._C._disabled_torch_function_impl", "subclasses of torch.Tensor that compute as it does",
        "programs on them run plain",
    ),
    make_subclass=Capability(
        "torch.Tensor._make_subclass", "copies of instances of subclasses of torch.Tensor",
        "programs with them run plain",
    ),
    hide_from_dynamo=Capability(
        "torch._disable_dynamo", "functions that torch keeps its own capture out of",
        "programs end their graph at the functions of torch that are marked so",
    ),
    current_gpu=Capability(
        "torch._C._cuda_getDevice", '`device="cuda"`, which means the current one', "programs that say so run plain",
        given="torch.version.cuda",
    ),
    tree_nodes=Capability(
        "torch.utils._pytree.SUPPORTED_NODES", "arguments of function transforms",
        "programs that call torch.func run plain", accepts=is_anything,
    ),
    tree_leaves=Capability(
        "torch.utils._pytree.tree_leaves", "arguments of associative_scan", "programs that call it run plain"
    ),
    dispatch_mode=Capability(
        "torch._C._get_dispatch_mode", "telling what a wrapper class works out on fake tensors",
        "programs on DTensors run plain",
    ),
    fake_mode_key=Capability(
        "torch._C._TorchDispatchModeKey.FAKE", "telling what a wrapper class works out on fake tensors",
        "programs on DTensors run plain", accepts=is_anything,
    ),
)  # fmt: skip


@cache
def numpy_on_tensors() -> Any:
    """torch's module of NumPy's functions, imported (30 ms) by the first program that needs it."""
    row = Capability("torch._numpy", "NumPy on arrays that the graph computes", accepts=is_anything)
    late = Capabilities(torch, "bytecap", module=row)
    late.require("module")
    return late.module
