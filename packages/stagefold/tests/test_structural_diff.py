"""Two documents, by structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given

import stagefold
from stagefold.structural_diff import differences
from stagewire.codec import Document
from stagewire.parser import parse_document
from stagewire.testing.strategies import documents


def made(program: object, path: Path, form: str) -> Document:
    capsule = stagefold.record(program, torch.linspace(-1, 1, 12).view(3, 4), to=path / "run.capsule")  # type: ignore[arg-type]
    return capsule.document(capsule.runs[0], form)


@given(documents("grad", "prim", "loop"))
def test_a_document_is_the_same_as_itself(document: Document) -> None:
    assert differences(document, document) == []


@pytest.mark.parametrize("form", ["grad", "prim", "loop"])
def test_one_more_op_is_one_difference(tmp_path: Path, form: str) -> None:
    """All values behind it have another number."""
    one = made(lambda x: torch.softmax(x * 2, -1) @ (x * 3).t() * 4, tmp_path, form)
    other = made(lambda x: torch.softmax(x * 2, -1) @ ((x * 3).abs() * 5).t() * 4, tmp_path, form)
    lines = [line for line in differences(one, other, context=0) if not line.startswith("@@")]
    assert any("abs" in line and line.startswith("+") for line in lines)
    assert not any("exp" in line or "maximum" in line for line in lines), lines


LOOP = """loop 2 {{
  binding {{ inputs {{ BoundInput(name="x", type=f32[4]) }} outputs {{ Fresh(result=0) }} }}
  forward {{
    buffers {{ %x: f32[4] = input  %{y}: f32[4] = kernel  %z: f32[4] = kernel }}
    inputs = ("x",)
    outputs = (%z,)
    steps {{
      kernel {k} for {i} in 4 {{ section {{ %{a}: f32 = load %x[{i}]  %b: f32 = neg(%{a})  store %{y}[{i}] = %b }} }}
      kernel k2 for j in 4 {{ section {{ %a: f32 = load %{y}[j]  %c: f32 = exp(%{use})  store %z[j] = %c }} }}
    }}
  }}
}}"""


def test_names_of_buffers_kernels_axes_and_values_do_not_count() -> None:
    one = LOOP.format(y="y", k="k1", i="i0", a="a", use="a")
    other = LOOP.format(y="other", k="first", i="i1", a="v", use="a")
    assert differences(parse_document(one), parse_document(other)) == []


def test_who_reads_what_counts() -> None:
    """The same lines, joined in another way."""
    text = """prim 3 {{
      binding {{ inputs {{ BoundInput(name="x", type=f32[2]) }} outputs {{ Fresh(result=0) }} }}
      forward {{ input %x: f32[2]  %a: f32[2] = prims.neg(%x)  %b: f32[2] = prims.exp(%x)
        %c: f32[2] = prims.sub({0})  return %c }}
    }}"""
    one, other = (parse_document(text.format(which)) for which in ("%a, %b", "%b, %a"))
    assert [line.strip() for line in differences(one, other, context=0)[1:]] == [
        "-     %c: f32[2] = prims.sub(%a, %b)",
        "+     %c: f32[2] = prims.sub(%b, %a)",
    ]
