"""The fast executor: a unit bound to the native executor, which runs it in one call."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codegen.errors import SlowExecutor, WrongInput, WrongResult
from codegen.runtime.encode import EncodedUnit, encode
from codegen.runtime.library import Library, raise_status
from codegen.runtime.python_wrapper import PythonWrapper, settled
from stagewire.expr import Expr
from stagewire.graph import Ref, references
from stagewire.program import Allocate, CallExtern, Launch, MakeView, Unit
from stagewire.types import TensorType

FUNCTIONS = (
    "aoti_torch_empty_strided", "aoti_torch_create_tensor_from_blob", "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr", "aoti_torch_get_storage_offset", "aoti_torch_get_dim",
    "aoti_torch_get_dtype", "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_device_type",
    "torch_get_num_threads", "_Z16THPVariable_WrapRKN2at10TensorBaseE", "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_bmm_out",
    "aoti_torch_cpu_addmm_out", "aoti_torch_cpu_baddbmm_out", "aoti_torch_cpu_convolution",
    "aoti_torch_cpu_convolution_backward", "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu",
    "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip
"""As `struct Torch` in vm.cpp."""

FIELD = 16
"""Bytes from the start of a Python tensor to its at::Tensor; as in vm.cpp."""


def executor_source() -> str:
    """The source of the native executor, compiled and cached like a unit."""
    return files("codegen.runtime").joinpath("vm.cpp").read_text()


class Machine(NamedTuple):
    """The loaded native executor and the table of libtorch's functions."""

    make_unit: Callable[..., Any]
    torch: Any


def load_machine(path: Path) -> Machine | None:
    """The executor in the shared library at `path`; None, with a warning, where this torch has another layout."""
    try:
        table = (ctypes.c_void_p * len(FUNCTIONS))(*_addresses())
        _check_layout()
    except (AttributeError, OSError, LayoutMismatch) as error:
        warnings.warn(
            f"the native executor cannot be used: {error}; programs run step by step", SlowExecutor, stacklevel=2
        )
        return None
    make = ctypes.PyDLL(str(path)).make_unit
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p] * 4 + [ctypes.py_object, ctypes.py_object]
    return Machine(make, table)


class LayoutMismatch(Exception):
    """A tensor object is not laid out as the native executor expects."""


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    directory = Path(torch.__file__).parent / "lib"
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    return tuple(ctypes.CDLL(str(directory / f"lib{name}.{suffix}")) for name in ("torch_cpu", "torch_python"))


def _addresses() -> list[int]:
    found = []
    for name in FUNCTIONS:
        library = _libraries()[1 if "THPVariable" in name else 0]
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        found.append(address)
    return found


def _check_layout() -> None:
    """The address of a tensor object's field must work as a handle, and give the object back."""
    cpu, python = _libraries()
    wrap = ctypes.PyDLL(None, handle=python._handle)["_Z16THPVariable_WrapRKN2at10TensorBaseE"]
    wrap.restype, wrap.argtypes = ctypes.py_object, [ctypes.c_void_p]
    for tensor in (torch.empty(3), torch.empty(2, 5, dtype=torch.int64)[:, 1:], torch.nn.Parameter(torch.empty(7, 2))):
        field = id(tensor) + FIELD
        if ctypes.c_void_p.from_address(field).value != tensor._cdata:
            raise LayoutMismatch(f"torch {torch.__version__} keeps the tensor elsewhere in its Python object")
        address = ctypes.c_void_p()
        cpu.aoti_torch_get_data_ptr(ctypes.c_void_p(field), ctypes.byref(address))
        if address.value != tensor.data_ptr() or wrap(field) is not tensor:
            raise LayoutMismatch(f"torch {torch.__version__} does not take the tensor's field as a handle")


def bind_native(unit: Unit, library: Library | None, machine: Machine) -> Any:
    """The unit as a built-in function of its inputs."""
    slow = PythonWrapper(unit, library)
    if not is_static(unit):
        return slow
    encoded = encode(unit, library.address if library is not None else _no_kernel)
    keep = (encoded, library, machine, objects := _objects(encoded, slow))
    return machine.make_unit(
        ctypes.addressof(machine.torch),
        *(values.buffer_info()[0] for values in (encoded.words, encoded.types, encoded.head)),
        objects,
        keep,
    )


def is_static(unit: Unit) -> bool:
    """Whether the unit has no symbolic sizes, tensors on the CPU only, and outputs that are buffers or literals."""
    types: list[TensorType] = list(unit.input_types)
    for one in unit.instructions:
        match one:
            case Allocate(type=type_) | MakeView(type=type_):
                types.append(type_)
            case Launch(sizes=sizes) if sizes:
                return False
            case CallExtern(args=args, kwargs=kwargs, result_types=made):
                types += [type_ for type_ in made if type_ is not None]
                if any(_has_symbol(arg) for arg in (*args, *kwargs.values())):
                    return False
    if any(not isinstance(output, Ref) and any(True for _ in references(output)) for output in unit.outputs):
        return False
    return all(
        type_.device == "cpu" and all(isinstance(n, int) for n in (*type_.shape, *type_.stride, type_.storage_offset))
        for type_ in types
    )


def _has_symbol(arg: Any) -> bool:
    return isinstance(arg, Expr) or any(_has_symbol(item) for item in getattr(arg, "items", ()))


def _no_kernel(name: str) -> int:
    raise AssertionError(name)


def _objects(encoded: EncodedUnit, slow: PythonWrapper) -> tuple[Any, ...]:
    """What vm.cpp takes as Python objects: see `make_unit` there."""

    def restride(tensor: torch.Tensor, number: int) -> torch.Tensor:
        return settled(tensor, encoded.type_of[number], {})

    def recover(status: int, *inputs: Any) -> tuple[Any, ...]:
        raise_status(status)
        if inputs == (None,) and len(slow.unit.inputs) != 1:
            raise WrongResult("an operator failed, after the inputs of the run were given up")
        check_inputs(slow.unit, inputs)
        return slow(*inputs)

    return torch.Tensor, torch.nn.Parameter, encoded.calls, encoded.literals, recover, restride


def check_inputs(unit: Unit, inputs: tuple[Any, ...]) -> None:
    """Raise `WrongInput` for the first input that is not what the unit was compiled for."""
    if len(inputs) != len(unit.inputs):
        raise WrongInput(f"{len(inputs)} inputs for a unit that takes {len(unit.inputs)}")
    for name, type_, given in zip(unit.inputs, unit.input_types, inputs, strict=True):
        if not isinstance(given, torch.Tensor):
            raise WrongInput(f"the input {name!r} is a {type(given).__name__}, not a tensor")
        strides = [(a, b) for a, b, n in zip(given.stride(), type_.stride, type_.shape, strict=False) if n != 1]
        same = str(given.dtype) == f"torch.{type_.dtype}" and tuple(given.shape) == type_.shape
        if not same or str(given.device) != type_.device or (given.numel() and any(a != b for a, b in strides)):
            found = f"{given.dtype} {tuple(given.shape)} of strides {given.stride()} on {given.device}"
            raise WrongInput(f"the input {name!r} is {found}; the program was compiled for {type_}")
