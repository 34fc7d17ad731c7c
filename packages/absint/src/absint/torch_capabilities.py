"""What absint needs of torch beyond its documented interface; see `stagewire.capabilities`."""

from __future__ import annotations

import torch

from stagewire.capabilities import Capabilities, Capability, is_anything, is_class

_ALL = "no program is captured"


def _named(functions: str) -> tuple[str, str]:
    return (
        f"giving the functions of torch.{functions} that are written in C their names in documents",
        "programs that call these functions are refused",
    )


TORCH = Capabilities(
    torch,
    "absint",
    dispatch_mode=Capability(
        "torch.utils._python_dispatch.TorchDispatchMode", "answering operators with types", _ALL, accepts=is_class
    ),
    enter_dispatch_mode=Capability("torch._C._push_on_torch_dispatch_stack", "answering operators with types", _ALL),
    leave_dispatch_mode=Capability("torch._C._pop_torch_dispatch_stack", "answering operators with types", _ALL),
    defer_saved_tensors_hooks=Capability(
        "torch._C._autograd._saved_tensors_hooks_set_tracing",
        "keeping the user's hooks on saved tensors from abstract ones", _ALL,
    ),
    op_overload=Capability("torch._ops.OpOverload", "telling overloads from other callables", _ALL, accepts=is_class),
    op_overload_packet=Capability("torch._ops.OpOverloadPacket", "naming operators", _ALL, accepts=is_class),
    make_wrapper=Capability("torch.Tensor._make_wrapper_subclass", "making tensors without memory", _ALL),
    no_torch_function=Capability(
        "torch._C._disabled_torch_function_impl", "letting torch functions see through abstract tensors", _ALL
    ),
    no_dispatch=Capability("torch._C._DisableTorchDispatch", "changing the type of an abstract tensor in place", _ALL),
    has_kernel=Capability(
        "torch._C._dispatch_has_kernel_for_dispatch_key", "telling composite operators from those with kernels", _ALL
    ),
    has_kernels=Capability("torch._C._dispatch_has_kernel", "telling operators of TorchScript alone from others", _ALL),
    operator_names=Capability(
        "torch._C._dispatch_get_all_op_names", "listing the operators of ATen", "no list of the operators of ATen"
    ),
    runs_as=Capability(
        "torch.ops.aten.add.Tensor._op_dk", "running composite operators as what they consist of",
        "programs in inference mode that call composite operators are refused",
    ),
    composite=Capability(
        "torch._C.DispatchKey.CompositeImplicitAutograd", "running composite operators as what they consist of",
        "programs in inference mode that call composite operators are refused", accepts=is_anything,
    ),
    key_set=Capability(
        "torch._C.DispatchKeySet", "tensors of a GPU without memory", "programs on a GPU are refused",
        given="torch.version.cuda",
    ),
    cuda_key=Capability(
        "torch._C.DispatchKey.CUDA", "tensors of a GPU without memory", "programs on a GPU are refused",
        accepts=is_anything, given="torch.version.cuda",
    ),
    below_autograd=Capability(
        "torch._C._AutoDispatchBelowAutograd", "oneDNN's LSTM, which gives its workspace in grad mode alone",
        "training of LSTMs on the CPU is refused",
    ),
    run_engine=Capability(
        "torch.autograd.Variable._execution_engine.run_backward", "gradients of abstract tensors",
        "programs that call torch.autograd.grad are refused",
    ),
    custom_operators=Capability(
        "torch._library.simple_registry.singleton.find", "fake kernels of custom operators",
        "custom operators are refused",
    ),
    fake_kernel_context=Capability(
        "torch._library.fake_impl.set_ctx_getter", "sizes of results that the data of a custom operator decides",
        "custom operators with such results run plain",
    ),
    max_pool1d=Capability(
        "torch.nn.functional._max_pool1d", "max_pool1d without indices", "max_pool1d fixes symbolic sizes"
    ),
    op_namespace=Capability("torch._ops._OpNamespace", "finding operators by name", _ALL, accepts=is_class),
    find_schema=Capability(
        "torch._C._dispatch_find_schema_or_throw", "telling operators on tensors from those of TorchScript", _ALL
    ),
    variable_functions=Capability(
        "torch._C._VariableFunctions", "telling ATen's functions from others of torch", _ALL, accepts=is_anything
    ),
    masked_functions=Capability("torch.masked._ops", *_named("masked"), accepts=is_anything),
    has_matrix_tiles=Capability(
        "torch.cpu._is_amx_tile_supported", "knowing whether the processor multiplies tiles of matrices",
        "weights of frozen products are not packed",
    ),
    **{
        f"onednn_has_{name}": Capability(
            f"torch.ops.mkldnn._is_mkldnn_{short}_supported", f"knowing whether oneDNN computes in {name}",
            f"long LSTMs of {name} run plain, weights of convolutions are not packed",
        )
        for name, short in (("bfloat16", "bf16"), ("float16", "fp16"))
    },
    **{
        name: Capability(f"torch._C._{name}", *_named(name), accepts=is_anything)
        for name in ("nn", "special", "linalg", "fft", "sparse", "nested")
    },
)  # fmt: skip
