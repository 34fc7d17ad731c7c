"""The fast executor: a unit bound to the native executor, which runs it in one call, on one device. C++ units, loaded:
machine code from the cache or the compiler, bound to an executor."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codegen.choices import Bound, load_in_groups
from codegen.cpp.machine_code import compile_sources, load_code
from codegen.cpp.target import Target
from codegen.errors import CompilerFault, NoCompiler, OperatorFailed, SlowExecutor, WrongInput
from codegen.runtime.arguments import symbol_reader
from codegen.runtime.encode import HOST, OPS, SIZE_OPS, VALUES, WHAT, EncodedUnit, encode
from codegen.runtime.library import HAS_WRITTEN, LAUNCH_FAILED, Driver, Library, raise_partly_done, raise_status
from codegen.runtime.memory_kinds import plan_memory, single_device
from codegen.runtime.python_wrapper import PythonWrapper, copied, from_address, settled
from codegen.triton.tuning import VECTOR_BYTES
from stagewire.program import Unit
from stagewire.substitution import replace_symbols
from stagewire.types import ScalarType

FUNCTIONS = (
    "aoti_torch_empty_strided", "aoti_torch_create_tensor_from_blob", "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr", "aoti_torch_get_storage_offset", "aoti_torch_get_dim",
    "aoti_torch_get_dtype", "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_device_type",
    "torch_get_num_threads", "_Z16THPVariable_WrapRKN2at10TensorBaseE", "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_bmm_out",
    "aoti_torch_cpu_addmm_out", "aoti_torch_cpu_baddbmm_out", "aoti_torch_cpu_convolution",
    "aoti_torch_cpu_convolution_backward", "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu",
    "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward", "aoti_torch_get_device_index",
)  # fmt: skip
"""As `struct Torch` in frames.h begins. On a CUDA device the operators are those of that device, and more follows."""

OF_CUDA = ("aoti_torch_get_current_cuda_stream", "aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard")
OF_THE_DRIVER = ("cuLaunchKernelEx", "cuCtxGetCurrent", "cuCtxSetCurrent")

FIELD = 16
"""Bytes from the start of a Python tensor to its at::Tensor, after the object's head; checked at load."""


QUICKLY_COMPILED = '#pragma GCC optimize("O1")\n'
"""Programs run as fast as with -O3, and the first of a machine begins in half the time (0.3 of 0.6 s)."""


def executor_source() -> str:
    """The source of the native executor, compiled and cached like a unit, behind numbers that Python has, too."""
    directory = files("codegen.runtime")
    enums = {"Op": OPS, "SizeOp": SIZE_OPS, "What": (f"AS_{what.upper()}" for what in WHAT)}
    numbers = {"VALUES": VALUES, "HOST": HOST, "FIELD": FIELD, "LAUNCH_FAILED": LAUNCH_FAILED}
    numbers |= {"HAS_WRITTEN": HAS_WRITTEN}
    return "\n".join([
        f"{QUICKLY_COMPILED}typedef long long i64;",
        *(f"enum {name} {{ {', '.join(values)} }};" for name, values in enums.items()),
        *(f"static const i64 {name} = {value}ll;" for name, value in numbers.items()),
        *(directory.joinpath(name).read_text() for name in ("sizes.h", "frames.h", "operators.h", "vm.cpp")),
    ])  # fmt: skip


class Machine(NamedTuple):
    """The loaded native executor and the table of the functions that it calls.

    device: 0 CPU, 1 CUDA; index: of the device; context: the driver's, of a CUDA device.
    """

    make_unit: Callable[..., Any]
    functions: Any
    device: int = 0
    index: int = 0
    context: int = 0


def load_machine(path: Path, driver: Driver | None = None) -> Machine | None:
    """The executor in the shared library at `path`; None, with a warning, where this torch has another layout.

    driver: of the CUDA device that the units are for; None for the CPU.
    """
    try:
        addresses = _addresses(driver)
        _check_layout()
    except (AttributeError, OSError, LayoutMismatch) as error:
        warnings.warn(
            f"the native executor cannot be used: {error}; programs run step by step", SlowExecutor, stacklevel=2
        )
        return None
    make = ctypes.PyDLL(str(path)).make_unit
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p] * 4 + [ctypes.py_object, ctypes.py_object]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    return Machine(make, table) if driver is None else Machine(make, table, 1, driver.index, driver.context)


class LayoutMismatch(Exception):
    """A tensor object is not laid out as the native executor expects."""


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    directory = Path(torch.__file__).parent / "lib"
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    return tuple(ctypes.CDLL(str(directory / f"lib{name}.{suffix}")) for name in ("torch_cpu", "torch_python"))


@lru_cache(maxsize=1)
def _cuda_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))


def _addresses(driver: Driver | None) -> list[int]:
    cpu, python = _libraries()
    here = {name: address_of(python if "THPVariable" in name else cpu, name) for name in FUNCTIONS}
    if driver is None:
        return list(here.values())
    cuda = _cuda_library()
    for name in (name for name in FUNCTIONS if "_cpu" in name):  # no unit of a CUDA device calls those "for_cpu"
        here[name] = 0 if "_for_cpu" in name else address_of(cuda, name.replace("_cpu_", "_cuda_"))
    return [*here.values(), *(address_of(cuda, name) for name in OF_CUDA),
            *(address_of(driver.library, name) for name in OF_THE_DRIVER)]  # fmt: skip


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where a function of a shared library is."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def _check_layout() -> None:
    """The address of a tensor object's field must work as a handle, and give the object back."""
    cpu, python = _libraries()
    wrap = ctypes.PyDLL(None, handle=python._handle)["_Z16THPVariable_WrapRKN2at10TensorBaseE"]
    wrap.restype, wrap.argtypes = ctypes.py_object, [ctypes.c_void_p]
    one = torch.ones(2, 5, device="cpu")  # whatever the default device is
    for tensor in (one, one.to(torch.int64)[:, 1:], torch.nn.Parameter(one)):
        field = id(tensor) + FIELD
        if ctypes.c_void_p.from_address(field).value != tensor._cdata:
            raise LayoutMismatch(f"torch {torch.__version__} keeps the tensor elsewhere in its Python object")
        address = ctypes.c_void_p()
        cpu.aoti_torch_get_data_ptr(ctypes.c_void_p(field), ctypes.byref(address))
        if address.value != tensor.data_ptr() or wrap(field) is not tensor:
            raise LayoutMismatch(f"torch {torch.__version__} does not take the tensor's field as a handle")


def bind_native(unit: Unit, addresses: Mapping[str, int], keep: object, machine: Machine | None) -> Bound:
    """A unit of the CPU as a built-in function of its inputs, step by step without a machine; its kernels are at these
    addresses, as long as `keep` lives."""
    run = PythonWrapper(unit, {name: from_address(address, keep) for name, address in addresses.items()})
    if machine is not None and single_device(unit) == "cpu":
        encoded = encode(unit, lambda kernel: ("LAUNCH", (addresses[kernel],)))
        run = make_native(unit, run, machine, encoded, keep)
    return Bound(run, lambda: unit)


def bind_addresses(unit: Unit, addresses: Mapping[str, int], keep: object, directory: Path, executor: str) -> Bound:
    """`codegen.load.run_addresses`."""
    return bind_native(unit, addresses, keep, machine_for(directory) if executor == "fast" else None)


def make_native(
    unit: Unit, slow: Any, machine: Machine, encoded: EncodedUnit, code: object, *, checks: bool = True
) -> Any:
    """An encoded unit as a built-in function. slow: runs it when an input is of another kind. code: is kept alive.

    checks: whether inputs are looked at before they are given to `slow`; it may do so itself.
    """
    encoded.head.extend((machine.device, machine.index, machine.context))
    again = Again(unit if machine.device else None)
    keep = (encoded, code, machine, objects := _objects(encoded, unit, slow, again, checks))
    run = machine.make_unit(
        ctypes.addressof(machine.functions),
        *(values.buffer_info()[0] for values in (encoded.words, encoded.types, encoded.head)),
        objects,
        keep,
    )
    again.run = weakref.ref(run)
    return run


class Again:
    """Runs a unit of a CUDA device once more where inputs lie at odd addresses, for which its kernels are not compiled:
    on copies of them. What the unit writes, gives back, or hands to a call from Python is not copied.

    unit: None for one that takes all addresses.
    """

    def __init__(self, unit: Unit | None) -> None:
        self.run: Callable[[], Any] = lambda: None
        self.places: tuple[int, ...] = ()
        if unit is not None:
            stays = plan_memory(unit).escaping | set(unit.written)
            given = enumerate(zip(unit.inputs, unit.input_types, strict=True))
            on_device = ((k, name) for k, (name, type_) in given if getattr(type_, "device", "cpu") != "cpu")
            self.places = tuple(k for k, name in on_device if name not in stays)

    def inputs(self, given: list[Any]) -> list[Any] | None:
        """The inputs with copies of those at odd addresses; None if there are none."""
        odd = [k for k in self.places if isinstance(given[k], torch.Tensor) and given[k].data_ptr() % VECTOR_BYTES]
        if not odd:
            return None
        inputs = list(given)
        for k in odd:
            inputs[k] = copied(given[k], given[k].stride())
        return inputs


def _objects(encoded: EncodedUnit, unit: Unit, slow: Any, again: Again, checks: bool) -> tuple[Any, ...]:
    """What vm.cpp takes as Python objects: see `make_unit` there."""

    def restride(tensor: torch.Tensor, number: int, *values: int) -> torch.Tensor:
        made = settled(tensor, encoded.type_of[number], dict(zip(encoded.symbols, values, strict=True)))
        return made if made is not tensor else copied(tensor, tensor.stride())  # it lies at an odd address

    def recover(status: int, *inputs: Any) -> tuple[Any, ...]:
        if status & HAS_WRITTEN:
            raise_partly_done(status & ~HAS_WRITTEN, inputs[0])
        raise_status(status)
        if inputs == (None,) and len(unit.inputs) != 1:
            raise OperatorFailed("an operator failed, after the inputs of the run were given up")
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else list(inputs)
        if len(given) == len(unit.inputs) and (moved := again.inputs(given)) is not None:
            if given is not inputs[0]:
                return again.run()(*moved)
            given.clear()
            return again.run()(moved)
        if checks:
            check_inputs(unit, tuple(given))
        return slow(*inputs)

    return torch.Tensor, torch.nn.Parameter, encoded.calls, encoded.literals, recover, restride


def check_inputs(unit: Unit, inputs: tuple[Any, ...]) -> None:
    """Raise `WrongInput` for the first input that is not what the unit was compiled for."""
    if len(inputs) != len(unit.inputs):
        raise WrongInput(f"{len(inputs)} inputs for a unit that takes {len(unit.inputs)}")
    for name, type_, given in zip(unit.inputs, unit.input_types, inputs, strict=True):
        if isinstance(type_, ScalarType):
            if not isinstance(given, int):
                raise WrongInput(f"the input {name!r} is a {type(given).__name__}, not an integer")
        elif not isinstance(given, torch.Tensor):
            raise WrongInput(f"the input {name!r} is a {type(given).__name__}, not a tensor")
        elif given.dim() != len(type_.shape):
            raise WrongInput(f"the input {name!r} has {given.dim()} dimensions; the program was compiled for {type_}")
    symbols = symbol_reader(unit)(inputs)
    for name, stated_type, given in zip(unit.inputs, unit.input_types, inputs, strict=True):
        if isinstance(stated_type, ScalarType):
            continue
        type_ = replace_symbols(stated_type, symbols)
        strides = [(a, b) for a, b, n in zip(given.stride(), type_.stride, type_.shape, strict=False) if n != 1]
        same = str(given.dtype) == f"torch.{type_.dtype}" and tuple(given.shape) == type_.shape
        if not same or str(given.device) != type_.device or (given.numel() and any(a != b for a, b in strides)):
            found = f"{given.dtype} {tuple(given.shape)} of strides {given.stride()} on {given.device}"
            raise WrongInput(f"the input {name!r} is {found}; the program was compiled for {stated_type}")


def load_cpp(units: Sequence[Unit], directory: Path, executor: str) -> tuple[Bound, ...]:
    """One callable for each unit; their sources compile at the same time, those of each target."""
    return load_in_groups(units, target_of, lambda target, own: _load(own, directory, executor, target))


def target_of(unit: Unit) -> Target:
    """What the C++ of a unit is compiled for."""
    return Target(unit.isa, unit.sanitize)


def _load(units: Sequence[Unit], directory: Path, executor: str, target: Target) -> tuple[Bound, ...]:
    loads: dict[str, Callable[[Path], Any]] = {unit.source: Library for unit in units if unit.source}
    if executor == "fast":
        loads[executor_source()] = load_machine
    libraries = load_code(loads, directory, target)
    machine = libraries.pop(executor_source()) if executor == "fast" else None
    found = [libraries[unit.source] if unit.source else None for unit in units]
    return tuple(
        bind_native(unit, library.addresses(unit.kernels) if library else {}, library, machine)
        for unit, library in zip(units, found, strict=True)
    )


def machine_for(directory: Path, driver: Driver | None = None) -> Machine | None:
    """The native executor for a CUDA device (without a driver: for the CPU); None, with a warning, where there is no
    compiler to make it."""
    try:
        (machine,) = load_code({executor_source(): partial(load_machine, driver=driver)}, directory).values()
    except NoCompiler as error:
        message = f"the native executor cannot be made: {error.message}; programs run step by step"
        warnings.warn(message, SlowExecutor, stacklevel=2)
        return None
    return machine  # type: ignore[no-any-return]


@lru_cache
def prepare_machine(directory: Path) -> None:
    """Begin to compile the native executor, if it is not there, beside what this thread does; once."""

    def compile_it() -> None:
        with contextlib.suppress(NoCompiler, CompilerFault):  # which `machine_for` says
            compile_sources([executor_source()], directory)

    threading.Thread(target=compile_it, daemon=True).start()
