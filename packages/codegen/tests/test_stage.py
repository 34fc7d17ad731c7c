"""The stage: what it emits, that it is pure data, and its command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from codegen import Codegen, Options
from codegen.__main__ import main
from codegen.errors import MalformedLoop, UnknownTarget
from codegen.stage import emit
from stagewire.capture import Symbol
from stagewire.codec import load
from stagewire.expr import Expr
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Index,
    Kernel,
    Load,
    Loop,
    LoopGraph,
    Section,
    Store,
    Term,
)
from stagewire.program import Launch
from stagewire.stage import Stage
from stagewire.types import contiguous

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.stem for path in DATA.glob("*.json"))


def layers(count, name="layer"):
    """`count` kernels that are equal but for their names."""
    type_ = contiguous("float32", (32, 16))
    buffers, steps = [Buffer("x0", type_, "input")], []
    for number in range(count):
        axis = f"{name}_axis{number}"
        at = Index(0, (Term(1, AxisAtom(axis)),))
        body = (
            Load(f"{name}_a{number}", f"x{number}", at, "float32"),
            Compute(f"{name}_b{number}", "exp", (Ref(f"{name}_a{number}"),), "float32"),
            Store(f"x{number + 1}", at, Ref(f"{name}_b{number}")),
        )
        buffers.append(Buffer(f"x{number + 1}", type_, "kernel"))
        steps.append(Kernel(f"{name}{number}", (Axis(axis, 512),), (Section((), body),)))
    return LoopGraph(buffers=tuple(buffers), inputs=("x0",), outputs=(Ref(f"x{count}"),), steps=tuple(steps))


def test_it_is_a_stage():
    assert isinstance(Codegen(), Stage)
    assert (Codegen.name, Codegen.consumes, Codegen.produces) == ("codegen", "loop", "program")


def test_equal_kernels_are_emitted_once():
    unit = emit(layers(12), Options())
    assert len(unit.kernels) == 1
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 12
    assert unit.source.count("sf_exp_f32(f32 x)") == 1


def test_names_do_not_show_in_the_source():
    assert emit(layers(3, "alpha"), Options()).source == emit(layers(3, "beta"), Options()).source


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_sizes_that_are_symbols_are_arguments_of_the_kernel(target):
    n = Expr("n")
    at = Index(0, (Term(1, AxisAtom("i")),))
    body = (Load("a", "x", at, "float32"), Compute("b", "exp", (Ref("a"),), "float32"), Store("y", at, Ref("b")))
    graph = LoopGraph(
        buffers=(Buffer("x", contiguous("float32", (n,)), "input"), Buffer("y", contiguous("float32", (n,)), "kernel")),
        inputs=("x",),
        outputs=(Ref("y"),),
        steps=(Kernel("k", (Axis("i", n),), (Section((), body),)),),
    )
    binding = Binding(
        inputs=(BoundInput("x", contiguous("float32", (n,))),), outputs=(Fresh(0),), symbols=(Symbol("n", None, 4, 2),)
    )
    unit = Codegen().run(Loop(binding=binding, forward=graph), Options(target=target)).forward
    assert unit.target == target
    assert [one.sizes[0] for one in unit.instructions if isinstance(one, Launch)] == [n]


@pytest.mark.parametrize("name", SAMPLES)
def test_sources_read_no_headers(name):
    program = Codegen().run(load(DATA / f"{name}.json", expect="loop"))
    assert "#include" not in program.forward.source


def test_the_stage_does_not_import_torch():
    code = (
        "import sys; from codegen import Codegen; from stagewire.codec import load; "
        f"Codegen().run(load({str(DATA / 'softmax.json')!r})); sys.exit('torch' in sys.modules)"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=path, check=False).returncode == 0


def empty_operand(rows):
    """mm of a kernel buffer that no kernel writes."""
    types = contiguous("float32", (rows, 3)), contiguous("float32", (3, 2)), contiguous("float32", (rows, 2))
    buffers = (Buffer("a", types[0], "kernel"), Buffer("x", types[1], "input"), Buffer("y", types[2], "extern"))
    call = Extern("aten.mm.default", (Ref("a"), Ref("x")), {}, ("y",))
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=(call,))


def test_a_buffer_without_elements_needs_no_kernel():
    first, second = emit(empty_operand(0), Options()).instructions
    assert (first.buffer, second.target) == ("a", "aten.mm.default")


def test_a_buffer_read_before_it_is_written_is_refused():
    graph = layers(2)
    swapped = LoopGraph(
        buffers=(*graph.buffers, Buffer("y", contiguous("float32", (32, 32)), "extern")), inputs=graph.inputs,
        outputs=graph.outputs, steps=(Extern("aten.tanh.default", (Ref("x2"),), {}, ("y",)), *graph.steps),
    )  # fmt: skip
    with pytest.raises(MalformedLoop, match="CG005: the kernel buffer 'x2' is read before anything writes it"):
        emit(swapped, Options())


def test_an_unknown_target_is_refused():
    with pytest.raises(UnknownTarget, match="CG009"):
        Codegen().run(load(DATA / "softmax.json"), Options(target="fortran"))


def test_the_command_writes_program_and_sources(tmp_path, capsys):
    assert main([str(DATA / "softmax.json"), "-o", str(tmp_path / "p.json"), "--sources", str(tmp_path)]) == 0
    program = load(tmp_path / "p.json", expect="program")
    assert (tmp_path / "forward.cpp").read_text() == program.forward.source
    assert "forward: 1 kernels launched 1 times" in capsys.readouterr().err


def test_the_command_prints_the_document(capsys):
    assert main([str(DATA / "softmax.json")]) == 0
    assert "launch k0(" in capsys.readouterr().out


def test_the_command_refuses_other_documents(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert main([str(path)]) == 1
    assert "SW001" in capsys.readouterr().err
    assert main([str(tmp_path / "missing.json")]) == 1
    assert "No such file" in capsys.readouterr().err
