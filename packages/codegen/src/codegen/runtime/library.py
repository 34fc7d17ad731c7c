"""Loaded machine code: functions of a shared library, called with addresses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from _ctypes import dlclose
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from codegen import errors
from codegen.cpp.statements import NO_SUCH_VALUE, OUT_OF_RANGE, ZERO_DIVISOR
from stagewire.errors import PartlyDone

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

    def launch(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The operation of the native executor that runs a function, and its first operands."""
        return "LAUNCH", (self.address(name),)


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
