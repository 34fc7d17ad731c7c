"""What a document means: one call for every form of it, by eager torch and interpreters.

Slow; no machine code is made but for a `Program`.

    meaning(document)(*inputs) -> outputs

The inputs are those of the capture (`Binding.inputs`), which are written as the program says; the outputs have a
history where the program is trained, and their backward is the document's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from aotgrad import bind, cut, run_plain
from codegen.testing.reference import run_graph, span, windowed
from primops import Interpreter
from stagefold.options import Options
from stagewire.capture import Capture
from stagewire.codec import Document, form_of
from stagewire.expr import Expr, evaluate
from stagewire.graph import Ref, Value
from stagewire.loop import LoopGraph
from stagewire.substitution import map_sizes
from stagewire.symbols import bind_sizes
from stagewire.types import ScalarType

Call = Callable[..., tuple[Any, ...]]


Observer = Callable[[Any, tuple[Any, ...]], None]


def meaning(document: Document, observe: Observer | None = None) -> Call:
    """The program of a document of any form, as a callable over its inputs. Raises what the program raises.

    observe: told of each graph that is interpreted, with its inputs, when it begins.

    >>> import torch
    >>> from stagewire.parser import parse_document
    >>> double = parse_document('''prim 3 {
    ...   binding { inputs { BoundInput(name="x", type=f32[2]) } outputs { Fresh(result=0) } }
    ...   forward { input %x: f32[2]  %y: f32[2] = prims.add(%x, %x)  return %y }
    ... }''')
    >>> meaning(double)(torch.ones(2))
    (tensor([2., 2.]),)
    """
    call = _call_of(document, observe)
    count = len(document.inputs if isinstance(document, Capture) else document.binding.inputs)

    def checked(*inputs: Any) -> tuple[Any, ...]:
        if len(inputs) != count:
            raise TypeError(f"the program takes {count} inputs, and {len(inputs)} are given")
        return call(*inputs)

    return checked


def _call_of(document: Document, observe: Observer | None) -> Call:
    match form_of(document):
        case "capture":
            return functools.partial(run_plain, document)
        case "program":
            from stagefold.backend import StagefoldBackend  # loads what compiles

            return StagefoldBackend(Options()).load(document)
        case "grad" | "prim":
            document = cut(document)

    def executor(graph: Any) -> Call:
        run = loop_executor(graph) if isinstance(graph, LoopGraph) else Interpreter(graph)

        def observed(*inputs: Any) -> tuple[Any, ...]:
            if observe is not None:
                observe(graph, inputs)
            return run(*inputs)

        return observed

    backward = None if document.backward is None else executor(document.backward)
    return bind(document.binding, executor(document.forward), backward)


def loop_executor(graph: LoopGraph) -> Call:
    """One direction of a Loop as a callable on tensors, and ints for its symbols."""

    def execute(*inputs: Any) -> tuple[Any, ...]:
        own = _at_sizes(graph, inputs)
        types = {buffer.name: buffer.type for buffer in own.buffers}
        updates = {buffer.name: buffer.reuse for buffer in own.buffers}
        given = {name: x for name, x in zip(graph.inputs, inputs, strict=True) if name in types}
        with torch.no_grad():
            made = run_graph(
                own, {name: x.detach().as_strided((span(types[name]),), (1,)) for name, x in given.items()}
            )
            found = {name: windowed(flat, types[name]) for name, flat in made.items()}
            for name, result in found.items():
                if (updated := updates[name]) in given:
                    given[updated].copy_(result)
        return tuple(found[o.name] if isinstance(o, Ref) else o for o in own.outputs)

    return execute


def inputs_of(graph: LoopGraph) -> list[Value]:
    """The inputs with their types."""
    types = {buffer.name: buffer.type for buffer in graph.buffers} | dict.fromkeys(graph.symbols, ScalarType("int"))
    return [Value(name, types[name]) for name in graph.inputs]


def _at_sizes(graph: LoopGraph, inputs: tuple[Any, ...]) -> LoopGraph:
    """The graph for the sizes of these inputs."""
    sizes = bind_sizes(inputs_of(graph), inputs)

    def at(size: Expr) -> int:
        return evaluate(size, sizes)

    fixed = map_sizes(graph, at) if sizes else graph
    return replace(fixed, inputs=tuple(name for name in graph.inputs if name not in graph.symbols), symbols=())
