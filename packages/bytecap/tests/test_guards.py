"""Guard programs: what holds, what fails, what is never run, and the sentence for a failure."""

from __future__ import annotations

import collections
import enum
import gc
import itertools
import math
import random
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn

from bytecap import _evalframe, hook
from bytecap.guards import (
    GuardDoesNotHold,
    GuardError,
    GuardProgram,
    compile_guards,
    explain,
    native,
    print_guard,
    print_source,
    with_relations,
)
from bytecap.hook import Entry, FrameView, Owner, call_with_owner
from bytecap.testing import frame_view
from stagewire import graph
from stagewire.capture import (
    Attribute,
    Builtin,
    Cell,
    DictKey,
    DictValue,
    Distinct,
    Equals,
    Global,
    GlobalState,
    HandleSource,
    HasAttribute,
    HasKey,
    IdentityIs,
    Item,
    KeysAre,
    LengthIs,
    Local,
    Relation,
    SameObject,
    Symbol,
    TensorIs,
    TypeIs,
    TypeOf,
)
from stagewire.expr import Expr, parse_expr
from stagewire.graph import SourceLine
from stagewire.types import TensorType

X = Local("x")
LAYOUTS = ("offsets", "attributes")


@pytest.fixture(params=LAYOUTS)
def layout(request):
    """Every way to read a tensor must give the same answers."""
    before = _evalframe.tensor_layout()["layout"]
    if LAYOUTS.index(request.param) < LAYOUTS.index(before):
        pytest.skip(f"{request.param} did not verify for this torch")
    _evalframe.use_tensor_layout(request.param)
    yield request.param
    _evalframe.use_tensor_layout(before)


def tensor_type(t: torch.Tensor, **changes: object) -> TensorType:
    fields = {
        "dtype": native.NAMES_BY_DTYPE[t.dtype],
        "shape": tuple(t.shape),
        "stride": tuple(t.stride()),
        "storage_offset": t.storage_offset(),
        "device": str(t.device),
        "requires_grad": t.requires_grad,
    }
    return TensorType(**(fields | changes))


def tensor_guard(t: torch.Tensor, source=X, is_leaf: bool | None = None) -> TensorIs:
    name = f"{type(t).__module__}.{type(t).__qualname__}"
    return TensorIs(source, tensor_type(t), name, is_leaf)


def program_for(guards, value: object, **options) -> GuardProgram:
    return compile_guards(guards, {"x": value}, **options)


def verdicts(program: GuardProgram, *values: object) -> list[bool]:
    return [program.check({"x": value}) for value in values]


# ---- literals and containers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "same", "others"),
    [
        (3, [3], [4, True, 3.0, "3", None]),
        (True, [True], [1, False]),
        (None, [None], [0, False]),
        (0.0, [0.0], [-0.0, 0, 1e-300]),
        (graph.NonFinite("nan"), [math.nan, float("nan")], [0.0, math.inf]),
        ("ab", ["ab", "".join(["a", "b"])], ["abc", b"ab"]),
        (10**30, [10**30], [10**30 + 1]),
        (graph.Tuple((1, 2)), [(1, 2)], [[1, 2], (1, 2, 3), (1, True), (1, 2.0)]),
        (graph.List((1, "a")), [[1, "a"]], [(1, "a"), [1], [1, "b"]]),
        (graph.Dict((("a", 1),)), [{"a": 1}], [{"a": 2}, {"b": 1}, {}, {"a": True}]),
        (graph.Slice(None, 3, None), [slice(3)], [slice(4), slice(0, 3), 3]),
        (graph.Ellipsis(), [...], [None]),
        (graph.Complex(1.0, -0.0), [complex(1, -0.0)], [complex(1, 0.0), 1.0]),
        (graph.DTypeArg("float32"), [torch.float32], [torch.float64, "float32"]),
        (graph.DeviceArg("cpu"), [torch.device("cpu")], [torch.device("meta"), "cpu"]),
        (graph.MemoryFormatArg("channels_last"), [torch.channels_last], [torch.preserve_format]),
        (graph.LayoutArg("strided"), [torch.strided], [torch.sparse_coo]),
    ],
)
def test_equals(literal, same, others) -> None:
    program = program_for([Equals(X, literal)], same[0])
    assert verdicts(program, *same) == [True] * len(same)
    assert verdicts(program, *others) == [False] * len(others)


def test_equals_on_named_tuples_and_sizes_compares_exact_types() -> None:
    Pair = collections.namedtuple("Pair", "a b")
    program = program_for([Equals(X, graph.Tuple((1, 2)))], (1, 2))
    assert verdicts(program, Pair(1, 2), torch.Size((1, 2))) == [False, False]


def test_length() -> None:
    program = program_for([LengthIs(X, 2)], (1, 2))
    assert verdicts(program, [1, 2], {"a": 1, "b": 2}, {1, 2}, "ab", range(2)) == [True] * 5
    assert verdicts(program, [1], (), 3, None) == [False] * 4


def test_keys_in_order() -> None:
    program = program_for([KeysAre(X, ("a", 1))], {"a": 0, 1: 0})
    good = {"a": 5, 1: 6}
    assert verdicts(program, good, good, {1: 6, "a": 5}, {"a": 5}, {"a": 5, True: 6}) == [
        True, True, False, False, False,
    ]  # fmt: skip
    good["z"] = 1
    assert verdicts(program, good) == [False]
    del good["z"]
    assert verdicts(program, good) == [True]
    ordered = collections.OrderedDict(good)
    assert verdicts(program, ordered) == [True]
    ordered.move_to_end("a")
    assert verdicts(program, ordered) == [False]


def test_has_key() -> None:
    program = program_for([HasKey(X, "a", True), HasKey(X, "b", False)], {"a": 1})
    assert verdicts(program, {"a": 2, "c": 1}, {"a", "c"}) == [True, True]
    assert verdicts(program, {"a": 1, "b": 1}, {}, [], {"b"}) == [False] * 4


def test_dict_keys_and_values_by_position() -> None:
    guards = [Equals(DictKey(X, 1), "b"), Equals(DictValue(X, 1), 7)]
    program = program_for(guards, {"a": 1, "b": 7})
    table = {"a": 1, "b": 7}
    assert verdicts(program, table, table) == [True, True]
    table["b"] = 8
    assert verdicts(program, table, {"a": 1}, {"b": 7, "a": 1}, [("b", 7)]) == [False] * 4


def test_items() -> None:
    guards = [Equals(Item(Item(X, -1), "k"), 3)]
    program = program_for(guards, [0, {"k": 3}])
    assert verdicts(program, ({"k": 3},), [{"k": 3}]) == [True, True]
    assert verdicts(program, [], [{}], {"k": 3}, 5, [[3]]) == [False] * 5


# ---- types, identity, attributes -----------------------------------------------------------


class Point:
    scale = 2

    def __init__(self, x: int) -> None:
        self.x = x

    def method(self) -> int:
        return self.x

    @property
    def double(self) -> int:
        raise AssertionError("a guard ran a property")

    @classmethod
    def make(cls) -> Point:
        return cls(0)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: int) -> None:
        self.a = a


class Lying:
    def __getattr__(self, name: str) -> int:
        raise AssertionError("a guard ran __getattr__")


class Paranoid:
    def __getattribute__(self, name: str) -> int:
        raise AssertionError("a guard ran __getattribute__")

    def __len__(self) -> int:
        raise AssertionError("a guard ran __len__")

    def __getitem__(self, key: object) -> int:
        raise AssertionError("a guard ran __getitem__")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a guard ran __eq__")

    __hash__ = None


def test_type_is_exact() -> None:
    class Child(Point):
        pass

    program = program_for([TypeIs(X, "test_guards.Point")], Point(1))
    assert verdicts(program, Point(2), Child(2), Point) == [True, False, False]


def test_identity() -> None:
    point = Point(1)
    program = program_for([IdentityIs(X, "point")], point)
    assert verdicts(program, point, Point(1)) == [True, False]
    named = compile_guards([IdentityIs(X, "other")], {"x": 1}, objects={"other": 7}, verify=False)
    assert verdicts(named, 7, 1) == [True, False]


def test_attributes_of_instances() -> None:
    program = program_for([Equals(Attribute(X, "x"), 5)], Point(5))
    assert verdicts(program, Point(5), Point(6), Slotted(5), None) == [True, False, False, False]
    point = Point(5)
    assert verdicts(program, point, point) == [True, True]
    point.x = 6
    assert verdicts(program, point) == [False]
    point.x = 5
    assert verdicts(program, point) == [True]
    del point.x
    assert verdicts(program, point) == [False]
    Point.x = 5
    try:
        assert verdicts(program, point) == [True]
    finally:
        del Point.x
    assert verdicts(program, point) == [False]
    slotted = program_for([Equals(Attribute(X, "a"), 5)], Slotted(5))
    assert verdicts(slotted, Slotted(5), Slotted(6), Slotted.__new__(Slotted)) == [
        True, False, False,
    ]  # fmt: skip


def test_class_attributes_and_methods() -> None:
    guards = [
        Equals(Attribute(X, "scale"), 2),
        Equals(Attribute(TypeOf(X), "scale"), 2),
        IdentityIs(Attribute(TypeOf(X), "method"), "Point.method"),
        IdentityIs(Attribute(Attribute(X, "method"), "__func__"), "Point.method"),
        IdentityIs(Attribute(Attribute(X, "make"), "__self__"), "Point"),
        Equals(Attribute(TypeOf(X), "__name__"), "Point"),
    ]
    program = program_for(guards, Point(1))
    point = Point(1)
    assert verdicts(program, point, point) == [True, True]
    point.scale = 3
    assert verdicts(program, point) == [False]
    assert explain(program, {"x": point}) == "x.scale was 2 and is 3"
    original = Point.method
    Point.method = lambda self: 0
    try:
        assert verdicts(program, Point(1)) == [False]
    finally:
        Point.method = original
    assert verdicts(program, Point(1)) == [True]


def test_user_code_never_runs() -> None:
    for source in (Attribute(X, "double"), Attribute(X, "missing"), Item(X, 0)):
        program = compile_guards([Equals(source, 1)], {"x": Point(1)}, verify=False)
        assert verdicts(program, Point(1), Lying(), Paranoid()) == [False] * 3
    for guard in (LengthIs(X, 0), Equals(X, 1), HasKey(X, 1, True), KeysAre(X, ())):
        program = compile_guards([guard], {"x": 1}, verify=False)
        assert verdicts(program, Paranoid(), Lying()) == [False] * 2
    with pytest.raises(GuardError, match="without running user code"):
        program_for([TypeIs(Attribute(X, "double"), "int")], Point(1))


def test_has_attribute() -> None:
    point = Point(1)
    program = program_for(
        [HasAttribute(X, "x", True), HasAttribute(X, "extra", False), HasAttribute(X, "scale", True)],
        point,
    )
    assert verdicts(program, point, Point(3)) == [True, True]
    point.extra = 1
    assert verdicts(program, point) == [False]
    unknown = compile_guards([HasAttribute(X, "extra", False)], {"x": 1})
    # only its __getattr__ could tell
    assert verdicts(unknown, Lying(), Paranoid(), 3) == [False, False, True]


def test_modules_and_enums() -> None:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    guards = [
        IdentityIs(Attribute(Attribute(Global("torch"), "nn"), "functional"), "F"),
        IdentityIs(Attribute(X, "RED"), "Color.RED"),
    ]
    view = frame_view(lambda x: x, {"x": Color})
    program = compile_guards(guards, view, objects={"F": nn.functional, "Color.RED": Color.RED})
    assert program.check(view)
    plain = compile_guards([Equals(Attribute(X, "value"), 1)], {"x": types.SimpleNamespace(value=1)})
    assert verdicts(plain, types.SimpleNamespace(value=1), types.SimpleNamespace()) == [True, False]
    module = types.ModuleType("made_up")
    module.value = 1
    assert verdicts(plain, module) == [True]


# ---- nn.Module -----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)])
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers[1](self.layers[0](x)))


SELF = Local("self")


def module_guards(module: nn.Module) -> list:
    guards = []
    for name, child in module.named_modules():
        source = module_source(name)
        guards.append(TypeIs(source, f"{type(child).__module__}.{type(child).__qualname__}"))
        guards.append(Equals(Attribute(source, "training"), child.training))
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        guards.append(tensor_guard(value, module_source(name)))
    return guards


def module_source(name: str):
    source = SELF
    for part in filter(None, name.split(".")):
        source = Attribute(source, part)
    return source


def test_module_attributes_are_found_as_module_getattr_finds_them() -> None:
    net = Net()
    program = compile_guards(module_guards(net), {"self": net})
    scope = {"self": net}
    assert program.check(scope)
    assert program.check(scope)
    assert program.check({"self": Net()})
    net.eval()
    assert explain(program, scope) == "self.training was True and is False"
    net.train()
    assert program.check(scope)
    old = net.layers[0]
    net.layers[0] = nn.Linear(2, 4)
    assert explain(program, scope) == "self.layers.0.weight.shape[0] was 3 and is 4".replace(
        "self.layers.0", "getattr(self.layers, '0')"
    )
    net.layers[0] = old
    assert program.check(scope)
    old.weight.requires_grad_(False)
    assert "requires_grad was True and is False" in explain(program, scope)
    old.weight.requires_grad_(True)
    old.bias = None
    assert "bias was a tensor and is NoneType" in explain(program, scope)
    old.bias = nn.Parameter(torch.zeros(3))
    assert program.check(scope)
    net.norm.running_mean = net.norm.running_mean.double()
    assert "running_mean.dtype was float32 and is float64" in explain(program, scope)
    del net.norm.running_mean
    assert explain(program, scope) == "self.norm.running_mean was a tensor and is missing"


def test_instance_attribute_hides_a_registered_one() -> None:
    layer = nn.Linear(2, 2)
    program = compile_guards([tensor_guard(layer.weight, Attribute(SELF, "weight"))], {"self": layer})
    assert program.check({"self": layer})
    layer.__dict__["weight"] = 3
    assert not program.check({"self": layer})
    del layer.__dict__["weight"]
    assert program.check({"self": layer})
    layer._buffers["weight"] = layer._parameters.pop("weight")
    assert program.check({"self": layer})


def test_foreign_getattr_on_a_module_is_not_run() -> None:
    class Odd(nn.Module):
        def __getattr__(self, name: str):
            raise AssertionError("a guard ran __getattr__")

    program = compile_guards([HasAttribute(SELF, "weight", True)], {"self": nn.Linear(1, 1)})
    odd = Odd.__new__(Odd)
    odd.__dict__.update(_parameters={}, _buffers={}, _modules={})
    assert not program.check({"self": odd})


# ---- tensors -------------------------------------------------------------------------------


def tensor_variants() -> dict[str, torch.Tensor]:
    base = torch.zeros(4, 6)
    with torch.inference_mode():
        inference = torch.zeros(4, 6)
    return {
        "base": base,
        "int": torch.zeros(4, 6, dtype=torch.int64),
        "bfloat16": torch.zeros(4, 6, dtype=torch.bfloat16),
        "bool": torch.zeros(4, 6, dtype=torch.bool),
        "transposed": torch.zeros(6, 4).t(),
        "expanded": torch.zeros(4, 1).expand(4, 6),
        "strided": torch.zeros(4, 12)[:, ::2],
        "shorter": torch.zeros(4, 5),
        "rank3": torch.zeros(4, 6, 1),
        "scalar": torch.zeros(()),
        "empty": torch.zeros(0, 6),
        "rank6": torch.zeros(1, 2, 1, 3, 1, 4),
        "rank7": torch.zeros(1, 2, 1, 3, 1, 4, 1),
        "leaf": torch.zeros(4, 6, requires_grad=True),
        "nonleaf": torch.zeros(4, 6, requires_grad=True) * 1,
        "parameter": nn.Parameter(torch.zeros(4, 6)),
        "frozen": nn.Parameter(torch.zeros(4, 6), requires_grad=False),
        "meta": torch.zeros(4, 6, device="meta"),
        "complex": torch.zeros(4, 6, dtype=torch.complex64),
        "conj": torch.zeros(4, 6, dtype=torch.complex64).conj(),
        "inference": inference,
        "sparse": torch.zeros(4, 6).to_sparse(),
        "float8": torch.zeros(4, 6).to(torch.float8_e4m3fn),
        "quarter": torch.zeros(4, 6, dtype=torch.uint16),
    }


def test_each_tensor_matches_only_its_own_kind(layout) -> None:
    variants = tensor_variants()
    dense = {name: t for name, t in variants.items() if name != "sparse"}
    for name, tensor in dense.items():
        program = program_for([tensor_guard(tensor, is_leaf=tensor.is_leaf)], tensor)
        matching = {other for other, value in variants.items() if program.check({"x": value})}
        assert matching == {name}
        assert not program.check({"x": None})
        assert not program.check({"x": [tensor]})


def test_leaf_is_only_checked_when_asked(layout) -> None:
    variants = tensor_variants()
    program = program_for([tensor_guard(variants["leaf"])], variants["leaf"])
    assert verdicts(program, variants["leaf"], variants["nonleaf"]) == [True, True]


def test_views_of_what_needs_a_gradient_are_seen(layout) -> None:
    base = torch.zeros(3)
    view = base[:2]
    program = program_for([tensor_guard(view)], view)
    base.mul_(torch.ones(3, requires_grad=True))
    assert view.requires_grad
    assert not program.check({"x": view})


def test_tensor_changed_in_place_is_seen(layout) -> None:
    tensor = torch.zeros(4, 6)
    program = program_for([tensor_guard(tensor)], tensor)
    tensor.resize_(2, 6)
    assert not program.check({"x": tensor})
    tensor.resize_(4, 6)
    assert program.check({"x": tensor})
    tensor.data = torch.zeros(4, 6, dtype=torch.float64)
    assert not program.check({"x": tensor})


def test_subclasses_are_other_types(layout) -> None:
    class Sub(torch.Tensor):
        pass

    plain = torch.zeros(2)
    sub = plain.as_subclass(Sub)
    program = program_for([tensor_guard(plain)], plain)
    assert verdicts(program, plain, sub) == [True, False]
    own = program_for([tensor_guard(sub)], sub)
    assert verdicts(own, sub, plain) == [True, False]


def test_symbols(layout) -> None:
    n, m = Expr("n"), Expr("m")
    value = torch.zeros(4, 6)
    guards = [
        TensorIs(X, tensor_type(value, shape=(n, m), stride=(m, 1))),
        Relation(m, ">=", 2),
        Relation(parse_expr("n % 2"), "==", 0),
    ]
    program = compile_guards(guards, {"x": value})
    assert verdicts(program, torch.zeros(8, 5), torch.zeros(2, 2)) == [True, True]
    # stride is not m; n is odd; m is too small; not contiguous
    others = (torch.zeros(8, 10)[:, ::2], torch.zeros(3, 5), torch.zeros(4, 1), torch.zeros(6, 4).t())
    assert verdicts(program, *others) == [False] * 4
    broken = str(parse_expr("n % 2"))
    assert explain(program, {"x": torch.zeros(3, 5)}) == f"{broken} == 0 does not hold any more"


def test_relations_that_are_found_later(layout) -> None:
    n, m = Expr("n"), Expr("m")
    value, numbers = torch.zeros(4, 6), {}
    guards = [TensorIs(X, tensor_type(value, shape=(n, m), stride=(m, 1))), Relation(m, ">=", 2), Equals(Local("y"), 3)]
    program = compile_guards(guards, {"x": value, "y": 3}, inputs=[X], numbers=numbers)
    more = with_relations(program, [Relation(n, "<=", m), Relation(parse_expr("n % 2"), "==", 0)], numbers)
    for y, shape in itertools.product((3, 4), itertools.product(range(1, 6), repeat=2)):
        scope = {"x": torch.zeros(shape), "y": y}
        assert program.check(scope) == (y == 3 and shape[1] >= 2)
        assert more.check(scope) == (y == 3 and 2 <= shape[1] >= shape[0] and shape[0] % 2 == 0)
    assert more.inputs({"x": value, "y": 3}) == (value,)
    assert explain(more, {"x": torch.zeros(4, 3), "y": 3}) == "n <= m does not hold any more"


def test_a_size_that_another_input_has_no_longer_is_explained(layout) -> None:
    """The sentence compared each tensor by itself, and told of dispatch keys that were the same."""
    n, value = Expr("n"), torch.zeros(4)
    guards = [TensorIs(Local(name), tensor_type(value, shape=(n,))) for name in "xy"]
    program = compile_guards(guards, {"x": value, "y": value})
    scope = {"x": torch.zeros(5), "y": torch.zeros(3)}
    assert explain(program, scope) == "y.shape[0] was n = 5 and is 3"
    names = [Symbol("n", Local("rows"), 4)]
    assert explain(program, scope, names) == "y.shape[0] was rows = 5 and is 3"
    square = [TensorIs(X, tensor_type(torch.zeros(4, 4), shape=(n, n), stride=(n, 1)))]
    program = compile_guards(square, {"x": torch.zeros(4, 4)})
    assert explain(program, {"x": torch.zeros(3, 6)[:, ::2]}) == "x.stride(0) was n = 3 and is 6"


def test_compound_sizes_and_symbol_sources(layout) -> None:
    n = Expr("n")
    value = torch.zeros(8, 3)
    guards = [TensorIs(X, tensor_type(value, shape=(n * 2, 3)))]
    symbols = [Symbol("n", Local("n"), 4, lower=2, upper=100)]
    program = compile_guards(guards, {"x": value, "n": 4}, symbols=symbols)
    assert program.check({"x": torch.zeros(12, 3), "n": 6})
    assert not program.check({"x": torch.zeros(12, 3), "n": 5})
    assert not program.check({"x": torch.zeros(2, 3), "n": 1})
    assert not program.check({"x": torch.zeros(202, 3), "n": 101})
    assert not program.check({"x": torch.zeros(12, 3), "n": 6.0})
    assert not program.check({"x": torch.zeros(12, 3), "n": 10**30})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a // b", {"a": -7, "b": 2}), ("a % b", {"a": -7, "b": 3}), ("a % b", {"a": 7, "b": -3}),
        ("Min(a, b) + Max(a, b)", {"a": 3, "b": 9}), ("a*b - a", {"a": 5, "b": -4}),
        ("a**2 - 3*b", {"a": 5, "b": 4}),
    ],
)  # fmt: skip
def test_relations_compute_as_python_does(text, values) -> None:
    from stagewire.expr import evaluate

    expression = parse_expr(text)
    expected = evaluate(expression, values)
    symbols = [Symbol(name, Local(name), value, lower=None) for name, value in values.items()]
    for operator in ("==", "!=", "<", "<=", ">", ">="):
        for right in (expected - 1, expected, expected + 1):
            relation = Relation(expression, operator, right)
            program = compile_guards([relation], values, symbols=symbols, verify=False)
            assert program.check(values) == eval(f"{expected} {operator} {right}")


def test_relations_that_cannot_be_computed_fail() -> None:
    symbols = [Symbol("a", Local("a"), 1, lower=None)]
    huge = Relation(parse_expr("a*a*a"), ">", 0)
    program = compile_guards([huge], {"a": 2}, symbols=symbols)
    assert not program.check({"a": 2**40})
    divided = Relation(parse_expr("7 // a"), ">=", 0)
    program = compile_guards([divided], {"a": 2}, symbols=symbols)
    assert not program.check({"a": 0})


# ---- state of torch ------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["native", "python"])
def state_reading(request):
    if request.param and not native.READING.native_state:
        pytest.skip("the native reading did not verify for this torch")
    _evalframe.use_native_state(request.param)
    yield request.param
    _evalframe.use_native_state(native.READING.native_state)


def test_global_state(state_reading) -> None:
    program = compile_guards([GlobalState(grad_enabled=True)], {})
    assert program.check({})
    with torch.no_grad():
        assert explain(program, {}) == "grad mode was on and is off"
        assert compile_guards([GlobalState(grad_enabled=False)], {}).check({})
    with torch.inference_mode():
        assert not program.check({})
        inference = GlobalState(grad_enabled=False, inference_mode=True)
        inside = compile_guards([inference], {})
        assert inside.check({})
    assert not inside.check({})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert explain(program, {}) == "autocast on cpu was off and is bfloat16"
        cast = GlobalState(grad_enabled=True, autocast=(("cpu", "bfloat16"),))
        inside = compile_guards([cast], {})
        assert inside.check({})
    assert not inside.check({})
    with torch.autocast("cpu", dtype=torch.float16):
        assert not inside.check({})
    torch.set_default_dtype(torch.float64)
    try:
        assert explain(program, {}) == "the default dtype was float32 and is float64"
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert explain(program, {}) == "deterministic algorithms was off and is on"
    finally:
        torch.use_deterministic_algorithms(False)
    assert program.check({})


def test_active_modes_and_transforms_fail_the_state(state_reading) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    program = compile_guards([GlobalState(grad_enabled=True)], {})
    with TorchFunctionMode():
        assert not program.check({})
    with TorchDispatchMode():
        assert not program.check({})
    assert program.check({})


def test_state_is_per_thread(state_reading) -> None:
    program = compile_guards([GlobalState(grad_enabled=True)], {})
    found = []

    def work() -> None:
        with torch.no_grad():
            found.append(program.check({}))
        found.append(program.check({}))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False, True]


# ---- scopes --------------------------------------------------------------------------------


SETTING = 5


def test_globals_builtins_cells_and_functions() -> None:
    free = [1]

    def inner() -> list[int]:
        return free

    def function(a):
        return inner() and len(a) + SETTING

    guards = [
        Equals(Global("SETTING"), 5),
        IdentityIs(Builtin("len"), "len"),
        IdentityIs(Cell("inner"), "inner"),
        Equals(Item(Cell("free", Cell("inner")), 0), 1),
        Equals(Global("maxsize", "sys"), sys.maxsize),
    ]
    view = frame_view(function, {"a": ()})
    program = compile_guards(guards, view)
    entry = Entry(program, function.__code__)
    owner = Owner(lambda view: entry)
    hook.enable(function.__code__, owner)
    namespace = globals()

    def hits() -> bool:
        before = owner.hits
        call_with_owner(owner, function, ())
        held = owner.hits > before
        assert program.check(view) == held
        return held

    assert hits()
    for name, value in (("SETTING", 6), ("len", max)):
        old = namespace.get(name)
        namespace[name] = value if name != "len" else (lambda a: 0)
        assert not hits()
        if old is None:
            del namespace[name]
        else:
            namespace[name] = old
        assert hits()
    free[0] = 2
    assert not hits()
    free[0] = 1
    assert hits()


def test_locals_are_read_from_the_frame() -> None:
    def function(a, *rest, k, **named):
        return (a, rest, k, named)

    guards = [
        Equals(Local("a"), 1),
        Equals(Item(Local("rest"), 0), 2),
        Equals(Local("k"), 3),
        Equals(Item(Local("named"), "z"), 4),
    ]
    programs = []

    def callback(view: FrameView) -> Entry:
        programs.append(compile_guards(guards, view))
        return Entry(programs[-1], view.code)

    owner = Owner(callback)
    hook.enable(function.__code__, owner)
    for _ in range(3):
        assert call_with_owner(owner, function, 1, 2, k=3, z=4) == (1, (2,), 3, {"z": 4})
    assert (owner.hits, owner.misses) == (3, 1)
    with pytest.raises(GuardDoesNotHold, match="a was 1 and is 5"):
        call_with_owner(owner, function, 5, 2, k=3, z=4)


def test_same_object() -> None:
    shared = [1]
    guards = [SameObject(Local("x"), Local("y"), True), SameObject(Local("x"), Local("z"), False)]
    program = compile_guards(guards, {"x": shared, "y": shared, "z": [1]})
    assert not program.check({"x": shared, "y": [1], "z": [1]})
    assert not program.check({"x": shared, "y": shared, "z": shared})
    with pytest.raises(GuardError, match="itself"):
        compile_guards([SameObject(X, X, True)], {"x": 1})


class Shouting(dict):
    def __getitem__(self, key):
        raise AssertionError("user code")

    __iter__ = keys = items = __getitem__  # type: ignore[assignment]


class Split:
    """Its instances share the table of their attributes' names."""

    def __init__(self, names: str) -> None:
        for name in names:
            setattr(self, name, name.upper())


def dicts() -> list[dict[object, object]]:
    grown = {number: str(number) for number in range(50)}
    holes = dict(grown)
    for number in (0, 7, 8, 49):
        del holes[number]
    emptied = dict(holes)
    emptied.clear()
    ordered = collections.OrderedDict(grown)
    ordered.move_to_end(3)
    split = [vars(Split(names)) for names in ("abc", "cab")]
    split.append(vars(Split("abcd")))
    del split[-1]["b"]
    return [{}, grown, holes, emptied, ordered, Shouting(grown), Shouting(holes), *split]  # type: ignore[list-item]


@pytest.mark.parametrize("number", range(len(dicts())))
def test_items_of_dicts_by_their_position(number: int) -> None:
    real = dicts()[number]
    ordered = collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict
    expected = [(key, dict.__getitem__(real, key)) for key in ordered.__iter__(real)]
    for index, pair in [*enumerate(expected), (len(real), (None, None)), (10**6, (None, None))]:
        items = [(0, f"dict_{part}", (None, None, index), (), 0) for part in ("key", "value")]
        nodes = [(-1, "local", ("d", None, -1), (), 0), *items]
        assert _evalframe.GuardProgram(tuple(nodes)).values({"d": real}, None)[1:] == pair


def test_distinct() -> None:
    scope = {name: [1] for name in "abcd"}
    guards = [Distinct((Local("a"), Local("c")), (Local("b"), Local("d")))]
    program = compile_guards(guards, scope)
    assert program.check(scope)
    assert program.check({**scope, "b": scope["d"]})  # others are not compared with each other
    for left, right in ("ac", "ab", "ad", "cb", "cd"):
        assert not program.check({**scope, left: scope[right]})
        assert not program.check({**scope, right: scope[left]})
    with pytest.raises(GuardError, match="a is compared with itself"):
        compile_guards([Distinct((Local("a"),), (Local("b"), Local("a")))], scope)
    with pytest.raises(GuardDoesNotHold, match="a and b were two objects and are one"):
        compile_guards(guards, {**scope, "b": scope["a"]})


def test_distinct_of_many() -> None:
    values = [object() for _ in range(500)]
    items = tuple(Item(X, index) for index in range(len(values)))
    program = compile_guards([LengthIs(X, 500), Distinct(items[:200], items[200:])], {"x": values})
    rng = random.Random(0)
    for _ in range(300):
        first, second = rng.sample(range(500), 2)
        changed = [*values]
        changed[second] = changed[first]
        assert program.check({"x": changed}) == (min(first, second) >= 200)
        assert program.check({"x": values})


def test_handles() -> None:
    held = types.SimpleNamespace(value=1)
    guards = [Equals(Attribute(HandleSource("held"), "value"), 1)]
    program = compile_guards(guards, {}, objects={"held": held})
    assert program.check({})
    held.value = 2
    assert not program.check({})
    with pytest.raises(GuardError, match="handle 'held'"):
        compile_guards(guards, {})


def test_shared_prefixes_are_read_once() -> None:
    base = Attribute(X, "a")
    guards = [Equals(Attribute(base, name), 1) for name in "bcd"]
    inner = types.SimpleNamespace(b=1, c=1, d=1)
    program = compile_guards(guards, {"x": types.SimpleNamespace(a=inner)})
    assert program.node_count == 5


def test_many_nodes_and_symbols() -> None:
    values = list(range(300))
    guards = [Equals(Item(X, i), i) for i in values]
    symbols = [Symbol(f"s{i}", Item(X, i), i, lower=None) for i in values]
    program = compile_guards(guards, {"x": values}, symbols=symbols)
    assert program.check({"x": values})
    assert not program.check({"x": [*values[:-1], 0]})


# ---- words ---------------------------------------------------------------------------------


def test_explanations_name_the_line() -> None:
    line = SourceLine("model.py", 12, "forward")
    value = torch.zeros(4, 6)
    program = compile_guards([TensorIs(X, tensor_type(value), line=line)], {"x": value})
    for other, sentence in (
        (torch.zeros(8, 6), "x.shape[0] was 4 and is 8"),
        (torch.zeros(6, 4).t(), "x.stride(0) was 6 and is 1"),
        (torch.zeros(4, 6).double(), "x.dtype was float32 and is float64"),
        (torch.zeros(4), "x.dim() was 2 and is 1"),
        (torch.zeros(4, 6, device="meta"), "x.device was cpu and is meta"),
        ([], "x was a tensor and is list"),
        (nn.Parameter(value), "the type of x was torch.Tensor and is torch.nn.parameter.Parameter"),
    ):
        assert explain(program, {"x": other}) == f"{sentence} (read at model.py:12)"
    assert explain(program, {}) == "x was a tensor and is missing (read at model.py:12)"
    assert explain(program, {"x": value}) is None


def test_explanations_of_the_other_kinds() -> None:
    point = Point(1)
    cases = [
        (TypeIs(X, "test_guards.Point"), point, 3, "the type of x was test_guards.Point and is int"),
        (IdentityIs(X, "thing"), point, 3, "x was thing and is another object: 3"),
        (LengthIs(X, 2), [1, 2], [1], "len(x) was 2 and is 1"),
        (KeysAre(X, ("a",)), {"a": 1}, {"b": 1}, "the keys of x were ('a') and are ('b',)"),
        (HasKey(X, "a", True), {"a": 1}, {}, "'a' was in x and is not"),
        (HasAttribute(X, "x", True), point, 3, "x had an attribute 'x' and has none"),
    ]
    for guard, good, bad, sentence in cases:
        program = program_for([guard], good)
        assert explain(program, {"x": good}) is None
        assert explain(program, {"x": bad}) == sentence


def test_explanations_of_objects_that_became_one() -> None:
    good = {"x": [[1], [2], [3]]}
    program = compile_guards([Distinct((Item(X, 0), Item(X, 1)), (Item(X, 2),))], good)
    one = good["x"][0]
    assert explain(program, good) is None
    assert explain(program, {"x": [one, [2], one]}) == "x[0] and x[2] were two objects and are one"
    assert explain(program, {"x": [[1], one, one]}) == "x[1] and x[2] were two objects and are one"
    assert explain(program, {"x": [one]}) == "x[1] was there and is missing"


def test_guards_print_as_python_that_agrees() -> None:
    value = torch.zeros(4, 6)
    self = Net()
    scope = {"x": value, "self": self, "n": 3, "t": (1, 2), "d": {"a": 1}, "torch": torch}
    guards = [
        tensor_guard(value, is_leaf=True),
        Equals(Local("n"), 3),
        Equals(Local("t"), graph.Tuple((1, 2))),
        LengthIs(Local("t"), 2),
        KeysAre(Local("d"), ("a",)),
        HasKey(Local("d"), "b", False),
        Equals(DictValue(Local("d"), 0), 1),
        Equals(DictKey(Local("d"), 0), "a"),
        HasAttribute(SELF, "norm", True),
        tensor_guard(self.layers[0].weight, Attribute(Attribute(Attribute(SELF, "layers"), "0"), "weight")),
        SameObject(X, SELF, False),
        Distinct((X, SELF)),
        Distinct((X, SELF), (Local("t"), Local("d"))),
        Distinct((X,), (Local("t"), Local("d"))),
        GlobalState(grad_enabled=True),
        Equals(Attribute(SELF, "training"), True),
    ]
    for guard in guards:
        compile_guards([guard], scope)
        assert eval(print_guard(guard), dict(scope)) is True
    assert print_source(Item(Attribute(SELF, "layers"), 0)) == "self.layers[0]"


# ---- lifetimes and errors ------------------------------------------------------------------


def test_references_do_not_leak() -> None:
    net = Net()
    program = compile_guards(module_guards(net), {"self": net})
    scope = {"self": net}
    method = compile_guards(
        [TypeIs(Attribute(SELF, "forward"), "builtins.method"), GlobalState(grad_enabled=True)], scope
    )
    watched = [net, net.layers[0], net.layers[0].weight, net.__dict__, Net.forward]
    before = [sys.getrefcount(value) for value in watched]
    for index in range(1000):
        assert program.check(scope)
        assert method.check(scope)
        if index % 100 == 0:
            net.train(index % 200 == 0)
            assert program.check(scope) == (index % 200 == 0)
            net.train()
    assert [sys.getrefcount(value) for value in watched] == before


def test_a_program_in_a_cycle_is_collected() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.program = compile_guards([IdentityIs(X, "holder")], {"x": holder})
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_freed_dicts_and_types_do_not_confuse_the_memo() -> None:
    """Memos compare addresses: new objects at old addresses must not pass for the old ones."""
    program = compile_guards([Equals(Attribute(X, "a"), 1)], {"x": types.SimpleNamespace(a=1)})
    for index in range(2000):
        kind = type("Made", (), {})
        value = kind()
        value.a = index % 3
        assert program.check({"x": value}) == (index % 3 == 1)
        assert program.check({"x": value}) == (index % 3 == 1)
        del value, kind
        if index % 500 == 0:
            gc.collect()


@pytest.mark.parametrize(
    "nodes",
    [
        ((0, "attribute", ("a", None, 0), (), 0),),
        ((-1, "attribute", ("a", None, 0), (), 0),),
        ((-1, "nonsense", ("a", None, 0), (), 0),),
        ((-1, "local", "a", (), 0),),
        ((-1, "local", (1, None, 0), (), 0),),
        ((-1, "global", ("a", 1, 0), (), 0),),
        ((-1, "call", ((), dict, 0), (), 0),),
        ((-1, "local", ("a", None, 0), (("nonsense", (1, 0, ()), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("same", (None, 0, (0,)), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("distinct", (None, 1, (0, 1)), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("distinct", (None, 2, (0,)), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("distinct", (None, 1, ("a",)), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("symbol", (None, 0, ()), 0),), 0),),
        ((-1, "local", ("a", None, 0), (("tensor", (int, 0, (1, 2)), 0),), 0),),
        ("text",),
    ],
)
def test_malformed_programs_are_refused(nodes) -> None:
    with pytest.raises((ValueError, TypeError, SystemError)):
        GuardProgram(nodes)


def test_layout_that_did_not_verify_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown or did not verify"):
        _evalframe.use_tensor_layout("guesswork")
