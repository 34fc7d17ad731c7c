"""Loaded machine code: functions of a shared library, called with addresses, and of modules of the CUDA driver."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import weakref
from _ctypes import dlclose
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch

from codegen import errors
from codegen.errors import NO_SUCH_VALUE, OUT_OF_RANGE, ZERO_DIVISOR, LaunchFailed
from stagewire.errors import PartlyDone
from stagewire.program import KernelInfo

if TYPE_CHECKING:
    from codegen.triton.cubins import Cubin

LAUNCH_FAILED = 1 << 16
HAS_WRITTEN = 1 << 40
"""In a run's status: beside it the driver's result; and that inputs of the caller's may hold something else."""

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Library:
    """One unit's shared library; it stays loaded as long as this object lives, and no longer.

    Whoever holds an address of it holds the object as well.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        keep_openmp()
        # Not at exit: threads that do not end with the interpreter may still run it.
        weakref.finalize(self, dlclose, self._library._handle).atexit = False

    def address(self, name: str) -> int:
        """The address of a function. Raises `MissingKernel`."""
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise errors.MissingKernel(f"the source defines no function {name!r}") from error
        found = ctypes.cast(function, ctypes.c_void_p).value
        assert found is not None
        return found

    def addresses(self, kernels: Iterable[KernelInfo]) -> dict[str, int]:
        """The addresses of kernels by name."""
        return {kernel.name: self.address(kernel.name) for kernel in kernels}


@lru_cache(maxsize=1)
def keep_openmp() -> None:
    """Have the OpenMP runtime of kernels stay when they are unloaded: its threads wait there for the next region."""
    for name in ("libgomp.so.1", "libomp.so", "libomp.so.5", "libiomp5.so"):
        with contextlib.suppress(OSError):  # not the one
            ctypes.CDLL(name, os.RTLD_NOW | os.RTLD_NOLOAD | os.RTLD_NODELETE)


def raise_status(status: int) -> None:
    """The error that a kernel's status word stands for."""
    if status & LAUNCH_FAILED:
        result = status & (LAUNCH_FAILED - 1)
        raise errors.LaunchFailed(f"the driver did not start a kernel: result {result}")
    if status & OUT_OF_RANGE:
        raise errors.IndexOutOfRange("an index is out of range for the dimension that it indexes")
    if status & NO_SUCH_VALUE:
        raise errors.ValueOutOfRange("a value is out of the range that the operator takes")
    if status & ZERO_DIVISOR:
        raise errors.IntegerDivisionByZero("integer division by zero")


def raise_partly_done(status: int, error: BaseException | None) -> NoReturn:
    """What a run raises that fails with this status, or with an error, after it has written inputs."""
    try:
        if error is not None:
            raise error
        raise_status(status)
        raise errors.OperatorFailed("an operator failed, after inputs of the run were written")
    except Exception as raised:
        raise PartlyDone(raised) from raised


_DYNAMIC_SHARED_LIMIT = 48 * 1024
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute


class Function(NamedTuple):
    """A loaded kernel. spare: how many parameters it has behind its buffers (scratch memory that is not used)."""

    handle: int
    threads: int
    shared: int
    spare: int


class Driver:
    """One device: its primary context, and what is loaded into it.

    Needs the driver, and a device; `OSError` where the library is missing.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.library = ctypes.CDLL("libcuda.so.1")
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # torch makes the primary context, if nothing has yet
            context = ctypes.c_void_p()
            self._call("cuCtxGetCurrent", ctypes.byref(context))
        assert context.value is not None
        self.context: int = context.value
        self._loaded: dict[tuple[str, bytes], ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise LaunchFailed(f"{name} of the CUDA driver: result {result}")

    def load(self, cubin: Cubin, buffers: int) -> Function:
        """Load one kernel that takes so many buffers; its machine code stays loaded as long as the process lives,
        and is loaded once."""
        key = cubin.symbol, hashlib.sha256(cubin.code).digest()
        function = self._loaded.get(key)
        if function is None:
            function = self._loaded[key] = self._function(cubin)
        assert function.value is not None
        return Function(function.value, 32 * cubin.warps, cubin.shared, self._parameters(function) - buffers)

    def _function(self, cubin: Cubin) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(self.index):
            self._call("cuModuleLoadData", ctypes.byref(module), cubin.code)
            self._call("cuModuleGetFunction", ctypes.byref(function), module, cubin.symbol.encode())
            if cubin.shared > _DYNAMIC_SHARED_LIMIT:
                self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, cubin.shared)
        return function

    def _parameters(self, function: ctypes.c_void_p) -> int:
        count, offset, size = 0, ctypes.c_size_t(), ctypes.c_size_t()
        while self.library.cuFuncGetParamInfo(function, count, ctypes.byref(offset), ctypes.byref(size)) == 0:
            count += 1
        return count


@lru_cache(maxsize=16)
def driver_of(index: int) -> Driver:
    """The driver of a device, made once."""
    return Driver(index)
