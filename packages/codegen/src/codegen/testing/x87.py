"""Whether the thread's x87 unit is as C functions find it: its stack empty.

The eight registers of that unit are MMX's too. Machine code that writes one and does not end with `emms` leaves the
stack full; every function that still computes there (fmod of the C library does) then gives nan.
"""

from __future__ import annotations

import ctypes
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from codegen.cpp.compiler import find_compiler

EMPTY = 0xFFFF
"""The tag word of an empty stack: two bits a register, 11 is "empty"."""

SOURCE = r"""
extern "C" unsigned tag_word() {
    unsigned short environment[14];
    __asm__ volatile("fnstenv %0\n\tfldenv %0" : "+m"(environment));
    return environment[4];
}
extern "C" void clear() { __asm__ volatile("emms"); }
"""


def x87_stack_is_empty() -> bool:
    """Of this thread. If it is not, it is emptied, so that what runs next is not to blame."""
    library = _library()
    empty = library.tag_word() == EMPTY
    library.clear()
    return bool(empty)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    compiler = find_compiler()
    with TemporaryDirectory() as directory:
        source, built = Path(directory) / "x87.cpp", Path(directory) / "x87.so"
        source.write_text(SOURCE)
        command = [compiler.path, *compiler.arguments, "-O1", "-shared", "-fPIC", str(source), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(built))
