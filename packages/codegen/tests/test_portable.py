"""Machine code made ahead: for levels of x86-64, run by a process without a compiler, refused where it cannot run."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from codegen import Codegen
from codegen.cpp import target
from codegen.cpp.target import FEATURES, features_of
from codegen.errors import UnknownTarget, UnsupportedInstructionSet
from codegen.portable import Requirement, compile_ahead, load_compiled, obstacle, requirement
from stagewire.codec import load as read
from stagewire.codec import save

LOOP = Path(__file__).parent / "data" / "softmax.json"
RUNNABLE = [isa for isa in ("native", *FEATURES) if features_of(isa) <= target.features()]
LOADER = """
import sys, msgspec, torch
from stagewire.codec import load
from codegen.portable import load_compiled
libraries = msgspec.msgpack.decode(open(sys.argv[2], "rb").read(), type=dict[str, bytes])
(run,) = load_compiled([load(sys.argv[1]).forward], sys.argv[3], libraries)
x = torch.linspace(-3, 3, 1600).reshape(16, 100)
torch.testing.assert_close(run(x)[0], torch.softmax(x, -1))
"""


@pytest.fixture
def program():
    return Codegen().run(read(LOOP))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_a_process_without_a_compiler_runs_it(isa, program, tmp_path):
    assert obstacle(requirement(isa)) is None
    save(program, tmp_path / "program.json")
    (tmp_path / "code").write_bytes(msgspec.msgpack.encode(compile_ahead([program.forward], isa)))
    bare = {**os.environ, "PATH": "", "CXX": ""}
    command = [sys.executable, "-W", "error", "-c", LOADER, tmp_path / "program.json", tmp_path / "code", isa]
    done = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_levels_that_this_processor_lacks_are_compiled_all_the_same(program, monkeypatch):
    monkeypatch.setattr(target, "processor", lambda: f"x86_64\nflags\t\t: {FEATURES['x86-64-v2']}")
    libraries = compile_ahead([program.forward], "x86-64-v3")
    assert all(data.startswith(b"\x7fELF") for data in libraries.values())
    assert "this processor lacks x86-64-v3: abm, avx" in obstacle(requirement("x86-64-v3"))
    with pytest.raises(UnsupportedInstructionSet):
        load_compiled([program.forward], "x86-64-v3", libraries)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"c_library": ("glibc", "99.1")}, "it was made for glibc 99.1, and this is "),
        ({"c_library": ("musl", "1.2")}, "it was made for musl 1.2, and this is "),
        ({"processor": "other"}, "another kind of processor"),
    ],
)
def test_what_another_machine_made_is_refused(change, reason):
    assert reason in obstacle(replace(requirement("native"), **change))


def test_an_older_c_library_is_no_obstacle():
    assert obstacle(replace(requirement("native"), c_library=("glibc", "2.9"))) is None


def test_code_without_functions_on_vectors_runs_where_there_are_none(monkeypatch):
    needed = requirement("native")
    monkeypatch.setattr("codegen.portable.vector_math", lambda: ())
    assert (obstacle(needed) is None) == (not needed.vector_math)
    assert obstacle(replace(needed, vector_math=False)) is None


def test_requirements_are_data():
    needed = requirement("native")
    assert msgspec.json.decode(msgspec.json.encode(needed), type=Requirement) == needed


def test_other_targets_and_unknown_levels_are_refused(program):
    with pytest.raises(UnsupportedInstructionSet, match="unknown instruction set 'avx9'"):
        compile_ahead([program.forward], "avx9")
    with pytest.raises(UnknownTarget, match="of the target 'triton' are not compiled ahead"):
        compile_ahead([replace(program.forward, target="triton")], "native")
