"""The code that runs in a frame's place while its guards hold.

    replacement ::= new parameters, call of the compiled graph, rebuilt result, side effects, return
                  | call of the compiled graph, which raises, or whose checks fail:
                    call of the function itself, return (`bytecap.replacement.plain_run`)

The graph's inputs were read by the guard program already, in C: it hands them over as the tuple
in the local `hook.INPUTS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

from bytecap.bytecode.assembler import Assembler, assemble
from bytecap.bytecode.wrappers import on_inner_tensors
from bytecap.hook import INPUTS
from bytecap.objects.arrays.inference import with_inference_results
from bytecap.replacement.emit import Emitter, emit_source, symbol_local
from bytecap.replacement.plain_run import emit_guarded_call


def replacement_code(
    code: CodeType, emitter: Emitter, compiled: Callable[..., Any] | None, *, checked: bool = False, undone: bool = True
) -> CodeType:
    """Code with the arguments and free variables of `code`.

    emitter: what follows the graph call. compiled: `compiled(*inputs) -> tuple of outputs`, or None for no call.
    checked: it gives None where the function is to run plain. undone: where it raises, it has changed nothing.
    """
    head = Assembler(code.co_firstlineno)
    made = emitter.tracer.made
    for place, (_, make) in made.items():
        head.call_function(make)
        head.store_local(place)
    for name, source in emitter.symbols.items():  # before the graph, which may change what they are read from
        emit_source(head, source, emitter.tracer.names.objects)
        head.store_local(symbol_local(name))
    if compiled is not None:
        if undone:
            emit_guarded_call(head, code, lambda: _emit_call(head, emitter, compiled), checked=checked)
        else:
            _emit_call(head, emitter, compiled)
        if emitter.outputs:
            head.unpack(len(emitter.outputs))
            for name in emitter.outputs:
                head.store_local(f".out_{name}")
        else:
            head.pop()
    return assemble(code, head.instructions + emitter.instructions)


def _emit_call(head: Assembler, emitter: Emitter, compiled: Callable[..., Any]) -> None:
    inference = emitter.tracer.graph.inference.names
    if places := frozenset(at for at, name in enumerate(emitter.outputs) if name in inference):
        compiled = with_inference_results(compiled, places)
    outside = emitter.tracer.inputs.outside()
    if outside.wrappers or outside.subclassed:
        links = tuple((like, places) for _, like, places in outside.wrappers)
        compiled = on_inner_tensors(compiled, links, outside.subclassed)
    head.push_callable(compiled)
    head.load_local(INPUTS)
    head.constant(None)
    head.store_local(INPUTS)
    made = emitter.tracer.made
    if wanted := [place for place, (name, _) in made.items() if name in emitter.tracer.graph.used]:
        for place in wanted:
            head.load_local(place)
        head.build("TUPLE", len(wanted))
        head.call_function(operator.add, arguments=2)
    if outside.wrappers:
        for source, _, _ in outside.wrappers:
            emit_source(head, source, emitter.tracer.names.objects)
        head.build("TUPLE", len(outside.wrappers))
        head.call_function(operator.add, arguments=2)
    head.call_with_tuple()
