"""One compiler at work: a process that several of run side by side, without threads, and what can go wrong with it.

The compiler works in a directory of its own, where its temporary files are too, and is ended with all that it started
when it takes too long or when this process is interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from _ctypes import dlclose
from pathlib import Path

from codegen.cpp.compiler import Compiler
from codegen.cpp.target import NATIVE, Target
from codegen.errors import CompileFailed, CompilerFault

LIMIT = 600.0
"""Seconds that a compiler may take; the longest of the tests and benchmarks take 20 on one core."""

_LINES, _CHARACTERS = 20, 300
_NO_ROOM = (
    "No space left", "File too large", "size limit exceeded", "Cannot allocate memory", "virtual memory exhausted",
    "out of memory", "Disk quota exceeded", "Killed",
)  # fmt: skip
"""What compilers say where the machine is at fault, and not the source."""
_ROOM = "Free memory, or disk space where the compiler works (TMPDIR names the directory), and try again."


class Compilation:
    """A source that is being compiled in `scratch`, a directory for it alone."""

    def __init__(self, compiler: Compiler, source: str, scratch: Path, target: Target = NATIVE) -> None:
        self.compiler, self.scratch = compiler, scratch
        self.library = scratch / "unit.so"
        text = scratch / "unit.cpp"
        try:
            text.write_text(source)
            command = [compiler.path, *compiler.arguments, *compiler.flags(target), str(text), "-o", str(self.library)]
            with open(scratch / "said", "wb") as said:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # its end tells that all have ended whom the compiler had started
                    stderr=said,
                    env=os.environ | {"TMPDIR": str(scratch)},
                    start_new_session=True,
                )
        except OSError as error:
            raise CompilerFault(f"{compiler} cannot be started: {error}") from error

    def machine_code(self, limit: float = LIMIT) -> bytes:
        """The shared library, once it is there, and loads; the compiler's first messages are in the error else."""
        try:
            self._wait(time.monotonic() + limit)
        finally:
            self.end()
        code = self._process.returncode
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            raise CompilerFault(f"{self.compiler} was ended by {name}", fix=_ROOM)
        if code:
            said = self._messages()
            if any(sign in said for sign in _NO_ROOM):
                raise CompilerFault(f"{self.compiler} ended with {code}:\n{said}", fix=_ROOM)
            raise CompileFailed(f"{self.compiler} ended with {code}:\n{said}")
        try:
            data = self.library.read_bytes()
            check_loads(self.library, data)
        except OSError as error:
            raise CompilerFault(f"{self.compiler} ended with 0, but its machine code does not load: {error}") from error
        return data

    def end(self) -> None:
        """End the process, and those that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _wait(self, deadline: float) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        waiting = select.poll()
        waiting.register(stdout, select.POLLIN | select.POLLHUP)
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                fix = "End what keeps the machine busy, or name another compiler in CXX."
                raise CompilerFault(f"{self.compiler} has not ended in time, and was ended", fix=fix)
            # A second at most: what the compiler started (a compile server) may live on with its output open.
            if waiting.poll(min(left, 1.0) * 1000) and not os.read(stdout.fileno(), 1 << 16):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(left)

    def _messages(self) -> str:
        with open(self.scratch / "said", "rb") as said:
            lines = said.read(1 << 16).decode(errors="replace").splitlines()[:_LINES]
        return "\n".join(line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}..." for line in lines)


def check_loads(path: Path, data: bytes) -> None:
    """Raise `OSError` where the dynamic linker does not take a shared library, of which `data` is the content."""
    if data[:4] == b"\x7fELF":  # a part of one would be mapped, and reading the rest would end the process
        place, size, count = (int.from_bytes(data[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
        if len(data) < 64 or place + size * count > len(data):
            raise OSError(f"{path.name} is cut off after {len(data)} bytes")
    dlclose(ctypes.CDLL(str(path))._handle)


def scratch_directory(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """A directory for one compilation. Raises `CompilerFault`."""
    try:
        return tempfile.TemporaryDirectory(dir=parent, prefix="build-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CompilerFault(f"there is no room to compile in {parent}: {error}", fix=_ROOM) from error
