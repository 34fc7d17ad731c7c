"""Documents of symbolic sizes are verified at a few sizes, element by element; and so is what a stage makes of one."""

from __future__ import annotations

import pytest

from stagewire.errors import VerifyError
from stagewire.parser import parse_document
from stagewire.verify import faults, verify
from stagewire.verify.samples import sample_sizes

BINDING = """
  binding {
    inputs {
      BoundInput(name="x", type=f32[s0, 4])
    }
    outputs {
      Fresh(result=0)
    }
    symbols {
      Symbol(name="s0", source=None, hint=6, lower=2)
    }
    facts {
      Relation(left=s0 % 3, operator="==", right=0)
    }
  }
  forward {"""

PRIM = f"""prim 3 {{{BINDING}
    input %x: f32[s0, 4]
    %y: f32[s0, 4] = prims.neg(%x)
    return %y
  }}
}}
"""

LOOP = f"""loop 2 {{{BINDING}
    buffers {{
      %x: f32[s0, 4] = input
      %t: f32[s0, 4] = kernel
      %v: f32[4, s0]{{1, 4}} = view of %t
      %y: f32[s0, 4] = kernel
    }}
    inputs = ("x",)
    outputs = (%y,)
    steps {{
      kernel first for i0 in s0, i1 in 4 {{
        section {{
          %a: f32 = load %x[4*i0 + i1]
          store %t[4*i0 + i1] = %a
        }}
      }}
      kernel second for i0 in s0, i1 in 4 {{
        section {{
          %a: f32 = load %v[4*i0 + i1]
          store %y[4*i0 + i1] = %a
        }}
      }}
    }}
  }}
}}
"""

PROGRAM = f"""program 1 {{{BINDING}
    target = "cpp"
    source {{
      |extern "C" void copy(const float* x, float* y) {{}}
      |
    }}
    kernels {{
      KernelInfo(name="copy", parameters=("x", "y"))
    }}
    inputs = ("x",)
    input_types {{
      f32[s0, 4]
    }}
    outputs = (%y,)
    instructions {{
      %t: f32[s0, 4] = allocate
      launch copy(%x, %t)
      %v: f32[4, s0]{{1, 4}} = view %t
      %y: f32[s0, 4] = allocate
      launch copy(%v, %y)
    }}
  }}
}}
"""

TEXTS = {"prim": PRIM, "loop": LOOP, "program": PROGRAM}
GIVEN = {"prim": None, "loop": "prim", "program": "loop"}

VIEWED = PROGRAM[PROGRAM.index("%t: f32[s0, 4] = allocate") : PROGRAM.index(" = view %t")]

REFUSED = [
    ("K5", "loop", "load %x[4*i0 + i1]", "load %x[4*i0 + i1 + 1]", "runs from 1 to 24, %x has elements 0 to 23"),
    ("K5", "loop", "store %y[4*i0 + i1]", "store %y[64*i0 + i1]", "the index runs from 0 to 323"),
    ("K5", "loop", "store %y[4*i0 + i1]", "store %y[4*i0 + i1 + 1000000000*(i0)//5]", "%y has elements 0 to 23"),
    ("K10", "loop", "store %y[4*i0 + i1]", "store %y[(4*i0 + i1)//2]", "two points set element 0 of %y"),
    ("K10", "loop", "store %y[4*i0 + i1]", "store %y[3*i0 + i1]", "two points set element 3 of %y"),
    ("L5", "loop", "second for i0 in s0", "second for i0 in s0 // 2", "element 12 of %y is read before"),
    ("L5", "loop", "first for i0 in s0, i1 in 4", "first for i0 in s0, i1 in 3", "element 3 of %v is read before"),
    ("L5", "loop", "load %v[4*i0 + i1]\n", "load %y[4*i0 + i1]\n", "%y is read before anything writes it"),
    ("L11", "loop", "%y: f32[s0, 4] =", "%y: f64[s0, 4] =", "output 0 is f64[6, 4], and was f32[6, 4]"),
    ("L12", "loop", "{1, 4} = view", "{1, 4}+1 = view", "%v ends behind the 96 bytes of %t"),
    ("R13", "program", "%y: f32[s0, 4] =", "%y: f32[1, 4] =", "output 0 is f32[1, 4], and was f32[6, 4]"),
    ("R14", "program", VIEWED, VIEWED.replace("s0", "2"), "%t has 32 bytes, in the loop document 96"),
    ("R15", "program", "{1, 4} = view", "{1, 4}+1 = view", "%v ends behind the 96 bytes of %t"),
]  # fmt: skip


def document(kind: str, old: str = "", new: str = ""):
    text = TEXTS[kind]
    assert old in text
    return parse_document(text.replace(old, new, 1))


@pytest.mark.parametrize(("label", "kind", "old", "new", "says"), REFUSED)
def test_broken_constraints_are_refused(label: str, kind: str, old: str, new: str, says: str) -> None:
    with pytest.raises(VerifyError) as error:
        verify(document(kind, old, new), document(GIVEN[kind]))
    assert error.value.label == label
    assert says in error.value.fault
    if says not in ("%y is read before anything writes it",):
        assert error.value.sizes["s0"] % 3 == 0
        assert f"(at s0={error.value.sizes['s0']})" in error.value.fault


@pytest.mark.parametrize("kind", TEXTS)
def test_whole_documents_verify(kind: str) -> None:
    verify(document(kind), document(GIVEN[kind]) if GIVEN[kind] else None)


AGAIN = """\
      kernel again for i0 in s0 {
        section {
          store %t[4*i0] = 1.0
        }
      }
"""


@pytest.mark.parametrize(("old", "new"), [
    ("store %y[4*i0 + i1]", "store %y[4*i0 - 1*i1 + 3]"),
    ("second for i0 in s0, i1 in 4", "second for i1 in 4, i0 in s0"),
    ("%t: f32[s0, 4] =", "%t: f32[s0, 4]{8, 1} ="),
    ("      kernel second", f"{AGAIN}      kernel second"),
    ("store %y[4*i0 + i1]", "store %y[4*i0 + 2*(i1)//2 + (i1)%2]"),
])  # fmt: skip
def test_legal_documents_are_let_be(old: str, new: str) -> None:
    """Points in another order, memory with gaps, memory that is written twice, an index of quotients."""
    verify(document("loop", old, new))


def test_what_is_not_known_is_let_be() -> None:
    """A mask, and an index that data decides."""
    text = LOOP.replace("store %y[4*i0 + i1] = %a", "%k: i64 = index 4*i0 + i1\n          store %y[%k] = %a")
    verify(parse_document(text))
    text = LOOP.replace("store %y[4*i0 + i1] = %a", "%m: b8 = lt(%a, 1.0)\n          store %y[4*i0 + i1] = %a if %m")
    verify(parse_document(text))


@pytest.mark.parametrize(("size", "broken"), [(1 << 20, ()), (1 << 19, ("L5",)), (1 << 40, ("K5",))])
def test_large_sizes_are_decided(size: int, broken: tuple[str, ...]) -> None:
    text = LOOP.replace("second for i0 in s0", f"second for i0 in {size}").replace("s0", str(1 << 20))
    text = text.replace(f'Symbol(name="{1 << 20}", source=None, hint=6, lower=2)', "")
    text = text.replace("    symbols {\n      \n    }\n", "").replace(f"left={1 << 20} % 3", "left=0")
    assert {fault.label for fault in faults(parse_document(text))} == set(broken)


@pytest.mark.parametrize(("symbol", "facts", "values"), [
    ("lower=2", "s0 % 3 == 0", {6, 3}),
    ("lower=2, upper=6", "s0 > 4", {6, 5}),
    ("lower=6, upper=6", "s0 > 4", {6}),
    ("lower=2", "s0 % 16 == 6", {6}),
])  # fmt: skip
def test_sizes_keep_to_bounds_and_facts(symbol: str, facts: str, values: set[int]) -> None:
    left, operator, right = facts.rsplit(" ", 2)
    text = PRIM.replace("lower=2", symbol)
    text = text.replace('left=s0 % 3, operator="==", right=0', f'left={left}, operator="{operator}", right={right}')
    assert values <= {sizes["s0"] for sizes in sample_sizes(parse_document(text).binding)}
    if len(values) == 1:
        assert {sizes["s0"] for sizes in sample_sizes(parse_document(text).binding)} == values
