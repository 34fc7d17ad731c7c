"""Modes and options: what is accepted, what is refused and with which hint."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import stagefold
from loopir import LoopIR
from stagefold.backend import StagefoldBackend
from stagefold.errors import BadOption, NoEffect
from stagefold.options import default_cache_dir, parse_options
from stagefold.pipeline import Pipeline
from stagewire import Loop, Prim
from stagewire.errors import StageError


def test_defaults_and_stage_options() -> None:
    options = parse_options(None, {"codegen.target": "cpp", "codegen.threads": 3, "verify": True})
    assert options.verify
    assert options.for_stage("codegen") == {"target": "cpp", "threads": 3}
    assert options.for_stage("loopir") == {}


def test_directories_become_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options(None, {"cache_dir": str(tmp_path)}).cache_directory == tmp_path
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x"
    monkeypatch.setenv("STAGEFOLD_TRACE", str(tmp_path / "t"))
    assert parse_options(None, None).trace_dir == tmp_path / "t"


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        (None, {"cach": True}, "Did you mean 'cache'"),
        (None, {"primop.keep": ()}, "Did you mean 'primops.keep'"),
        (None, {"nothing.like": 1}, "Known options"),
        (None, {"recompile_limit": True}, "must be int"),
        (None, {"cache": "yes"}, "must be bool, not str"),
        ("fast", None, "unknown mode 'fast'"),
        ("default", {"cache": True}, "both given"),
    ],
)
def test_refusals(mode: str | None, options: dict[str, object] | None, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_options(mode, options)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("loopir.numerics", "eagre", "must be one of default, eager, not 'eagre'"),
        ("aotgrad.training", "no", "must be one of auto, False, not 'no'"),
        ("loopir.passes", None, "must be a tuple, not NoneType"),
        ("loopir.kernel_passes", LoopIR, "must be a tuple, not type"),
        ("primops.keep", "aten.gelu.default", "must be a tuple, not str"),
        ("primops.decompositions", print, "must be a tuple, not builtin_function_or_method"),
        ("partition.memory_budget", "0.5", "must be float, not str"),
        ("partition.partitioner", 3, "must be str or callable, not int"),
        ("codegen.target", 3, "must be str, not int"),
        ("codegen.parallel_threshold", True, "must be int, not bool"),
    ],
)
def test_options_of_stages_are_of_their_types(key: str, value: object, message: str) -> None:
    with pytest.raises(BadOption, match=f"option '{key}' {message}"):
        Pipeline.build(parse_options(None, {key: value}))


def test_what_follows_of_an_option_is_told_to_stages_that_know_it() -> None:
    """One that does not is taken all the same, with a warning."""
    options = parse_options(None, {"numerics": "eager", "loopir.numerics": "default"})
    told = {slot: chosen for slot, _, chosen in Pipeline.build(options).stages}
    assert told["primops"].numerics == "eager"
    assert told["aotgrad"].written_attention == "keep"
    assert told["loopir"].numerics == "default"
    with pytest.warns(NoEffect, match="the stage 'LoopIR.run' in slot 'loopir' has no option 'numerics'"):
        Pipeline.build(parse_options(None, {"numerics": "eager"}), {"loopir": LoopIR().run})


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_that_tune_have_templates_timed(mode: str) -> None:
    options = parse_options(mode, None)
    assert options.cuda_graphs == (mode == "max-autotune")
    assert Pipeline.build(options).stages[-1][2].autotune == "time"
    assert Pipeline.build(parse_options(None, None)).stages[-1][2].autotune == "off"


def test_what_a_user_says_of_a_stage_comes_before_the_mode() -> None:
    options = parse_options(None, {"autotune": True, "codegen.autotune": "force"})
    assert Pipeline.build(options).stages[-1][2].autotune == "force"


def test_a_stage_that_knows_no_choices_is_taken_with_a_mode_that_tunes() -> None:
    @dataclasses.dataclass(frozen=True)
    class Plain:
        name, version, consumes, produces = "plain", "1", "loop", "program"
        Options = None

        def run(self, document: object, options: object = None) -> object:
            return document

    assert Pipeline.build(parse_options("max-autotune", None), {"codegen": Plain()}).stages[-1][2] is None


def test_reduce_overhead_records_cuda_graphs() -> None:
    assert parse_options("reduce-overhead", None) == parse_options(None, {"cuda_graphs": True})


def test_a_stage_that_takes_no_sizes_open_says_so() -> None:
    def fixed(document: Prim) -> Loop:
        return LoopIR().run(document)

    fixed.takes_symbols = False  # type: ignore[attr-defined]
    with pytest.warns(NoEffect, match="dynamic=True: stage .*fixed' in slot 'loopir' takes no symbols"):
        double = stagefold.compile(lambda x: x * 2, dynamic=True, stages={"loopir": fixed})
    assert [double(torch.ones(n)).numel() for n in (2, 3)] == [2, 3]


def test_a_stage_of_the_users_keeps_sizes_open_unless_it_says_that_it_takes_none() -> None:
    def same(document: Prim) -> Loop:
        return LoopIR().run(document)

    assert StagefoldBackend(parse_options(None, None), {}).takes_symbols
    assert StagefoldBackend(parse_options(None, None), {"loopir": same}).takes_symbols
    same.takes_symbols = False  # type: ignore[attr-defined]
    assert not StagefoldBackend(parse_options(None, None), {"loopir": same}).takes_symbols
    assert StagefoldBackend(parse_options(None, None), {"loopir": LoopIR()}).takes_symbols


def test_the_instruction_set_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that the processor lacks is refused, with a code, and never run; another has machine code of its own."""
    x = torch.randn(3, 4)
    for isa in ("native", "x86-64-v2"):
        found = stagefold.compile(torch.sin, options={"codegen.isa": isa, "cache_dir": tmp_path})(x)
        torch.testing.assert_close(found, x.sin())
    monkeypatch.setattr("codegen.cpp.target.processor", lambda: "flags : sse4_2")
    stagefold.reset()
    with pytest.raises(StageError, match="CG015: this processor lacks x86-64-v3"):
        stagefold.compile(torch.sin, options={"codegen.isa": "x86-64-v3", "cache_dir": tmp_path})(x)
