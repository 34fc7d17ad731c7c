"""The CUDA driver's library: modules of machine code, and functions in them."""

from __future__ import annotations

import ctypes
import hashlib
from functools import lru_cache
from typing import NamedTuple

import torch

from codegen.errors import LaunchFailed
from codegen.triton.cubins import Cubin

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
