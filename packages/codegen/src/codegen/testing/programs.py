"""Hypothesis strategy for loop graphs of many steps: kernels, products, windows, memory taken over, early frees.

All buffers are float32 (size, size), so that any of them can feed anything; what varies is who uses what, for how long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Free,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Step,
    Store,
    Term,
)
from stagewire.program import CallExtern, Unit
from stagewire.types import TensorType, contiguous

AT = Index(0, (Term(1, AxisAtom("i")),))


class _Plan:
    """The steps so far, the buffers that are alive, and those whose memory may be taken over."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.type = contiguous("float32", (size, size))
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.alive: list[str] = []
        self.dead: list[str] = []

    def add(self, prefix: str, role: str, type_: TensorType | None = None, **fields: str | None) -> str:
        name = f"{prefix}{len(self.buffers)}"
        self.buffers.append(Buffer(name, type_ or self.type, role, **fields))  # type: ignore[arg-type]
        return name


@st.composite
def step_graphs(draw: st.DrawFn) -> LoopGraph:
    """A graph of up to a dozen steps; reuse is drawn wherever the rules of `Buffer.reuse` allow it."""
    plan = _Plan(draw(st.sampled_from((1, 3, 8))))
    plan.alive = [plan.add("x", "input") for _ in range(draw(st.integers(1, 3)))]
    inputs = tuple(plan.alive)
    for _ in range(draw(st.integers(1, 12))):
        {"kernel": _kernel, "in_place": _in_place, "product": _product, "library": _library, "free": _free}[
            draw(st.sampled_from(("kernel", "kernel", "in_place", "product", "product", "library", "free")))
        ](draw, plan, inputs)
    names = draw(st.lists(st.sampled_from(plan.alive), min_size=1, max_size=4))
    outputs = [Ref(name) for name in names]
    if draw(st.booleans()):
        outputs.append(Ref(_window(plan, draw(st.sampled_from(plan.alive)))))
    return LoopGraph(
        buffers=tuple(plan.buffers), inputs=inputs, outputs=(*outputs, draw(st.sampled_from((None, 7, 2.5)))),
        steps=tuple(plan.steps),
    )  # fmt: skip


def _pick(draw: st.DrawFn, plan: _Plan) -> str:
    return draw(st.sampled_from(plan.alive))


def _body(result: str, first: str, second: str) -> Section:
    count = (Load("a", first, AT, "float32"), Load("b", second, AT, "float32"))
    op = Compute("c", "sub", (Ref("a"), Ref("b")), "float32")
    return Section((), (*count, op, Store(result, AT, Ref("c"))))


def _emit(plan: _Plan, result: str, first: str, second: str) -> None:
    axes = (Axis("i", plan.size * plan.size),)
    plan.steps.append(Kernel(f"kernel_{result}", axes, (_body(result, first, second),)))
    plan.alive.append(result)


def _kernel(draw: st.DrawFn, plan: _Plan, inputs: tuple[str, ...]) -> None:
    """A new buffer from two, perhaps in the memory of a dead one."""
    reuse = plan.dead.pop() if plan.dead and draw(st.booleans()) else None
    _emit(plan, plan.add("k", "kernel", reuse=reuse), _pick(draw, plan), _pick(draw, plan))


def _in_place(draw: st.DrawFn, plan: _Plan, inputs: tuple[str, ...]) -> None:
    """A new buffer in the memory of one that this kernel reads last."""
    owned = [name for name in plan.alive if name[0] in "kp"]
    if not owned:
        return
    old = draw(st.sampled_from(owned))
    result = plan.add("k", "kernel", reuse=old)
    _emit(plan, result, old, _pick(draw, plan))
    plan.alive.remove(old)


def _product(draw: st.DrawFn, plan: _Plan, inputs: tuple[str, ...]) -> None:
    """mm or addmm, of buffers or of transposed windows on them."""
    first, second = (_window(plan, name) if draw(st.booleans()) else name for name in (_pick(draw, plan) for _ in "ab"))
    result = plan.add("p", "extern")
    if draw(st.booleans()):
        plan.steps.append(Extern("aten.mm.default", (Ref(first), Ref(second)), {}, (result,)))
    else:
        plan.steps.append(
            Extern("aten.addmm.default", (Ref(_pick(draw, plan)), Ref(first), Ref(second)), {}, (result,))
        )
    plan.alive.append(result)


def _library(draw: st.DrawFn, plan: _Plan, inputs: tuple[str, ...]) -> None:
    """An operator called through Python; `tanh` of a window has the window's strides, the program wants others."""
    source = _pick(draw, plan)
    result = plan.add("e", "extern")
    plan.steps.append(Extern("aten.tanh.default", (Ref(_window(plan, source)),), {}, (result,)))
    plan.alive.append(result)


def _free(draw: st.DrawFn, plan: _Plan, inputs: tuple[str, ...]) -> None:
    """The end of a buffer; its memory may be taken over later, or not (then it is freed here)."""
    owned = [name for name in plan.alive if name not in inputs]
    if not owned:
        return
    name = draw(st.sampled_from(owned))
    plan.alive.remove(name)
    if draw(st.booleans()):
        plan.dead.append(name)
    else:
        plan.steps.append(Free(name))


def _window(plan: _Plan, base: str) -> str:
    """The transpose of a buffer."""
    type_ = TensorType("float32", (plan.size, plan.size), (1, plan.size))
    return plan.add("w", "view", type_, base=base)


SYMBOLIC_STEPS = """
  loop 2 {
    binding {
      inputs { BoundInput(name="x", type=f32[b, s, 8])  BoundInput(name="w", type=f32[8, 6]) }
      outputs { Fresh(result=0)  Fresh(result=1)  Fresh(result=2) }
      symbols { Symbol(name="b", source=None, hint=4, lower=2, upper=None)
                Symbol(name="s", source=None, hint=4, lower=2, upper=None) }
    }
    forward {
      buffers {
        %x: f32[b, s, 8] = input
        %w: f32[8, 6] = input
        %twice: f32[b, s, 8] = kernel
        %rows: f32[b*s, 8] = view of %twice
        %product: f32[b*s, 6] = extern
        %top: f32[b] = kernel
        %joined: f32[b*s + 1, 6] = kernel
        %tail: f32[b*s, 6]+6 = view of %joined
        %sorted: f32[b*s, 6] = extern
      }
      inputs = ("x", "w")
      outputs = (%top, %sorted, 2*b*s)
      steps {
        kernel double for i in b*s*8 {
          section {
            %v: f32 = load %x[i]
            %d: f32 = add(%v, %v)
            store %twice[i] = %d
          }
        }
        %product = aten.mm.default(%rows, %w)
        kernel largest for i in b {
          section for j in 6*s {
            %v: f32 = load %product[{6*s}*i + j]
            %m: f32 = reduce max %v
          }
          section {
            store %top[i] = %m
          }
        }
        kernel head for i in 6 {
          section {
            store %joined[i] = 0.0
          }
        }
        kernel rest for i in 6*b*s {
          section {
            %v: f32 = load %product[i]
            store %joined[i + 6] = %v
          }
        }
        %sorted = aten.narrow_copy.default(%tail, 0, 0, b*s)
      }
    }
  }"""
"""A document of several steps over symbols: kernels, windows, calls, a size that is returned."""


def placed(unit: Unit, devices: Mapping[str, str] | str) -> Unit:
    """The unit, saying that buffers are on these devices: by name, or all on one."""

    def at(name: str, type_: Any) -> Any:
        if not isinstance(type_, TensorType):
            return type_
        return replace(type_, device=devices if isinstance(devices, str) else devices[name])

    def moved(one: Any) -> Any:
        if isinstance(one, CallExtern):
            types = zip(one.results, one.result_types, strict=bool(one.result_types))
            return replace(one, result_types=tuple(at(*pair) for pair in types))
        return replace(one, type=at(one.buffer, one.type)) if hasattr(one, "type") else one

    types = tuple(at(*pair) for pair in zip(unit.inputs, unit.input_types, strict=True))
    return replace(unit, input_types=types, instructions=tuple(map(moved, unit.instructions)))
