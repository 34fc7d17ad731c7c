"""A process that compiles Triton kernels, as many at once as it has processors. Run as a program, by its path.

request ::= [(source of a module, Job)]
source  ::= what its functions share, function*        a function: "@triton.jit\\ndef NAME(...", to the next
reply   ::= {number in the request: Result, or why there is none}, without what a process that died was to do

Pickled, from standard input and to standard output. Nothing but Triton and the standard library is imported, so that
it is there at once. It forks the processes that compile: threads would wait for each other, since Triton holds Python's
lock for much of its work. What kernels share is imported before they are forked, a kernel where it is compiled.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TypedDict


class Job(TypedDict):
    """A kernel to be compiled. signature: the types of its parameters, by name, constants included.

    divisors: a number of which a parameter is always a multiple, by its place. registers: of a thread at most, 0: any
    number. capability: ten times the device's.
    """

    function: str
    signature: dict[str, str]
    constants: dict[str, Any]
    divisors: dict[int, int]
    warps: int
    stages: int
    registers: int
    capability: int


Request = Sequence[tuple[str, Job]]
Result = tuple[bytes, str, int, int, bool]
"""Machine code, its symbol, bytes of shared memory, warps; whether a launch takes more than these."""


LARGEST = 32
"""Processes at once."""

FIRST = """
@triton.jit
def kernel(p0, p1, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(p1 + index, tl.load(p0 + index) + 1)
"""
FIRST_JOB = Job(
    function="kernel",
    signature={"p0": "*fp32", "p1": "*fp32", "BLOCK": "constexpr"},
    constants={"BLOCK": 128},
    divisors={},
    warps=4,
    stages=1,
    registers=0,
    capability=90,
)
"""What is compiled while nothing is asked for: Triton loads much of itself when it is first used."""


def compile_kernel(function: Any, job: Job) -> Result:
    """Compile a function of Triton for a device that need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    places = {name: place for place, name in enumerate(job["signature"])}
    source = ASTSource(
        fn=function,
        signature=job["signature"],
        constexprs={(places[name],): value for name, value in job["constants"].items()},
        attrs={(place,): [["tt.divisibility", divisor]] for place, divisor in job["divisors"].items()},
    )
    options = {"num_warps": job["warps"], "num_stages": job["stages"], "enable_fp_fusion": True}
    options["sanitize_overflow"] = False  # else Triton writes, and removes, a check of each sum and product of integers
    options |= {"maxnreg": job["registers"]} if job["registers"] else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton warns of its own deprecated syntax
        compiled = triton.compile(source, target=GPUTarget("cuda", job["capability"], 32), options=options)
    made = compiled.metadata
    takes_more = bool(made.global_scratch_size) or made.num_ctas != 1
    return compiled.asm["cubin"], made.name, made.shared, made.num_warps, takes_more


def result_of(function: Any, job: Job) -> Result | str:
    """As `compile_kernel`, or what Triton or ptxas say against it."""
    try:
        return compile_kernel(function, job)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


def import_file(path: Path, known: Mapping[str, Any]) -> ModuleType:
    """The module at `path`, in which these names are known."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(known)
    spec.loader.exec_module(module)
    return module


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until there is nothing more to read. Triton's own cache is a directory that ends with this process, for
    machine code alone; that has no numbers of lines (which are half of it), unless the environment asks for them."""
    with tempfile.TemporaryDirectory(prefix="codegen-triton-") as directory:
        os.environ |= {"TRITON_CACHE_DIR": directory, "TRITON_STORE_BINARY_ONLY": "1"}
        os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
        _without_key()
        prelude = import_file(Path(__file__).with_name("prelude.py"), {}).PRELUDE
        answer([(f"{prelude}\n{FIRST}", FIRST_JOB)], Path(directory))
        sys.dont_write_bytecode = True  # of what is imported once
        while True:
            try:
                request = pickle.load(requests)
            except EOFError:
                return
            pickle.dump(answer(request, Path(directory)), replies)
            replies.flush()


def _without_key() -> None:
    """Have Triton not read all of its files (half a second) for a key that tells its versions apart."""
    import triton.compiler.compiler
    import triton.runtime.cache

    for module in (triton.runtime.cache, triton.compiler.compiler):
        if hasattr(module, "triton_key"):
            module.triton_key = str


def answer(request: Request, directory: Path) -> dict[int, Result | str]:
    """Compile what is asked for; what is imported for it is written to `directory`."""
    asked: dict[str, set[str]] = {}
    for source, job in request:
        asked.setdefault(source, set()).add(job["function"])
    parts = {source: divided(source, names) for source, names in asked.items()}
    shared = {source: _module(common, directory) for source, (common, _) in parts.items()}
    texts = [parts[source][1][job["function"]] for source, job in request]

    def work(number: int) -> Result | str:
        source, job = request[number]
        known = {name: value for name, value in vars(shared[source]).items() if not name.startswith("__")}
        module = import_file(_written(texts[number], directory), known)
        return result_of(getattr(module, job["function"]), job)

    if len(request) == 1:
        return {0: work(0)}
    longest_first = sorted(range(len(request)), key=lambda number: -len(texts[number]))
    return in_processes(work, longest_first, min(len(request), len(os.sched_getaffinity(0)), LARGEST))


_FUNCTION = re.compile(r"^(?=@triton\.jit\ndef (\w+)\()", re.MULTILINE)


def divided(source: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """A source without the functions of these names, and these."""
    before, *rest = _FUNCTION.split(source)
    functions = list(zip(rest[::2], rest[1::2], strict=True))
    shared = "".join([before, *(text for name, text in functions if name not in names)])
    return shared, {name: text for name, text in functions if name in names}


@lru_cache(maxsize=8)
def _module(text: str, directory: Path) -> ModuleType:
    return import_file(_written(text, directory), {})


def _written(text: str, directory: Path) -> Path:
    """A file of this process alone: others may import the same function at this moment."""
    path = directory / f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:24]}_{os.getpid()}.py"
    path.write_text(text)
    return path


def in_processes(work: Callable[[int], Any], numbers: Sequence[int], count: int) -> dict[int, Any]:
    """`work` of each number, begun in this order, by so many forked processes; nothing of one that dies."""
    found: dict[int, Any] = {}
    with tempfile.TemporaryFile(buffering=0) as waiting:  # where it is read next is common to all
        waiting.write(b"".join(number.to_bytes(4, "little") for number in numbers))
        waiting.seek(0)
        for process, reader in [_forked(work, waiting) for _ in range(count)]:
            with os.fdopen(reader, "rb") as file:
                said = file.read()
            os.waitpid(process, 0)
            found |= pickle.loads(said) if said else {}
    return found


def _forked(work: Callable[[int], Any], waiting: BinaryIO) -> tuple[int, int]:
    """A process that works on what is waiting, and where it says what it found."""
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    try:
        found: dict[int, Any] = {}
        while number := waiting.read(4):
            found[int.from_bytes(number, "little")] = work(int.from_bytes(number, "little"))
        with os.fdopen(writer, "wb") as file:
            pickle.dump(found, file)
    finally:
        os._exit(0)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Triton prints
    serve(sys.stdin.buffer, replies)
