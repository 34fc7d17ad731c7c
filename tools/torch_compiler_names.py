"""Write docs/from_torch_compile.md: what each name of torch.compiler does in code that stagefold compiles.

    python tools/torch_compiler_names.py [--check]

A row has the check that shows what it says; `integration_tests/test_torch_compiler_names.py` runs every one, and
compares the names with `torch.compiler.__all__`. With --check the page is only compared.
"""

from __future__ import annotations

import operator
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

import stagefold

PAGE = Path(__file__).resolve().parent.parent / "docs" / "from_torch_compile.md"
X = torch.tensor([1.0, -2.0, 3.0])
FACTOR = 3


class Row(NamedTuple):
    """A name of torch's, what to write with stagefold ("as it is": torch's own), what it does, and its check."""

    ours: str
    says: str
    check: Callable[[], None]


def compiled(function: Callable[..., Any], **settings: Any) -> tuple[Callable[..., Any], list[object]]:
    """The compiled function, and its graphs as they are made."""
    graphs: list[object] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    return stagefold.compile(function, backend=backend, **settings), graphs


def in_one_graph(function: Callable[..., Any], want: Any) -> None:
    call, graphs = compiled(function, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(call(X), want)
    assert len(graphs) == 1


def between_two_graphs(function: Callable[..., Any], want: Any) -> None:
    call, graphs = compiled(function)
    torch.testing.assert_close(call(X), want)
    assert len(graphs) == 2


def is_refused(why: str, call: Callable[..., Any], *args: Any) -> None:
    """The call raises an error that says `why`."""
    try:
        call(*args)
    except (stagefold.StageError, AttributeError) as error:
        said = str(error)
    else:
        raise AssertionError(f"{call} raises nothing")
    assert why in said, said


def is_missing(name: str, why: str) -> None:
    is_refused(why, getattr, stagefold, name)


def compile_() -> None:
    call = torch.compiler.compile(lambda x: x * 2, backend="stagefold")
    torch.testing.assert_close(call(X), X * 2)


def config() -> None:
    assert stagefold.compile(lambda x: x * 2, options={"numerics": "eager", "codegen.autotune": "off"})(X).equal(X * 2)


def assume_constant_result() -> None:
    calls = []

    @torch.compiler.assume_constant_result
    def number() -> int:
        return calls.append(None) or 4

    in_one_graph(lambda x: x * number(), X * 4)
    assert len(calls) == 1
    is_missing("assume_constant_result", "stagefold.assume_constant")


def reset() -> None:
    call, graphs = compiled(lambda x: x * 2)
    call(X)
    stagefold.reset()
    call(X)
    assert len(graphs) == 2


def allow_in_graph() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    assert stagefold.allow_in_graph(helper) is helper
    marked = torch.compiler.allow_in_graph(helper)
    in_one_graph(lambda x: marked(x) + 1, torch.relu(X) + 1)


def substitute_in_graph() -> None:
    assert operator.length_hint([1, 2]) == 2

    @stagefold.substitute_in_graph(operator.length_hint)
    def length(obj: Any, default: int = 0, /) -> int:
        return len(obj) + 10

    in_one_graph(lambda x: x * operator.length_hint([x, x]), X * 12)


def list_backends() -> None:
    assert {"stagefold", "eager", *torch.compiler.list_backends()} <= set(stagefold.list_backends())


def disable() -> None:
    for form in (stagefold.disable, torch.compiler.disable):
        plain = form(lambda x: x + int(stagefold.is_compiling()))
        between_two_graphs(lambda x, plain=plain: plain(x * 2) * 3, X * 6)


def default_backend() -> None:
    called = []
    stagefold.set_default_backend(lambda module, inputs: called.append(module) or module.forward)
    try:
        stagefold.compile(lambda x: x * 2)(X)
    finally:
        stagefold.set_default_backend(None)
    assert called
    assert stagefold.get_default_backend() == "stagefold"


def set_stance() -> None:
    call, graphs = compiled(lambda x: x * 2, dynamic=False)
    with stagefold.set_stance("force_eager", skip_guard_eval_unsafe=True):
        assert call(X).equal(X * 2)
    assert not graphs
    with torch.compiler.set_stance("force_eager"):
        assert call(X).equal(X * 2)
    assert len(graphs) == 1
    with stagefold.set_stance("aot_eager_then_compile"):
        for count in (1, 2):
            assert call(X[:2]).equal(X[:2] * 2)
            assert len(graphs) == count
    is_refused("Compile with backend=", lambda: stagefold.set_stance("default", force_backend="eager"))


def set_enable_guard_collectives() -> None:
    is_missing("set_enable_guard_collectives", "each rank alone")


def cudagraph_mark_step_begin() -> None:
    for mark in (torch.compiler.cudagraph_mark_step_begin, stagefold.cudagraph_mark_step_begin):
        in_one_graph(lambda x, mark=mark: (mark(), x * 2)[1], X * 2)
    call = stagefold.compile(lambda x: x * 2, mode="reduce-overhead")
    held = call(X)
    stagefold.cudagraph_mark_step_begin()
    assert call(X + 1).equal(X * 2 + 2)
    assert held.equal(X * 2)


def load_compiled_function() -> None:
    is_missing("load_compiled_function", "save_cache_artifacts")
    assert not hasattr(stagefold.compile(lambda x: x * 2), "aot_compile")


def wrap_numpy() -> None:
    @torch.compiler.wrap_numpy
    def total(a: Any) -> Any:
        return numpy.cumsum(a * a)

    in_one_graph(lambda x: total(x * 2) * 3, (X * 2).square().cumsum(0) * 3)
    is_refused("BC002", compiled(total, fullgraph=True)[0], X.clone().requires_grad_())


def is_compiling() -> None:
    for asked, want in (
        (torch.compiler.is_compiling, True),
        (stagefold.is_compiling, True),
        (torch.compiler.is_dynamo_compiling, True),
        (torch.compiler.is_exporting, False),
    ):
        assert asked() is False
        in_one_graph(lambda x, asked=asked: x * (2 if asked() else 3), X * (2 if want else 3))


def cache_artifacts() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 7

    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        ours = stagefold.compile(program, options={"cache_dir": first})
        want = ours(X)
        made = stagefold.save_cache_artifacts(first)
        assert made is not None
        data, info = made
        assert len(info.programs) == 1
        assert info.code
        assert stagefold.load_cache_artifacts(data, second) == info
        stagefold.reset()
        again = stagefold.compile(program, options={"cache_dir": second})
        assert again(X).equal(want)
        assert again._backend.reports[-1].cached  # type: ignore[attr-defined]


class Scaled(nn.Module):
    """What filters tell apart: a module of torch's, one of the user's with a number, a global name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale * FACTOR


def filters(name: str, *, module: bool, inner: bool, names: bool, sizes: bool = True) -> Callable[[], None]:
    """A check of a filter: whether it watches the user's module, torch's own, global names, and sizes."""

    def check() -> None:
        def changes(change: Callable[[Scaled], Any], size: int = 2) -> int:
            model = Scaled()
            keep = getattr(torch.compiler, name)
            call, graphs = compiled(model, options={"guard_filter_fn": keep}, dynamic=False, fullgraph=True)
            call(torch.ones(2, 3))
            undo = change(model)
            call(torch.ones(size, 3))
            if callable(undo):
                undo()
            return len(graphs) == 2

        def other_factor(model: Scaled) -> Callable[[], None]:
            before = globals()["FACTOR"]
            globals()["FACTOR"] = 5
            return lambda: globals().update(FACTOR=before)

        assert changes(lambda model: setattr(model, "scale", 5)) == module
        assert changes(lambda model: model.inner.register_forward_hook(lambda *given: given[-1] * 2) and None) == inner
        assert changes(other_factor) == names
        assert changes(lambda model: None, size=4) == sizes

    return check


def nested_compile_region() -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    in_one_graph(lambda x: region(region(x)), torch.relu(torch.relu(X) + 1) + 1)


def error_on_graph_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            y = x * 2
            stagefold.graph_break()
            return torch.relu(y) * 3

    between_two_graphs(program, torch.relu(X * 2) * 3)
    is_missing("error_on_graph_break", "fullgraph")
    is_refused("BC030", compiled(program, fullgraph=True)[0], X)


_FILTER = "Drops guards. What a graph is given, and relations of sizes, stay guarded under every filter"
_AS_IT_IS = "as it is"

ROWS: dict[str, Row] = {
    "compile": Row(
        "`stagefold.compile`",
        'The same arguments; torch\'s own takes `backend="stagefold"`: its capture, our stages.',
        compile_,
    ),
    "config": Row("`compile(options=...)`", 'Of each callable; `"stage.field"` reaches one stage.', config),
    "assume_constant_result": Row(
        "`stagefold.assume_constant`, or as it is", "Called when a frame is captured.", assume_constant_result
    ),
    "reset": Row("`stagefold.reset`", "Drops what stagefold has compiled; torch's own what torch has.", reset),
    "allow_in_graph": Row(
        "`stagefold.allow_in_graph`, or as it is",
        "Not needed: the function is traced, and compiled with its neighbours.",
        allow_in_graph,
    ),
    "substitute_in_graph": Row(
        "`stagefold.substitute_in_graph`",
        "For functions of C. Torch's own writes into torch's tables, which stagefold does not load.",
        substitute_in_graph,
    ),
    "list_backends": Row("`stagefold.list_backends`", "Ours and torch's.", list_backends),
    "disable": Row("`stagefold.disable`, or as it is", "Runs plain between two graphs.", disable),
    "set_default_backend": Row("`stagefold.set_default_backend`", "Of `stagefold.compile`.", default_backend),
    "get_default_backend": Row("`stagefold.get_default_backend`", "Of `stagefold.compile`.", default_backend),
    "set_stance": Row(
        "`stagefold.set_stance`",
        "Of what stagefold compiles. `skip_guard_eval_unsafe` is accepted, and guards are checked all the same; "
        "`force_backend` is refused: compile with `backend=`. Torch's own is for torch.compile.",
        set_stance,
    ),
    "set_enable_guard_collectives": Row(
        "not offered", "Each rank checks its guards alone.", set_enable_guard_collectives
    ),
    "cudagraph_mark_step_begin": Row(
        "`stagefold.cudagraph_mark_step_begin`, or as it is",
        "Accepted, not needed: a result that is held is not overwritten.",
        cudagraph_mark_step_begin,
    ),
    "load_compiled_function": Row(
        "`stagefold.load_cache_artifacts`",
        "Not offered, nor is `.aot_compile`: bytecode and guards of a frame are not saved, what was compiled is.",
        load_compiled_function,
    ),
    "wrap_numpy": Row(
        _AS_IT_IS,
        "NumPy on tensors of the CPU is part of the graph. Without gradients: a tensor that requires grad is refused.",
        wrap_numpy,
    ),
    "is_compiling": Row("`stagefold.is_compiling`, or as it is", "True in captured code.", is_compiling),
    "is_dynamo_compiling": Row(_AS_IT_IS, "True in captured code.", is_compiling),
    "is_exporting": Row(_AS_IT_IS, "False in captured code.", is_compiling),
    "save_cache_artifacts": Row(
        "`stagefold.save_cache_artifacts`",
        "Programs and machine code as bytes, for machines with the same processor and versions.",
        cache_artifacts,
    ),
    "load_cache_artifacts": Row(
        "`stagefold.load_cache_artifacts`",
        "Puts them into the cache; damaged ones are ignored. It is machine code: never a stranger's.",
        cache_artifacts,
    ),
    "keep_portable_guards_unsafe": Row(
        '`options={"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}`',
        f"{_FILTER}.",
        filters("keep_portable_guards_unsafe", module=False, inner=False, names=False),
    ),
    "skip_guard_on_inbuilt_nn_modules_unsafe": Row(
        "the same",
        f"{_FILTER}.",
        filters("skip_guard_on_inbuilt_nn_modules_unsafe", module=True, inner=False, names=True),
    ),
    "skip_guard_on_all_nn_modules_unsafe": Row(
        "the same",
        f"{_FILTER}.",
        filters("skip_guard_on_all_nn_modules_unsafe", module=False, inner=False, names=True),
    ),
    "keep_tensor_guards_unsafe": Row(
        "the same", f"{_FILTER}.", filters("keep_tensor_guards_unsafe", module=False, inner=False, names=False)
    ),
    "skip_guard_on_globals_unsafe": Row(
        "the same", f"{_FILTER}.", filters("skip_guard_on_globals_unsafe", module=True, inner=True, names=False)
    ),
    "skip_all_guards_unsafe": Row(
        "the same", f"{_FILTER}.", filters("skip_all_guards_unsafe", module=False, inner=False, names=False)
    ),
    "nested_compile_region": Row(
        _AS_IT_IS,
        "Traced like any function: equal layers are found without it.",
        nested_compile_region,
    ),
}

MORE: dict[str, Row] = {
    "torch._dynamo.error_on_graph_break": Row(
        "`compile(fullgraph=True)`", "Accepted, and without effect.", error_on_graph_break
    ),
}
"""Names that users of torch.compile look for, and which stand elsewhere."""

HEAD = """\
# torch.compiler, name by name

`python tools/torch_compiler_names.py` writes this page; `integration_tests/test_torch_compiler_names.py` runs a check
of every row, and compares the names with those of `torch.compiler`. [The tutorial](tutorials/from_torch_compile.md) has
the rest. "As it is": torch's own name does what is said in code that stagefold compiles.

| `torch.compiler.` | with stagefold | what it does |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = {**ROWS, **MORE}
    return HEAD + "".join(f"| `{name}` | {row.ours} | {row.says} |\n" for name, row in rows.items())


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        return int(page() != PAGE.read_text())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
