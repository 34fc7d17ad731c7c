"""The executors on single graphs: every native call, odd inputs, errors, threads, memory."""

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from codegen import Options, load
from codegen.errors import IndexOutOfRange, IntegerDivisionByZero, WrongInput, WrongResult
from codegen.runtime import cpu_products
from codegen.runtime.native import Again
from codegen.stage import emit
from stagewire.graph import DTypeArg, List, Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import TensorType

EXECUTORS = ("fast", "reference")


def type_of(tensor):
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def call_graph(target, args, tensors, expected):
    """A graph of one call; `tensors` by name."""
    results = expected if isinstance(expected, tuple) else (expected,)
    buffers = [Buffer(name, type_of(tensor), "input") for name, tensor in tensors.items()]
    names = tuple(f"y{number}" if value is not None else "" for number, value in enumerate(results))
    buffers += [Buffer(n, type_of(value), "extern") for n, value in zip(names, results, strict=True) if n]
    return LoopGraph(
        buffers=tuple(buffers), inputs=tuple(tensors), outputs=tuple(Ref(n) for n in names if n),
        steps=(Extern(target, tuple(args), {}, names),),
    )  # fmt: skip


def pointwise(op, *tensors, dtype=None, literal=None):
    """y = op(tensors...) over strided inputs into a contiguous output."""
    shape = tensors[0].shape
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(shape))
    names = [f"x{k}" for k in range(len(tensors))]
    made = torch.empty(shape, dtype=dtype or tensors[0].dtype)

    def at(tensor):
        return Index(0, tuple(Term(s, AxisAtom(f"i{k}")) for k, s in enumerate(tensor.stride()) if s))

    loads = [Load(f"v{k}", n, at(t), type_of(t).dtype) for k, (n, t) in enumerate(zip(names, tensors, strict=True))]
    operands = tuple(Ref(load.result) for load in loads) + (() if literal is None else (literal,))
    body = (*loads, Compute("w", op, operands, type_of(made).dtype), Store("y", at(made), Ref("w")))
    buffers = [Buffer(n, type_of(t), "input") for n, t in zip(names, tensors, strict=True)]
    buffers.append(Buffer("y", type_of(made), "kernel"))
    steps = (Kernel("kernel", axes, (Section((), body),)),)
    return LoopGraph(buffers=tuple(buffers), inputs=tuple(names), outputs=(Ref("y"),), steps=steps)


def numbers(*items):
    return List(items)


def convolution_arguments(stride=1, groups=1):
    return numbers(stride, stride), numbers(1, 1), numbers(1, 1), False, numbers(0, 0), groups


CALLS = {
    "mm": ("aten.mm.default", {"a": (3, 4), "b": (4, 5)}, lambda r: (r("a"), r("b"))),
    "bmm": ("aten.bmm.default", {"a": (2, 3, 4), "b": (2, 4, 5)}, lambda r: (r("a"), r("b"))),
    "addmm": ("aten.addmm.default", {"c": (5,), "a": (3, 4), "b": (4, 5)}, lambda r: (r("c"), r("a"), r("b"))),
    "baddbmm": ("aten.baddbmm.default", {"c": (2, 3, 5), "a": (2, 3, 4), "b": (2, 4, 5)},
                lambda r: (r("c"), r("a"), r("b"))),
    "convolution": ("aten.convolution.default", {"x": (2, 4, 6, 6), "w": (8, 4, 3, 3), "b": (8,)},
                    lambda r: (r("x"), r("w"), r("b"), *convolution_arguments())),
    "convolution without bias": ("aten.convolution.default", {"x": (2, 4, 6, 6), "w": (8, 2, 3, 3)},
                                 lambda r: (r("x"), r("w"), None, *convolution_arguments(2, 2))),
    "convolution backward": ("aten.convolution_backward.default",
                             {"g": (2, 8, 6, 6), "x": (2, 4, 6, 6), "w": (8, 4, 3, 3)},
                             lambda r: (r("g"), r("x"), r("w"), numbers(8), *convolution_arguments(),
                                        numbers(True, True, True))),
    "convolution backward, weight only": ("aten.convolution_backward.default",
                                          {"g": (2, 8, 6, 6), "x": (2, 4, 6, 6), "w": (8, 4, 3, 3)},
                                          lambda r: (r("g"), r("x"), r("w"), None, *convolution_arguments(),
                                                     numbers(False, True, False))),
    "attention": ("aten._scaled_dot_product_flash_attention_for_cpu.default",
                  {"q": (2, 2, 8, 16), "k": (2, 2, 8, 16), "v": (2, 2, 8, 16)},
                  lambda r: (r("q"), r("k"), r("v"), 0.0, True)),
    "a call through Python": ("aten.cumsum.default", {"x": (3, 4)}, lambda r: (r("x"), 1)),
    "a list of tensors": ("aten.cat.default", {"x": (3, 4), "z": (2, 4)}, lambda r: (List((r("x"), r("z"))), 0)),
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name, executor, directory):
    target, shapes, arguments = CALLS[name]
    torch.manual_seed(0)
    tensors = {key: torch.randn(shape) for key, shape in shapes.items()}
    args = arguments(Ref)
    operator = getattr(torch.ops.aten, target.split(".")[1]).default

    def value(arg):
        if isinstance(arg, List):
            return [value(item) for item in arg.items]
        return tensors[arg.name] if isinstance(arg, Ref) else arg

    expected = operator(*(value(arg) for arg in args))
    run = load(emit(call_graph(target, args, tensors, expected), Options()), directory, executor=executor)
    wanted = [e for e in (expected if isinstance(expected, tuple) else (expected,)) if e is not None]
    for _ in range(2):
        for found, want in zip(run(*tensors.values()), wanted, strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0)
            assert found.stride() == want.stride()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_attention_backward(executor, directory):
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(2, 2, 8, 16) for _ in range(4))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    tensors = {"g": g, "q": q, "k": k, "v": v, "o": out, "l": lse}
    target = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, lse, 0.0, False)
    args = (*map(Ref, tensors), 0.0, False)
    run = load(emit(call_graph(target, args, tensors, expected), Options()), directory, executor=executor)
    for found, want in zip(run(*tensors.values()), expected, strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0)


ODD = {
    "empty": torch.empty(0),
    "empty rows": torch.empty(3, 0, 2),
    "no dimensions": torch.tensor(2.5),
    "one element": torch.tensor([[1.5]]),
    "transposed": torch.randn(5, 3).t(),
    "every other": torch.randn(4, 10)[:, ::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "special values": torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40]),
    "bfloat16": torch.randn(33).to(torch.bfloat16),
    "float16": torch.randn(33).to(torch.float16),
    "float64": torch.randn(33, dtype=torch.float64),
    "int64": torch.tensor([-(2**63), 2**63 - 1, 0, -1]),
    "int8": torch.tensor([-128, 127, 0], dtype=torch.int8),
    "uint8": torch.tensor([0, 255, 128], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ODD)
def test_odd_inputs(name, executor, directory):
    x = ODD[name]
    op = "logical_not" if x.dtype == torch.bool else "neg"
    expected = torch.logical_not(x) if x.dtype == torch.bool else -x
    run = load(emit(pointwise(op, x), Options()), directory, executor=executor)
    (found,) = run(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert found.is_contiguous()


def test_inputs_of_another_type_are_refused(directory):
    x = torch.randn(4, 6)
    run = load(emit(pointwise("neg", x), Options()), directory)
    torch.testing.assert_close(run(torch.nn.Parameter(x))[0], -x)
    for wrong in (x.double(), x[:3], x.t().contiguous().t(), x.unsqueeze(0), 3.0, None):
        with pytest.raises(WrongInput, match="CG008"):
            run(wrong)
    with pytest.raises(WrongInput, match="2 inputs for a unit that takes 1"):
        run(x, x)
    torch.testing.assert_close(run(x)[0], -x)  # and it works on afterwards


def gather_graph(rows, count, check):
    buffers = (
        Buffer("at", TensorType("int64", (count,), (1,)), "input"),
        Buffer("x", TensorType("float32", (rows,), (1,)), "input"),
        Buffer("y", TensorType("float32", (count,), (1,)), "kernel"),
    )
    i = Index(0, (Term(1, AxisAtom("i")),))
    body = (
        Load("raw", "at", i, "int64"),
        Compute("row", check, (Ref("raw"), rows), "int64"),
        Load("v", "x", Index(0, (Term(1, ValueAtom("row")),)), "float32"),
        Store("y", i, Ref("v")),
    )
    steps = (Kernel("gather", (Axis("i", count),), (Section((), body),)),)
    return LoopGraph(buffers=buffers, inputs=("at", "x"), outputs=(Ref("y"),), steps=steps)


@pytest.mark.parametrize(("check", "least"), [("check_index", 0), ("wrap_index", -5)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_index_out_of_range_is_an_error(executor, check, least, directory):
    run = load(emit(gather_graph(5, 3, check), Options()), directory, executor=executor)
    x = torch.arange(5.0)
    assert run(torch.tensor([1, least, 4]), x)[0].tolist() == [1.0, 0.0, 4.0]
    for bad in (5, least - 1, 2**40, -(2**40), 2**63 - 1, -(2**63)):
        with pytest.raises(IndexOutOfRange):
            run(torch.tensor([0, bad, 1]), x)
    assert run(torch.tensor([1, 2, 3]), x)[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_integer_division_by_zero_is_an_error(executor, directory):
    a, b = torch.tensor([7, -7, 7]), torch.tensor([2, 2, -2])
    run = load(emit(pointwise("floor_div", a, b), Options()), directory, executor=executor)
    assert run(a, b)[0].tolist() == [3, -4, -4]
    with pytest.raises(IntegerDivisionByZero):
        run(a, torch.tensor([1, 0, 1]))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_failing_operator_raises_its_own_error(executor, directory):
    x = torch.randn(4, 4)
    graph = call_graph("aten.cholesky.default", (Ref("x"),), {"x": x}, torch.empty(4, 4))
    run = load(emit(graph, Options()), directory, executor=executor)
    with pytest.raises(RuntimeError, match="positive-definite"):
        run(-torch.eye(4))
    torch.testing.assert_close(run(torch.eye(4))[0], torch.eye(4))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_result_of_another_dtype_is_refused(executor, directory):
    x = torch.randn(3, 4)
    graph = call_graph("aten.sum.dim_IntList", (Ref("x"), numbers(1)), {"x": x}, torch.empty(3, dtype=torch.float64))
    with pytest.raises(WrongResult, match="CG011"):
        load(emit(graph, Options()), directory, executor=executor)(x)
    step = Extern("aten.sum.dim_IntList", (Ref("x"), numbers(1)), {"dtype": DTypeArg("float64")}, ("y0",))
    asked = LoopGraph(buffers=graph.buffers, inputs=graph.inputs, outputs=graph.outputs, steps=(step,))
    (found,) = load(emit(asked, Options()), directory, executor=executor)(x)
    torch.testing.assert_close(found, x.double().sum(1))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("target", ["aten.sort.default", "aten.mm.default"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_view_of_an_input_lies_where_the_input_does(target, offset, executor, directory):
    storage = torch.randn(12)
    x = storage[offset : offset + 8 : 2]
    square = x.view(2, 2)
    mm = target == "aten.mm.default"
    results = (square @ square,) if mm else torch.sort(square)
    stated = TensorType("float32", (4,), (2,), 1)  # the graph was made for another place in a storage
    window = TensorType("float32", (2, 2), (4, 2), 1)
    names = tuple(f"y{number}" for number in range(len(results)))
    graph = LoopGraph(
        buffers=(
            Buffer("x", stated, "input"), Buffer("v", window, "view", "x"),
            *(Buffer(name, type_of(result), "extern") for name, result in zip(names, results, strict=True)),
        ),
        inputs=("x",), outputs=tuple(map(Ref, names)),
        steps=(Extern(target, (Ref("v"), Ref("v")) if mm else (Ref("v"),), {}, names),),
    )  # fmt: skip
    found = load(emit(graph, Options()), directory, executor=executor)(x)
    for one, expected in zip(found, results, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_result_repeats_where_its_type_says_so(executor, directory):
    x = torch.randn(3, 1, dtype=torch.complex64).expand(3, 4)
    graph = call_graph("aten._conj_physical.default", [Ref("x")], {"x": x}, x)
    (found,) = load(emit(graph, Options()), directory, executor=executor)(x)
    assert found.stride() == (1, 0)
    assert torch.equal(found, x.conj())


def test_no_memory_is_shared_between_calls_in_progress(directory):
    """Threads inside the same unit at the same time; each holds on to its results."""
    x = torch.randn(64, 64)
    types = type_of(x)
    names = ("m0", "m1", "m2")
    buffers = (Buffer("x", types, "input"), *(Buffer(n, types, "extern") for n in names))
    chain = zip(("x", *names), names, strict=False)
    steps = tuple(Extern("aten.mm.default", (Ref(a), Ref("x")), {}, (b,)) for a, b in chain)
    run = load(emit(LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("m2"),), steps=steps), Options()), directory)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(64, 64, generator=generator) / 8
            (found,) = run(x)
            if not torch.allclose(found, x @ x @ x @ x, atol=1e-4):
                wrong.append(seed)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN in this torch")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_site_packs_its_weight_once(directory, monkeypatch, executor):
    """And again when the weight has changed."""
    packs = []
    pack = cpu_products._pack
    monkeypatch.setattr(cpu_products, "_pack", lambda x, *rest: packs.append(x) or pack(x, *rest))
    x, weight = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), torch.randn(4, 3, 3, 3)
    args = (Ref("x"), Ref("w"), None, List((1, 1)), List((1, 1)), List((1, 1)), 1, "relu", None)
    result = x.new_empty(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    graph = call_graph("stagefold.convolution.default", args, {"x": x, "w": weight}, result)
    run = load(emit(graph, Options()), directory, executor=executor)
    for number in (1, 1, 2):
        if number > len(packs):
            weight.mul_(2)
        (found,) = run(x, weight)
        torch.testing.assert_close(found, torch.relu(torch.conv2d(x, weight, padding=1)), rtol=1e-4, atol=1e-5)
        assert len(packs) == number


@pytest.mark.parametrize("executor", EXECUTORS)
def test_weights_that_this_processor_cannot_pack_are_used_as_they_are(directory, monkeypatch, executor):
    """The program may come from another machine."""
    monkeypatch.setattr(cpu_products, "can_pack", lambda dtype: dtype is not torch.bfloat16)
    monkeypatch.setattr(cpu_products, "_pack", lambda *args: pytest.fail("asked to pack"))
    x, weight = torch.randn(2, 3, 8, 8).bfloat16(), torch.randn(4, 3, 3, 3).bfloat16()
    args = (Ref("x"), Ref("w"), None, List((1, 1)), List((1, 1)), List((1, 1)), 1, "relu", None)
    graph = call_graph("stagefold.convolution.default", args, {"x": x, "w": weight}, x.new_empty(2, 4, 8, 8))
    (found,) = load(emit(graph, Options()), directory, executor=executor)(x, weight)
    torch.testing.assert_close(found, torch.relu(torch.conv2d(x, weight, padding=1)))


def test_tensors_are_not_leaked(directory):
    x = torch.randn(8, 8)
    graph = call_graph("aten.tanh.default", (Ref("x"),), {"x": x}, x)
    run = load(emit(graph, Options()), directory)
    before = sys.getrefcount(x)
    results = [run(x) for _ in range(20)]
    assert sys.getrefcount(x) == before
    assert len({result[0].data_ptr() for result in results}) == 20
    watched = [weakref.ref(result[0]) for result in results]
    del results
    assert not any(reference() is not None for reference in watched)


def test_inference_mode_may_come_and_go(directory):
    """Tensors on the arena are made at the first call, whatever mode that is in, and serve all later ones."""
    x = torch.randn(4, 4)
    types = type_of(x)
    buffers = (Buffer("x", types, "input"), Buffer("a", types, "extern"), Buffer("b", types, "extern"))
    steps = (
        Extern("aten.mm.default", (Ref("x"), Ref("x")), {}, ("a",)),
        Extern("aten.mm.default", (Ref("a"), Ref("x")), {}, ("b",)),
    )
    graph = LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("b"),), steps=steps)
    unit = emit(graph, Options())
    for first in (torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
        run = load(unit, directory)
        with first:
            torch.testing.assert_close(run(x)[0], x @ x @ x)
        torch.testing.assert_close(run(x)[0], x @ x @ x)
        with torch.inference_mode():
            torch.testing.assert_close(run(x)[0], x @ x @ x)
        (found,) = run(x)
        assert not found.is_inference()
        found.add_(1)


# Inputs that the caller gives up, as one list.


def two_calls():
    """exp(neg(x)) by two calls."""
    kind = type_of(torch.ones(3))
    buffers = (Buffer("x", kind, "input"), Buffer("y", kind, "extern"), Buffer("z", kind, "extern"))
    steps = (
        Extern("aten.neg.default", (Ref("x"),), {}, ("y",)),
        Extern("aten.exp.default", (Ref("y"),), {}, ("z",)),
    )
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("z"),), steps=steps)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_list_of_inputs_is_emptied(executor, directory):
    run = load(emit(two_calls(), Options()), directory, executor=executor)
    x = torch.randn(3)
    given = [x]
    (z,) = run(given)
    torch.testing.assert_close(z, x.neg().exp())
    assert given in ([], [None])
    torch.testing.assert_close(run(x)[0], z)


def test_an_input_that_only_the_list_held_is_gone_after_its_last_use(directory):
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((str(func), reference() is None))
            return func(*args, **(kwargs or {}))

    run = load(emit(two_calls(), Options()), directory)
    seen: list = []
    x = torch.randn(3)
    expected = x.neg().exp()
    reference = weakref.ref(x)
    given = [x]
    del x
    with Watch():
        (z,) = run(given)
    torch.testing.assert_close(z, expected)
    assert seen == [("aten.neg.default", False), ("aten.exp.default", True)]


def test_a_wrong_list_is_refused_and_kept(directory):
    run = load(emit(two_calls(), Options()), directory)
    given = [torch.randn(4)]
    with pytest.raises(WrongInput):
        run(given)
    assert len(given) == 1
    assert given[0] is not None


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_empty_list_gives_back_what_is_kept_between_runs(executor, directory):
    run = load(emit(two_calls(), Options()), directory, executor=executor)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(run(x)[0], x.neg().exp())
        assert run([]) == ()


def test_inputs_at_odd_addresses_are_copied_for_a_gpu_where_nobody_can_tell():
    """(The types say where memory is; these tensors are on the CPU.)"""
    type_ = TensorType("float32", (2, 3), (3, 1), 0, "cuda:0")
    names = ("read", "written", "returned", "handed")
    buffers = [Buffer(name, type_, "input") for name in names] + [Buffer("y", type_, "extern")]
    graph = LoopGraph(
        buffers=tuple(buffers), inputs=names, outputs=(Ref("y"), Ref("returned")),
        steps=(Extern("aten.mish.default", (Ref("handed"),), {}, ("y",)),),
    )  # fmt: skip
    unit = msgspec.structs.replace(emit(graph, Options(target="triton")), written=("written",))
    again = Again(unit)
    memory = torch.arange(8.0)
    odd, even = memory[1:7].view(2, 3), memory[:6].view(2, 3)
    assert again.inputs([even] * 4) is None
    assert again.inputs([even, odd, odd, odd]) is None
    given = [odd, even, odd, odd]
    moved = again.inputs(given)
    assert torch.equal(moved[0], odd)
    assert moved[0].data_ptr() % 16 == 0
    assert [one is other for one, other in zip(moved, given, strict=True)] == [False, True, True, True]
    repeated = memory[1:3].as_strided((2, 3), (1, 0))
    assert again.inputs([repeated, *given[1:]])[0].stride() == (1, 0)
