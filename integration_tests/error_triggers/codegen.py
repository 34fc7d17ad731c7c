"""From loops to machine code.

CG006 and CG007 are raised while a unit runs. `stagefold.compile` runs the function plain then: its error is eager's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from codegen.cpp.compiler import Compilation, Compiler, find_compiler
from codegen.cpp.machine_code import compile_sources
from codegen.load import load
from codegen.runtime.library import LAUNCH_FAILED, Library, raise_status
from codegen.runtime.philox import philox_state
from codegen.stage import Codegen, Options
from codegen.targets import find
from stagewire.loop import Loop
from stagewire.parser import parse_document
from stagewire.program import Program


def loop(statements: str, dtype: str = "f32", device: str = "") -> Loop:
    """One kernel from an input x to an output y of four elements."""
    return parse_document(f"""
        loop 2 {{
          binding {{
            inputs {{ BoundInput(name="x", type={dtype}[4]{device}) }}
            outputs {{ Fresh(result=0) }}
          }}
          forward {{
            buffers {{
              %x: {dtype}[4]{device} = input
              %y: {dtype}[4]{device} = kernel
            }}
            inputs = ("x",)
            outputs = (%y,)
            steps {{
              kernel only for i in 4 {{
                section {{
                  {statements}
                }}
              }}
            }}
          }}
        }}""")


COPY = """
                  %a: f32 = load %x[i]
                  store %y[i] = %a
"""


def calling(target: str, result: str, operands: str = "%x") -> Program:
    """A program whose one step is a call of ATen on its inputs x and w of four elements."""
    return parse_document(f"""
        program 1 {{
          binding {{
            inputs {{ BoundInput(name="x", type=f32[4]) BoundInput(name="w", type=f32[4]) }}
            outputs {{ Fresh(result=0) }}
          }}
          forward {{
            target = "cpp"
            source {{ }}
            kernels {{ }}
            inputs = ("x", "w")
            input_types {{ f32[4] f32[4] }}
            outputs = (%y,)
            instructions {{
              call %y = {target}({operands}) with result_types=({result},)
            }}
          }}
        }}""")


def CG001(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("CXX", raising=False)
    patch.setenv("PATH", "/nowhere")
    patch.setattr("codegen.cpp.compiler.find_spec", lambda name: None)
    find_compiler()


def CG002(folder: Path) -> None:
    Compilation(Compiler("false", "a program that refuses everything"), "int main() {}", folder).machine_code()


def CG018(folder: Path) -> None:
    Compilation(Compiler("true", "a program that makes nothing"), "int main() {}", folder).machine_code()


def CG019(folder: Path) -> None:
    (path,) = compile_sources(["void answer() {}"], folder)
    Library(path).address("kernel0")


def CG003() -> None:
    Codegen().run(loop(COPY.replace("f32", "c64"), dtype="c64"))


def CG004() -> None:
    Codegen().run(
        loop("""
                  %a: f32 = load %x[i]
                  %b: f32 = frobnicate(%a)
                  store %y[i] = %b
    """)
    )


def CG005() -> None:
    Codegen().run(
        loop("""
                  %a: f32 = load %z[i]
                  store %y[i] = %a
    """)
    )


def CG006(folder: Path) -> None:
    document = loop(
        """
                  %a: i64 = load %x[i]
                  %b: i64 = wrap_index(%a, 3)
                  store %y[i] = %b
    """,
        "i64",
    )
    load(Codegen().run(document).forward, folder)(torch.tensor([0, 1, 2, 3]))


def CG007(folder: Path) -> None:
    document = loop(
        """
                  %a: i64 = load %x[i]
                  %b: i64 = floor_div(12, %a)
                  store %y[i] = %b
    """,
        "i64",
    )
    load(Codegen().run(document).forward, folder)(torch.tensor([1, 2, 3, 0]))


def CG008(folder: Path) -> None:
    run = load(Codegen().run(loop(COPY)).forward, folder)
    run(torch.ones(5))


def CG009() -> None:
    Codegen().run(loop(COPY), Options(target="fortran"))


def CG010(folder: Path) -> None:
    load(calling("mylibrary.missing.default", "f32[4]").forward, folder)(torch.ones(4), torch.ones(4))


def CG011(folder: Path) -> None:
    load(calling("aten.exp.default", "f64[4]").forward, folder)(torch.ones(4), torch.ones(4))


def CG012() -> None:
    raise_status(LAUNCH_FAILED | 700)  # what the native executor reports after CUDA_ERROR_ILLEGAL_ADDRESS


def CG017(folder: Path) -> None:
    product = calling("aten.mm.default", "f32[4]", "%x, %w")  # of vectors
    load(product.forward, folder)([torch.ones(4), torch.ones(4)])


class RecordingGenerator:
    """As that of a device on which the caller records a CUDA graph."""

    def get_offset(self) -> int:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::get_offset during CUDA graph capture.")


def CG013(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "default_generators", (RecordingGenerator(),))
    philox_state(4, "cuda:0")


def CG014() -> None:
    Codegen().run(loop(COPY, "f32", "@meta"))


def CG015(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("codegen.cpp.target.processor", lambda: "flags : sse4_1 sse4_2 ssse3 popcnt cx16")
    load(Codegen().run(loop(COPY), Options(isa="x86-64-v2")).forward, folder)


def CG016(folder: Path) -> None:
    load(Codegen().run(loop(COPY), Options(sanitize=("address",))).forward, folder)


def CG020() -> None:
    document = loop("""
                  %a: f32 = load %x[i]
                  store %y[0] sum= %a
    """)
    Codegen().run(document, Options(target="cpp"))


def CG021(folder: Path) -> None:
    document = loop("""
                  %a: f32 = load %x[i]
                  %b: f32 = check_range(%a, 0.0, 1.0)
                  store %y[i] = %b
    """)
    load(Codegen().run(document).forward, folder)(torch.tensor([0.0, 0.5, 1.0, 1.5]))


def CG022(folder: Path, patch: pytest.MonkeyPatch) -> None:
    program = Codegen().run(loop(COPY))
    patch.setattr(find("cpp"), "load", lambda units, directory, executor: None)
    load(program.forward, folder)
