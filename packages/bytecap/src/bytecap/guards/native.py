"""Teaches the C evaluator how this build of torch lays out its tensors and modes.

`READING` says what it found: tensors are read at verified offsets or through Python attributes; the modes natively or
through Python. Every way gives the same answers, only the cost differs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from bytecap import _evalframe
from bytecap.torch_capabilities import ESSENTIAL, TORCH
from stagewire.capture import GlobalState
from stagewire.types import DTYPES

DTYPE_CODES: dict[str, int] = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6,
    "float64": 7, "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15,
    "float8_e5m2": 23, "float8_e4m3fn": 24, "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26,
    "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""c10/core/ScalarType.h."""

DEVICE_CODES: dict[str, int] = {
    "cpu": 0, "cuda": 1, "mkldnn": 2, "hip": 6, "xla": 9, "vulkan": 10, "xpu": 12, "mps": 13,
    "meta": 14, "hpu": 15, "lazy": 17, "mtia": 19, "privateuseone": 20,
}  # fmt: skip
"""c10/core/DeviceType.h."""

DTYPES_BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
NAMES_BY_DTYPE: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}
AUTOCAST_DEVICES = ("cpu", "cuda")


class Reading(NamedTuple):
    """How the C evaluator reads torch: `tensors` is offsets, attributes or nothing."""

    tensors: str
    native_state: bool


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The tensor's dispatch key set as an integer: backend, autograd, conjugate, negative..."""
    return TORCH.dispatch_keys(tensor).raw_repr()


def device_code(device: torch.device) -> tuple[int, int]:
    """(type, index) as c10::Device holds them; no index is -1."""
    index = -1 if device.index is None else device.index
    return DEVICE_CODES.get(device.type, -1), index


def global_state() -> GlobalState:
    """The state of torch now."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        default_dtype=NAMES_BY_DTYPE[torch.get_default_dtype()],
        autocast=tuple([(device, NAMES_BY_DTYPE[torch.get_autocast_dtype(device)]) for device in enabled]),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def state_codes(state: GlobalState) -> tuple[int, ...]:
    """A state in the order of the C TorchState; dispatch keys and torch function modes are those of this moment."""
    dtypes = dict(state.autocast)
    codes = [DTYPE_CODES[dtypes[device]] if device in dtypes else -1 for device in AUTOCAST_DEVICES]
    keys = TORCH.included_keys().raw_repr(), TORCH.excluded_keys().raw_repr()
    modes = state.grad_enabled, state.inference_mode, DTYPE_CODES[state.default_dtype], state.deterministic
    return (*modes, TORCH.count_function_modes(), *keys, *codes)


def read_state() -> tuple[int, ...]:
    """The modes of torch by its Python functions."""
    return state_codes(global_state())


def read_tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a guard compares of a tensor, by its Python attributes, in the order of the C TensorFacts."""
    with TORCH.no_subclass_function():
        return (
            DTYPE_CODES[NAMES_BY_DTYPE[tensor.dtype]], *device_code(tensor.device), dispatch_keys(tensor),
            tensor.requires_grad, tensor.is_leaf, tuple(tensor.shape), tuple(tensor.stride()),
        )  # fmt: skip


_PROBED = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


def _probes() -> list[torch.Tensor]:
    """Tensors that differ in every field that is searched for; high ranks come last."""
    meta, cpu = torch.device("meta"), torch.device("cpu")
    sizes = (3, 5, 7, 11, 13, 17, 19)
    strides = (100003, 30011, 7001, 1009, 211, 23, 1)
    tensors = [
        torch.empty_strided(sizes[:rank], strides[:rank], device=meta, dtype=dtype)
        for rank, dtype in zip((2, 3, 5, 1, 0, 4), _PROBED, strict=True)
    ]
    tensors += [torch.empty(2, 4, device=cpu, dtype=dtype) for dtype in _PROBED]
    leaf = torch.nn.Parameter(torch.zeros(3, 2, device=cpu, dtype=torch.float32))
    tensors += [leaf, leaf.t(), leaf[0], leaf.detach()]
    tensors.append(torch.zeros(2, device=cpu, dtype=torch.complex64).conj())
    with torch.inference_mode():
        tensors.append(torch.zeros(2, device=cpu, dtype=torch.float64))
    tensors += [torch.empty_strided(sizes[:rank], strides[:rank], device=meta, dtype=torch.float16) for rank in (6, 7)]
    with torch.enable_grad():
        tensors.append(leaf * 2)
    return tensors


_LIBRARIES = [os.path.join(os.path.dirname(torch.__file__), "lib", f"lib{name}.so") for name in ("c10", "torch_cpu")]
_REQUIRES_GRAD, _IS_LEAF = "_ZNK3c1010TensorImpl13requires_gradEv", "_ZNK2at10TensorBase7is_leafEv"
# In the order of torch_functions in torch_state.c.
_STATE_FUNCTIONS = (
    "_ZN3c108GradMode10is_enabledEv", "_ZN3c1013InferenceMode10is_enabledEv",
    "_ZN3c1031get_default_dtype_as_scalartypeEv", "_ZN2at13globalContextEv",
    "_ZNK2at7Context23deterministicAlgorithmsEv", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
)  # fmt: skip


def _address(name: str) -> int:
    """Where a function of libtorch is in this process, 0 where it is not. Nothing is loaded for that."""
    for path in _LIBRARIES:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path, os.RTLD_LAZY | os.RTLD_NOLOAD)
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
    return 0


_INLINE_RANK = 5
"""c10/core/impl/SizesAndStrides.h: up to so many dimensions lie in the object itself."""


def _has_dims(memory: bytes, shape: tuple[int, ...], stride: tuple[int, ...], at: int) -> bool:
    """Whether rank, sizes and strides lie there; of a high rank there is a pointer, if all probes before agreed."""
    rank = len(shape)
    sizes, strides = (struct.pack(f"{rank}q", *dims) for dims in (shape, stride))
    if not memory.startswith(struct.pack("q", rank), at):
        return False
    if rank > _INLINE_RANK:
        return ctypes.string_at(struct.unpack_from("Q", memory, at + 8)[0], 16 * rank) == sizes + strides
    return memory.startswith(sizes, at + 8) and memory.startswith(strides, at + 8 + 8 * _INLINE_RANK)


def _place(probes: list[torch.Tensor]) -> tuple[int, ...]:
    """Where the object of a tensor has what `read_tensor` says of it: of each field the one offset at which all probes
    agree (in the order of `offsets` in tensor_layout.c), then the functions that say the rest; () without one of them.
    """
    usable = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(("malloc_usable_size", ctypes.CDLL(None)))
    impls, functions = [tensor._cdata for tensor in probes], (_address(_REQUIRES_GRAD), _address(_IS_LEAF))
    size, facts = min(map(usable, impls)), [read_tensor(tensor) for tensor in probes]
    memories = [ctypes.string_at(impl, size) for impl in impls]

    def only(step: int, length: int, lies_at: Callable[..., bool], values: Iterable[tuple[object, ...]]) -> list[int]:
        rows = [(memory, *value) for memory, value in zip(memories, values, strict=True)]
        found = [at for at in range(8, size - length + 1, step) if all(lies_at(*row, at) for row in rows)]
        return found if len(found) == 1 else []  # ambiguous: do not guess

    def packed(layout: str, first: int, last: int) -> list[tuple[object, ...]]:
        return [(struct.pack(layout, *fact[first:last]),) for fact in facts]

    handles = [
        at for at in range(object.__basicsize__, 41, 8)
        if all(at + 8 <= type(tensor).__basicsize__ for tensor in probes)
        and all(ctypes.string_at(id(t) + at, 8) == struct.pack("Q", i) for t, i in zip(probes, impls, strict=True))
    ]  # fmt: skip
    offsets = (
        *handles[:1], *only(8, 88, _has_dims, [fact[-2:] for fact in facts]),
        *only(2, 2, bytes.startswith, packed("=H", 0, 1)), *only(1, 2, bytes.startswith, packed("bb", 1, 3)),
        *only(8, 8, bytes.startswith, packed("Q", 3, 4)),
    )  # fmt: skip
    if len(offsets) < 5 or 0 in functions:
        return ()
    requires_grad, is_leaf = map(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p), functions)
    said = [(requires_grad(impl), is_leaf(id(t) + offsets[0])) for t, impl in zip(probes, impls, strict=True)]
    return (*offsets, *functions) if said == [fact[4:6] for fact in facts] else ()


def _state_agrees() -> bool:
    return tuple(_evalframe.read_state()) == tuple(read_state())


def _native_state_verifies() -> bool:
    """The native reading follows grad mode, inference mode and autocast."""
    if not _evalframe.configure_state(read_state, tuple(map(_address, _STATE_FUNCTIONS)), _LIBRARIES[0]):
        return False
    agreed = _state_agrees()
    for mode in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with mode:
            agreed = agreed and _state_agrees()
    before = torch.is_autocast_enabled("cpu")
    for flag in (True, False):
        torch.set_autocast_enabled("cpu", flag)
        agreed = agreed and _state_agrees()
    torch.set_autocast_enabled("cpu", before)
    return agreed


def configure() -> Reading:
    """Searches and verifies; safe to call again."""
    if not all(map(TORCH.has, ESSENTIAL)):
        return Reading("nothing", False)  # no frame is captured
    tensors = _evalframe.configure_tensors(read_tensor, torch.nn.Module.__getattr__, _place(_probes()))
    native = _native_state_verifies()
    _evalframe.use_native_state(native)
    return Reading(tensors, native)


READING = configure()
