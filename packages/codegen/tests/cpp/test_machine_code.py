"""Machine code on disk: bound to its key, made again where it does not load, elsewhere where it cannot be kept; and
compilers that fail in other ways than by refusing the source."""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from codegen.content_store import read_stored
from codegen.cpp import compiler, machine_code
from codegen.cpp import compiler as compilation
from codegen.cpp.compiler import Compilation, Compiler, check_loads, code_key
from codegen.cpp.machine_code import compile_sources, load_code
from codegen.errors import CompileFailed, CompilerFault, CorruptCode
from codegen.runtime.library import Library
from stagewire.private_files import CacheWarning, temporary_directory


def source(number: int) -> str:
    return f'extern "C" int answer() {{ return {number}; }}\n'


def answer(path: Path) -> int:
    return ctypes.CDLL(str(path)).answer()


def unique(number: int) -> str:
    """A source that no other test has compiled: what cannot be kept in a cache is known to the whole process."""
    return source(number) + f"// {time.time_ns()}\n"


def script(directory: Path, body: str) -> Compiler:
    """A compiler that is a shell script; $out is what it should make."""
    path = directory / "compiler"
    probes = 'case "$*" in *-fsyntax-only*|*--version) exit 0;; esac'
    path.write_text(f"#!/bin/sh\n{probes}\nfor out; do :; done\n{body}\n")
    path.chmod(0o755)
    return Compiler(str(path), "a script")


def compile_with(directory: Path, body: str, limit: float = 60) -> bytes:
    scratch = directory / "scratch"
    scratch.mkdir()
    one = Compilation(script(directory, body), source(1), scratch)
    try:
        return one.machine_code(limit)
    finally:
        one.end()


# ---- entries


def test_machine_code_under_another_key_is_not_run(tmp_path):
    """A mixed-up copy of a cache: an entry under the name of another."""
    compile_sources([source(1), source(2)], tmp_path)
    shutil.copy(tmp_path / f"{code_key(source(2))}.so", tmp_path / f"{code_key(source(1))}.so")
    with pytest.warns(CorruptCode, match="made again"):
        (path,) = compile_sources([source(1)], tmp_path)
    assert answer(path) == 1


def test_code_of_a_machine_with_other_libraries_is_made_again(tmp_path):
    """Its digest is right, and the dynamic linker refuses it."""
    other = 'extern "C" int of_another_library(); extern "C" int answer() { return of_another_library(); }\n'
    path, key = tmp_path / "unit.so", code_key(source(3))
    (tmp_path / "unit.cpp").write_text(other)
    command = [compiler.find_compiler().path, "-shared", "-fPIC", str(tmp_path / "unit.cpp"), "-o", str(path)]
    subprocess.run(command, check=True)
    machine_code.write_code(tmp_path, key, path.read_bytes())
    with pytest.warns(CorruptCode, match="does not load"):
        library = load_code({source(3): Library}, tmp_path)[source(3)]
    assert library._library.answer() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_code({source(3): Library}, tmp_path)


def test_code_that_loads_in_no_directory_is_a_coded_error(tmp_path):
    def load(path):
        raise OSError("wrong libraries")

    with pytest.warns(CorruptCode), pytest.raises(CompilerFault, match=r"CG018.*wrong libraries"):
        load_code({source(3): load}, tmp_path)


def test_a_directory_in_which_code_does_not_load_is_done_without(tmp_path):
    """As one that is mounted without the right to execute."""
    seen = []

    def load(path):
        seen.append(path)
        if tmp_path in path.parents:
            raise OSError("failed to map segment from shared object")
        return Library(path)

    with pytest.warns(CorruptCode):
        found = load_code({source(4): load}, tmp_path)[source(4)]
    assert found._library.answer() == 4
    assert seen[-1].parent == temporary_directory()


@pytest.mark.parametrize("suffix", [".so", ".lock"])
def test_a_directory_in_the_place_of_a_file_costs_a_warning(tmp_path, suffix):
    text = unique(5)
    (tmp_path / f"{code_key(text)}{suffix}").mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (path,) = compile_sources([text], tmp_path)
    assert answer(path) == 5
    assert suffix == ".lock" or any(issubclass(one.category, CacheWarning) for one in caught)


@pytest.mark.skipif(os.geteuid() == 0, reason="os.geteuid() == 0: root writes everywhere")
def test_a_cache_that_cannot_be_written_is_read(tmp_path):
    compile_sources([source(6)], tmp_path)
    tmp_path.chmod(0o500)
    (path,) = compile_sources([source(6)], tmp_path)
    assert path.parent == tmp_path
    with pytest.warns(CacheWarning, match="until this process ends"):
        (path,) = compile_sources([unique(7)], tmp_path)
    assert answer(path) == 7


def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch):
    """The cache cannot be written; compilers work elsewhere."""
    written = machine_code.write_entry

    def full(path, key, data):
        if tmp_path in path.parents:
            raise OSError(28, "No space left on device")
        written(path, key, data)

    monkeypatch.setattr(machine_code, "write_entry", full)
    text = unique(8)
    with pytest.warns(CacheWarning, match=r"No space left on device.*until this process ends"):
        (path,) = compile_sources([text], tmp_path)
    assert answer(path) == 8
    assert not list(tmp_path.iterdir())
    assert compile_sources([text], tmp_path) == [path]  # made once


def test_a_cache_that_others_can_write_is_not_used(tmp_path):
    compile_sources([source(9)], tmp_path)
    tmp_path.chmod(0o777)
    with pytest.warns(CacheWarning, match="others can write it"):
        (path,) = compile_sources([source(9)], tmp_path)
    assert path.parent == temporary_directory()
    assert answer(path) == 9


def test_nothing_but_entries_is_left(tmp_path):
    compile_sources([source(1), source(2)], tmp_path)
    with pytest.raises(CompileFailed):
        compile_sources(["nonsense"], tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".so", ".so"]


# ---- compilers


def is_running(process: int) -> bool:
    """Whether a process has not ended; whoever inherited it may still have to take note."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 0", "ended with 0, but its machine code does not load"),
        ('echo garbage > "$out"', "ended with 0, but its machine code does not load"),
        (': > "$out"', "ended with 0, but its machine code does not load"),
        ("kill -9 $$", "was ended by SIGKILL"),
        ("echo 'No space left on device' >&2; exit 1", "No space left on device"),
        ("echo 'fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed signal"),
    ],
)
def test_faults_of_the_machine(tmp_path, body, says):
    with pytest.raises(CompilerFault, match=says) as caught:
        compile_with(tmp_path, body)
    assert "fix:" in str(caught.value)


def test_a_library_that_is_cut_off_is_not_mapped(tmp_path):
    (whole,) = compile_sources([source(1)], tmp_path)
    data = read_stored(whole)
    for length in (16, 70, 5000, len(data) - 1):
        cut = tmp_path / "cut.so"
        cut.write_bytes(data[:length])
        with pytest.raises(OSError):
            check_loads(cut, cut.read_bytes())


def test_what_was_made_without_a_cache_is_in_the_cache_that_comes_later(tmp_path):
    text = unique(12)
    (before,) = compile_sources([text], None)
    (path,) = compile_sources([text], tmp_path)
    assert before.parent != path.parent == tmp_path
    assert answer(path) == 12


def test_a_fault_is_not_recorded(tmp_path, monkeypatch):
    """A good compiler makes the entry afterwards."""
    text = unique(10)
    monkeypatch.setenv("CXX", script(tmp_path, 'echo garbage > "$out"').path)
    with pytest.raises(CompilerFault):
        compile_sources([text], tmp_path / "cache")
    monkeypatch.delenv("CXX")
    (path,) = compile_sources([text], tmp_path / "cache")
    assert answer(path) == 10


def test_a_compiler_that_hangs_is_ended_with_what_it_started(tmp_path):
    start = time.monotonic()
    with pytest.raises(CompilerFault, match="has not ended in time"):
        compile_with(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid; wait", limit=0.5)
    assert time.monotonic() - start < 30
    started = int((tmp_path / "pid").read_text())
    while is_running(started) and time.monotonic() - start < 30:  # a killed process ends when it is next scheduled
        time.sleep(0.01)
    assert not is_running(started)


def test_what_a_compiler_leaves_running_is_not_waited_for(tmp_path):
    """As the server of a compile cache, which has inherited its output."""
    start = time.monotonic()
    with pytest.raises(CompileFailed):
        compile_with(tmp_path, "sleep 20 & exit 3")
    assert time.monotonic() - start < 15


def test_any_bytes_and_any_length_of_messages(tmp_path):
    with pytest.raises(CompileFailed, match="ended with 1") as caught:
        compile_with(tmp_path, r"printf 'erreur: \351t\351\n' >&2; head -c 50000000 /dev/zero | tr '\0' x >&2; exit 1")
    assert "erreur" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("content", [b"\x7fELFnonsense", b"#!/no/such/interpreter\n"])
def test_a_program_that_cannot_be_started(tmp_path, content):
    program = tmp_path / "compiler"
    program.write_bytes(content)
    program.chmod(0o755)
    with pytest.raises(CompilerFault, match="cannot be started"):
        Compilation(Compiler(str(program), ""), source(1), tmp_path)
    with pytest.raises(CompilerFault, match="cannot be started"):
        compiler._version(str(program))


def test_temporary_files_of_the_compiler_go_with_its_directory(tmp_path):
    (tmp_path / "scratch").mkdir()
    with pytest.raises(CompileFailed):
        Compilation(
            script(tmp_path, 'touch "$TMPDIR/of-the-compiler"; exit 1'), "", tmp_path / "scratch"
        ).machine_code()
    assert (tmp_path / "scratch" / "of-the-compiler").exists()


def test_no_thread_is_started(tmp_path, monkeypatch):
    """Under a limit of memory, starting one may wait for ever."""
    import threading

    monkeypatch.setattr(threading.Thread, "start", None)
    assert len(compile_sources([unique(1), unique(2)], tmp_path)) == 2


def test_another_process_that_makes_the_same_is_waited_for(tmp_path, monkeypatch):
    text = unique(11)
    ready = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from codegen.cpp import machine_code
        from codegen.cpp.compiler import code_key
        home, key = Path(sys.argv[1]), code_key(sys.argv[2])
        with machine_code._lock(home, key):
            print("held", flush=True)
            time.sleep(1)
            machine_code.Compilation = None
            machine_code.write_code(home, key, Path(sys.argv[3]).read_bytes())
    """)
    (other,) = compile_sources([source(12)], tmp_path / "other")
    command = [sys.executable, "-c", ready, str(tmp_path), text, str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        (path,) = compile_sources([text], tmp_path)
    assert answer(path) == 12  # what the other has made


# ---- unloading


def mapped(text: str) -> int:
    return sum(text in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_machine_code_goes_with_its_library(tmp_path):
    library = load_code({source(13): Library}, tmp_path)[source(13)]
    again = load_code({source(13): Library}, tmp_path)[source(13)]
    assert library.address("answer") == again.address("answer")
    name = code_key(source(13))
    assert mapped(name)
    del library
    gc.collect()
    assert mapped(name)
    assert again._library.answer() == 13
    del again
    gc.collect()
    assert not mapped(name)


def test_the_limit_of_a_compilation_is_finite():
    assert 60 <= compilation.LIMIT < 3600
