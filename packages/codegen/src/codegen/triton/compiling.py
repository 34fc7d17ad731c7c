"""Compiling kernels side by side: in processes of a server (`compile_server.py`), else in threads of this one."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import linecache
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType

from codegen.errors import UnknownTarget
from codegen.triton import compile_server
from codegen.triton.compile_server import Request, Result, result_of


def module_of(source: str) -> ModuleType:
    """The module that `source` defines. No file is written or read: what lies in a directory is never run.

    Triton reads the text of its functions again, by the name of their file; as for code of an interactive session,
    `linecache` has it under that name, for as long as the module lives.
    """
    module = ModuleType("kernels_" + hashlib.sha256(source.encode()).hexdigest()[:24])
    file = f"<{module.__name__} {id(module):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    weakref.finalize(module, linecache.cache.pop, file, None)
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    except ModuleNotFoundError as error:
        raise UnknownTarget(
            "Triton is not installed", fix="pip install triton (it is part of torch for CUDA)."
        ) from error
    return module


class CompileServer:
    """The server of this process. A process forked from it has another one."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("TRITON_INTERPRET", None)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", compile_server.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # what interrupts this process does not end it
        )
        atexit.register(self.close)

    def compile(self, request: Request) -> dict[int, Result | str]:
        """As `compile_server.answer`; nothing where the server has ended."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        with self._lock:
            try:
                pickle.dump(request, requests)
                requests.flush()
                answer: dict[int, Result | str] = pickle.load(replies)
            except (OSError, EOFError):
                self.close()
                return {}
            except BaseException:  # interrupted: its answer is still to come
                self.close()
                raise
            return answer

    def close(self) -> None:
        """End it: there is nothing more to read, and nobody reads. The next request has another one started."""
        _server_of.cache_clear()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()


def start_server() -> CompileServer | None:
    """The server of this process, started at the first call; None where it cannot be."""
    if not hasattr(os, "fork") or not sys.executable:
        return None
    try:
        return _server_of(os.getpid())
    except OSError:
        return None


@lru_cache(maxsize=1)
def _server_of(process: int) -> CompileServer:
    return CompileServer()


def compile_all(request: Request, module: Callable[[str], ModuleType]) -> list[Result | str]:
    """Results of all, or why there is none; here what the server does not answer. module: imports a source."""
    server = start_server() if request else None
    found = {} if server is None else server.compile(request)
    missing = [number for number in range(len(request)) if number not in found]
    modules = {source: module(source) for source in dict.fromkeys(request[number][0] for number in missing)}

    def one(number: int) -> Result | str:
        source, job = request[number]
        return result_of(getattr(modules[source], job["function"]), job)

    with ThreadPoolExecutor(min(max(len(missing), 1), os.cpu_count() or 1, 16)) as pool:
        found |= dict(zip(missing, pool.map(one, missing), strict=True))
    return [found[number] for number in range(len(request))]
