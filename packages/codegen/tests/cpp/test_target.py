"""Targets: which flags, which machine code, and what a machine refuses instead of dying of an illegal instruction."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from codegen import Codegen, Options, load
from codegen.cpp import compiler, target
from codegen.cpp.compiler import code_key, find_compiler
from codegen.cpp.machine_code import compile_sources
from codegen.cpp.target import FEATURES, PROCESSOR_FLAGS, Target, features_of, host_isa
from codegen.errors import NoSanitizer, UnsupportedInstructionSet
from stagewire.codec import decode, encode
from stagewire.codec import load as read

SOURCE = 'extern "C" int answer() { return 42; }\n'
EVERYTHING = " ".join(FEATURES.values())
LEVELS = tuple(FEATURES)


@pytest.fixture
def processor(monkeypatch):
    """Call it with features: this process then believes in a processor that has them."""
    monkeypatch.delenv("CODEGEN_ISA", raising=False)
    return lambda flags: monkeypatch.setattr(target, "processor", lambda: f"x86_64\nflags\t\t: {flags}")


def without(feature: str) -> str:
    return " ".join(name for name in EVERYTHING.split() if name != feature)


def softmax(**options):
    return Codegen().run(read(Path(__file__).parents[1] / "data" / "softmax.json"), Options(**options)).forward


def test_a_program_says_what_it_is_compiled_for():
    loop = read(Path(__file__).parents[1] / "data" / "softmax.json")
    for isa in LEVELS:
        program = Codegen().run(loop, Options(isa=isa))
        assert program.forward.isa == isa
        assert decode(encode(program), expect="program") == program
    assert Codegen().run(loop).forward.isa == "native"


@pytest.mark.parametrize("isa", [isa for isa in LEVELS if features_of(isa) <= target.features()])
def test_programs_of_each_level_of_this_machine_run(isa, tmp_path, monkeypatch):
    monkeypatch.delenv("CODEGEN_ISA", raising=False)
    x = torch.linspace(-3, 3, 1600).reshape(16, 100)
    (found,) = load(softmax(isa=isa), tmp_path)(x)
    torch.testing.assert_close(found, torch.softmax(x, -1))


@pytest.mark.parametrize("executor", ["fast", "reference"])
def test_a_program_for_what_the_processor_lacks_is_refused(executor, processor, tmp_path):
    for level, missing in (("x86-64-v4", "avx512bw"), ("x86-64-v3", "fma"), ("x86-64-v2", "popcnt")):
        processor(without(missing))
        with pytest.raises(UnsupportedInstructionSet, match=f"CG015: this processor lacks {level}: {missing}"):
            load(softmax(isa=level), tmp_path, executor=executor)
    assert not list(tmp_path.iterdir())


def test_names_that_nobody_knows_are_refused():
    with pytest.raises(UnsupportedInstructionSet, match="unknown instruction set 'avx9'; known: native, x86-64-v2"):
        softmax(isa="avx9")
    with pytest.raises(NoSanitizer, match="unknown sanitizer 'thread'; known: address"):
        softmax(sanitize=("thread",))


def test_the_environment_limits_what_native_is(processor, monkeypatch):
    processor(EVERYTHING)
    assert Target().flags == ("-march=native",)
    assert host_isa() == "native (x86-64-v4)"
    monkeypatch.setenv("CODEGEN_ISA", "x86-64-v3")
    assert Target().flags == ("-march=x86-64-v3",)
    assert Target("x86-64-v2").flags == ("-march=x86-64-v2",)
    assert host_isa() == "x86-64-v3 (CODEGEN_ISA)"
    Target().require()
    Target("x86-64-v2").require()
    with pytest.raises(UnsupportedInstructionSet, match="CODEGEN_ISA allows no more than x86-64-v3"):
        Target("x86-64-v4").require()


@pytest.mark.parametrize("value", ["x86-64-v4", "avx2"])
def test_an_environment_that_asks_for_too_much_is_refused(value, processor, monkeypatch):
    processor(without("avx512vl"))
    monkeypatch.setenv("CODEGEN_ISA", value)
    with pytest.raises(UnsupportedInstructionSet, match=f"CODEGEN_ISA='?{value}"):
        Target().require()


def test_code_of_a_level_is_shared_by_processors_and_native_code_is_not(processor):
    keys = set()
    for flags in (EVERYTHING, f"{EVERYTHING} avx512_bf16", f"{EVERYTHING} gfni"):
        processor(flags)
        keys.add((code_key(SOURCE, Target("x86-64-v3")), code_key(SOURCE)))
    assert len({level for level, _ in keys}) == 1
    assert len({native for _, native in keys}) == 3
    assert len({code_key(SOURCE, Target(level)) for level in LEVELS}) == 3
    assert code_key(SOURCE, Target(sanitize=("undefined",))) != code_key(SOURCE)


def test_flags_of_a_processor_are_given_to_compilers_that_know_them(processor, monkeypatch, tmp_path):
    """A feature of the processor brings its flag, unless the compiler refuses it; other processors do without."""
    found = find_compiler()
    half, wide = PROCESSOR_FLAGS.values()
    known = [
        flag
        for flag in (half, wide)
        if not subprocess.run(
            [found.path, flag, "-fsyntax-only", "-x", "c++", os.devnull], capture_output=True
        ).returncode
    ]
    for flags, wanted in (("avx2 avx512_fp16", {half}), ("avx2", ()), ("avx512_bf16 avx512_fp16", {half, wide})):
        processor(flags)
        given = found.flags()
        assert [flag for flag in given if flag in (half, wide)] == [flag for flag in known if flag in wanted]
        assert compile_sources([SOURCE], tmp_path / str(len(flags)))
    monkeypatch.setattr(target, "PROCESSOR_FLAGS", {"avx512_fp16": "--no-such-flag", "avx512_bf16": wide})
    given = compiler.find_compiler().flags()
    assert "--no-such-flag" not in given
    assert (wide in given) == (wide in known)


def test_sanitized_code_without_its_runtime_is_refused(tmp_path):
    """The runtime would end the process."""
    with pytest.raises(NoSanitizer, match="CG016: the runtime of the address sanitizer"):
        load(softmax(sanitize=("address",)), tmp_path)


def test_code_with_the_undefined_sanitizer_runs(tmp_path):
    x = torch.linspace(-3, 3, 1600).reshape(16, 100)
    (found,) = load(softmax(sanitize=("undefined",)), tmp_path)(x)
    torch.testing.assert_close(found, torch.softmax(x, -1))
