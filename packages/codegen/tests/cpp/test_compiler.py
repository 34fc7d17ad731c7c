"""Compiling and caching: errors that say what to do, damaged entries, processes side by side."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from codegen import Codegen, Options, load
from codegen.cpp import compiler
from codegen.cpp.compiler import code_key, find_compiler
from codegen.cpp.machine_code import compile_sources
from codegen.errors import CompileFailed, CorruptCode, NoCompiler
from stagewire.codec import load as read

SOURCE = 'extern "C" int answer() { return 42; }\n'


def answer(path: Path) -> int:
    import ctypes

    return ctypes.CDLL(str(path)).answer()


def test_the_compiler_says_what_it_is():
    found = find_compiler()
    assert Path(found.path).exists()
    assert found.version
    assert found.path in str(found)


def test_without_a_compiler_one_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler) as caught:
        compile_sources([SOURCE], tmp_path)
    text = str(caught.value)
    assert text.startswith("CG001: none of g++, clang++, c++ is on PATH")
    assert "apt-get install g++" in text
    assert "CXX" in text


def test_a_wrong_cxx_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler, match="CXX='no-such-compiler' is not a program"):
        find_compiler()


def test_ziglang_compiles_where_the_system_has_no_compiler(tmp_path, monkeypatch):
    pytest.importorskip("ziglang", reason="pip install stagefold[zig]")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "ziglang" in str(find_compiler())
    program = Codegen().run(read(Path(__file__).parents[1] / "data" / "softmax.json"), Options(parallel_threshold=1))
    x = torch.linspace(-3, 3, 1600).reshape(16, 100)
    (found,) = load(program.forward, tmp_path)(x)
    torch.testing.assert_close(found, torch.softmax(x, -1))


def test_cached_code_needs_no_compiler(tmp_path, monkeypatch):
    (path,) = compile_sources([SOURCE], tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_sources([SOURCE], tmp_path) == [path]
    assert answer(path) == 42


def test_what_the_compiler_said_is_in_the_error(tmp_path):
    with pytest.raises(CompileFailed, match="CG002") as caught:
        compile_sources(["int f( { return nonsense; }"], tmp_path)
    assert "error:" in str(caught.value)
    assert not list(tmp_path.glob("*.so"))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_one_bad_source_does_not_spoil_the_others(tmp_path):
    with pytest.raises(CompileFailed):
        compile_sources([SOURCE, "nonsense"], tmp_path)
    (path,) = compile_sources([SOURCE], tmp_path)
    assert answer(path) == 42


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "empty"])
def test_damaged_entries_are_made_again(tmp_path, damage):
    (path,) = compile_sources([SOURCE], tmp_path)
    good = path.read_bytes()
    match damage:
        case "truncate":
            path.write_bytes(good[:100])
        case "overwrite":
            path.write_bytes(b"\0" * len(good))
        case "empty":
            path.write_bytes(b"")
    with pytest.warns(CorruptCode, match="not what was written under its key"):
        (again,) = compile_sources([SOURCE], tmp_path)
    assert again == path
    assert answer(path) == 42


def test_two_processes_compile_the_same_source_at_once(tmp_path):
    script = textwrap.dedent("""
        import ctypes, sys
        from codegen.cpp.machine_code import compile_sources
        source = sys.argv[2]
        (path,) = compile_sources([source], sys.argv[1])
        assert ctypes.CDLL(str(path)).answer() == 42
        print(path.name)
    """)
    command = [sys.executable, "-c", script, str(tmp_path), SOURCE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    names = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert names == {f"{code_key(SOURCE)}.so"}
    assert len(list(tmp_path.glob("*.so"))) == 1


@pytest.mark.parametrize("cxx", ["no-such-compiler", "no-such-cache g++", "g++ 'unbalanced"])
def test_another_compiler_than_cxx_names_is_not_taken(monkeypatch, cxx):
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(NoCompiler, match="CXX="):
        find_compiler()


def test_cxx_is_a_command_with_arguments(tmp_path, monkeypatch):
    """As `ccache g++`: a program, and what it is given first."""
    wrapper = script(tmp_path, 'echo "$@" >> "$(dirname "$0")/log"; exec "$@"')
    real = find_compiler().path
    monkeypatch.setenv("CXX", f"{wrapper} {real} -DANSWER=7")
    (path,) = compile_sources(['extern "C" int answer() { return ANSWER; }\n'], tmp_path / "cache")
    assert answer(path) == 7
    assert "-DANSWER=7" in (tmp_path / "log").read_text()
    monkeypatch.setenv("CXX", f"{wrapper} {real} -DANSWER=8")
    (path,) = compile_sources(['extern "C" int answer() { return ANSWER; }\n'], tmp_path / "cache")
    assert answer(path) == 8


def script(directory: Path, body: str) -> Path:
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
