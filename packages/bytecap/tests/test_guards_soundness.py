"""What may change between two calls of a compiled callable: each change gives the plain result again.

Every case compiles a program, calls it, changes one thing, and calls it again. The second call must
give what the plain program gives; where the change matters for the capture, the reason of the new
capture must name the value, what it was and what it is.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bytecap import Broke, Captured, Refused, executor, optimize

Change = Callable[[Any], Any]

scale = 3


def helper(x: torch.Tensor, k: int = 2, *, z: int = 1) -> torch.Tensor:
    return x * k + z


def uses_globals(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + scale + len([1, 2])


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result, or the class of the exception."""
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def assert_same(ours: Any, plain: Any) -> None:
    assert type(ours) is type(plain)
    if isinstance(plain, torch.Tensor):
        assert (ours.dtype, ours.device, ours.shape) == (plain.dtype, plain.device, plain.shape)
        assert (ours.requires_grad, ours.is_inference()) == (plain.requires_grad, plain.is_inference())
        assert plain.device.type == "meta" or torch.equal(ours, plain)
    elif isinstance(plain, (tuple, list)):
        assert len(ours) == len(plain)
        for a, b in zip(ours, plain, strict=True):
            assert_same(a, b)
    elif isinstance(plain, dict):
        assert list(ours) == list(plain)
        for key in plain:
            assert_same(ours[key], plain[key])
    else:
        assert ours == plain


def check(
    target: Callable[..., Any], args: Callable[[], tuple[Any, ...]], change: Callable[[], Any], reason: str | None
) -> None:
    """reason: a pattern for the sentence of the new capture ("plain": it may be refused); None: the entry serves."""
    events: list[Any] = []
    compiled = optimize(target, lambda capture, inputs: executor(capture), on_event=events.append)
    assert_same(outcome(compiled, args()), outcome(target, args()))
    assert_same(outcome(compiled, args()), outcome(target, args()))
    assert [type(event) for event in events] == [Captured]
    context = change()
    with context if hasattr(context, "__enter__") else contextlib.nullcontext():
        plain = outcome(target, args())
        for _ in range(3):
            assert_same(outcome(compiled, args()), plain)
    new = events[1:]
    if reason is None:
        assert new == []
    elif reason == "plain":
        assert new
        assert isinstance(new[0], Broke | Refused)
    else:
        assert [type(event) for event in new] == [Captured]
        assert re.search(reason, new[0].reason), new[0].reason


# ---- the state of a model ------------------------------------------------------------------


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0), nn.Linear(4, 3)).eval()


def resize_last(model: nn.Sequential) -> None:
    model[3].weight = nn.Parameter(torch.randn(7, 4))
    model[3].bias = nn.Parameter(torch.randn(7))


def resize_last_in_place(model: nn.Sequential) -> None:
    model[3].weight.data = torch.randn(6, 4)
    model[3].bias.data = torch.randn(6)


def forget_statistics(model: nn.Sequential) -> None:
    model[1].running_mean = model[1].running_var = None


def hook_first(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda module, args, output: output * 2)


def pre_hook(model: nn.Sequential) -> None:
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


@contextlib.contextmanager
def global_hook(model: nn.Sequential) -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 2)
    try:
        yield
    finally:
        handle.remove()


def own_forward(model: nn.Sequential) -> None:
    model[0].forward = lambda x: x * 3


WEIGHT = r"self\[3\]\.weight"

MODEL_CHANGES: dict[str, tuple[Change, str | None]] = {
    "shape of a parameter": (resize_last, WEIGHT + r"\.shape\[0\] was 3 and is 7 \(read at .*:\d+\)"),
    "shape of a parameter, in place": (resize_last_in_place, WEIGHT + r"\.shape\[0\] was 3 and is 6"),
    "dtype of everything": (lambda m: m.double(), "plain"),
    "dtype of a buffer": (lambda m: setattr(m[1], "running_mean", m[1].running_mean.double()), "plain"),
    "requires_grad of one parameter": (
        lambda m: setattr(m[0].weight, "requires_grad", False), r"self\[0\]\.weight\.requires_grad was True and is",
    ),
    "a parameter replaced by a like one": (lambda m: setattr(m[0], "weight", nn.Parameter(torch.randn(4, 4))), None),
    "a buffer replaced by a like one": (lambda m: setattr(m[1], "running_mean", torch.randn(4)), None),
    "a parameter's values": (lambda m: m[0].weight.data.normal_(), None),
    "a parameter's data, of the same kind": (lambda m: setattr(m[0].weight, "data", torch.randn(4, 4)), None),
    "load_state_dict": (lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}), None),
    "a parameter transposed": (
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.randn(4, 4).t())), r"stride\(0\) was 4 and is 1",
    ),
    "a parameter dropped": (lambda m: setattr(m[0], "bias", None), r"self\[0\]\.bias was a tensor and is NoneType"),
    "buffers dropped": (forget_statistics, r"\]\.running_mean was a tensor and is NoneType"),
    "a submodule of the same class": (lambda m: m.__setitem__(0, nn.Linear(4, 4)), None),
    "a submodule of another class": (
        lambda m: m.__setitem__(3, nn.ReLU()), r"the type of self\[3\] was .*Linear and is .*ReLU",
    ),
    "a submodule more": (
        lambda m: m.append(nn.Tanh()), r"the keys of self\._modules were \('0', .*'3'\) and are \('0', .*'4'\)",
    ),
    "train()": (lambda m: m.train() and None, r"\.training was False and is True"),
    "train() of one submodule": (lambda m: m[1].train() and None, r"self\[1\]\.training was False and is True"),
    "a number of a module": (lambda m: setattr(m[1], "eps", 0.5), r"self\[1\]\.eps was 1e-05 and is 0\.5"),
    "a forward hook": (hook_first, r"len\(self\[0\]\._forward_hooks\) was 0 and is 1"),
    "a forward pre-hook": (pre_hook, r"len\(self\._forward_pre_hooks\) was 0 and is 1"),
    "a global forward hook": (global_hook, r"_global_forward_hooks\) was 0 and is 1"),
    "forward of an instance": (own_forward, r"'forward' was not in self\[0\]\.__dict__ and is \(read at"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODEL_CHANGES)
def test_changes_of_a_model(name: str) -> None:
    change, reason = MODEL_CHANGES[name]
    model = small_model()
    x = torch.randn(5, 4)

    def undo_statistics() -> tuple[torch.Tensor]:
        """Training mode writes running statistics: both sides start from the same ones."""
        model[1].reset_running_stats()
        return (x,)

    needs_reset = "train()" in name
    check(model, undo_statistics if needs_reset else lambda: (x,), lambda: change(model), reason)


class Scaled(nn.Module):
    """Reads everything that a module may keep besides tensors."""

    factor = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.steps = {"a": 1, "b": 2}
        self.shifts = [1, 2]
        self.flag = True
        self.label = "x"
        self.extra = None

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        y = self.scaled(self.linear(x))
        for key, value in self.steps.items():
            y = y * value if key == "a" else y + value
        for shift in self.shifts:
            y = y + shift
        if self.flag:
            y = y + 1
        if self.extra is not None:
            y = y - self.extra
        return y, self.label, len(self.shifts), self.flag


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """`owner.name = value` for a while."""
    before = {name: owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


OBJECT_CHANGES: dict[str, tuple[Change, str | None]] = {
    "class attribute": (lambda m: replaced(Scaled, factor=5), r"factor was 2 and is 5"),
    "method": (lambda m: replaced(Scaled, scaled=lambda self, x: x - 1), r"scaled was .* and is another object"),
    "forward": (lambda m: replaced(Scaled, forward=lambda self, x: x - 1), r"forward was .* and is another object"),
    "instance hides class attribute": (lambda m: setattr(m, "factor", 7), r"'factor' was not in self\.__dict__"),
    "value in a dict": (lambda m: m.steps.update(a=5), r"self\.steps\['a'\] was 1 and is 5"),
    "order of a dict": (
        lambda m: m.steps.update(a=m.steps.pop("a")), r"keys of self\.steps were \('a', 'b'\) and are \('b', 'a'\)",
    ),
    "other dict, other order": (lambda m: setattr(m, "steps", {"b": 2, "a": 1}), r"keys of self\.steps were"),
    "key more": (lambda m: m.steps.update(c=5), r"keys of self\.steps were .* and are \('a', 'b', 'c'\)"),
    "list length": (lambda m: m.shifts.append(4), r"len\(self\.shifts\) was 2 and is 3"),
    "list item": (lambda m: m.shifts.__setitem__(0, 4), r"self\.shifts\[0\] was 1 and is 4"),
    "list item, float": (lambda m: m.shifts.__setitem__(0, 1.0), r"self\.shifts\[0\] was 1 and is 1\.0"),
    "list item, bool": (lambda m: m.shifts.__setitem__(0, True), r"self\.shifts\[0\] was 1 and is True"),
    "list of another type": (lambda m: setattr(m, "shifts", (1, 2)), r"type of self\.shifts was .*list and is tuple"),
    "flag": (lambda m: setattr(m, "flag", False), r"self\.flag was True and is False"),
    "flag, int": (lambda m: setattr(m, "flag", 1), r"self\.flag was True and is 1"),
    "string": (lambda m: setattr(m, "label", "y"), None),
    "None to a number": (lambda m: setattr(m, "extra", 3), r"self\.extra was None and is .*3"),
    "None to a tensor": (lambda m: setattr(m, "extra", torch.ones(3)), r"self\.extra was None and is .*Tensor"),
    "class": (
        lambda m: setattr(m, "__class__", type("Other", (Scaled,), {"scaled": lambda self, x: x})),
        r"the type of self was .*Scaled and is .*Other",
    ),
    "attribute that is not read": (lambda m: setattr(m, "unused", 1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECT_CHANGES)
def test_changes_of_an_object(name: str) -> None:
    change, reason = OBJECT_CHANGES[name]
    torch.manual_seed(0)
    module = Scaled()
    x = torch.randn(2, 3)
    check(module, lambda: (x,), lambda: change(module), reason)


# ---- the state of torch --------------------------------------------------------------------


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class AddsInDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.mul.Tensor else result


class AddsInFunction(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if getattr(func, "__name__", "") in ("mul", "__mul__") else result


def reads_torch_state(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + torch.zeros(3) + torch.tensor(1.5) + x @ torch.ones(3, 3)


STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "no_grad": (torch.no_grad, "grad mode was on and is off"),
    "inference_mode": (torch.inference_mode, "grad mode was on and is off|inference mode was off and is on"),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "autocast on cpu was off and is bfloat16"),
    "default dtype": (lambda: default_dtype(torch.float64), "the default dtype was float32 and is float64|plain"),
    "deterministic algorithms": (deterministic, "deterministic algorithms was off and is on"),
}


@pytest.mark.parametrize("name", STATES)
def test_changes_of_torchs_state(name: str) -> None:
    change, reason = STATES[name]
    x = torch.randn(3, 3, requires_grad=True)
    check(lambda x: x * 2 + torch.zeros(3) + x.sum() * 1.5, lambda: (x,), change, reason)
    with change():
        check(lambda x: x * 2 + torch.zeros(3), lambda: (x,), contextlib.nullcontext, None)


def in_one_piece(capture: Any, inputs: Any) -> Callable[..., Any]:
    """A graph whose single operations no mode sees, as compiled code is."""
    run = executor(capture)

    def whole(*tensors: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return run(*tensors)

    return whole


@pytest.mark.parametrize("mode", [AddsInDispatch, AddsInFunction, lambda: torch.func.vmap])
def test_what_sees_single_operations_runs_plain(mode: Callable[[], Any]) -> None:
    events: list[Any] = []
    compiled = optimize(lambda x: x * 2, in_one_piece, on_event=events.append)
    x = torch.ones(3)
    context = mode()
    if hasattr(context, "__exit__"):
        with context:
            assert torch.equal(compiled(x), x * 2)
    else:
        assert torch.equal(context(compiled)(x), x * 2)
    assert [event.error.code for event in events] == ["BC007"]
    assert torch.equal(compiled(x), x * 2)
    assert isinstance(events[-1], Captured)


@pytest.mark.parametrize(
    "mode", [AddsInDispatch, AddsInFunction, lambda: torch.device("meta")], ids=["dispatch", "function", "device"]
)
def test_modes_are_not_ignored(mode: Callable[[], Any]) -> None:
    """Under a mode that the capture does not know the program runs plain, or is captured with it."""
    x = torch.ones(3)
    compiled = optimize(reads_torch_state, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    plain = reads_torch_state(x)
    assert_same(compiled(x), plain)
    with mode():
        expected = outcome(reads_torch_state, (x,))
        for _ in range(2):
            assert_same(outcome(compiled, (x,)), expected)
    assert_same(compiled(x), plain)


# ---- globals, closures, functions ----------------------------------------------------------


@contextlib.contextmanager
def in_globals(**values: Any) -> Iterator[None]:
    space = globals()
    before = {name: space[name] for name in values if name in space}
    space.update(values)
    try:
        yield
    finally:
        for name in values:
            del space[name]
        space.update(before)


@contextlib.contextmanager
def keyword_default(value: int) -> Iterator[None]:
    helper.__kwdefaults__["z"] = value
    try:
        yield
    finally:
        helper.__kwdefaults__["z"] = 1


NAME_CHANGES: dict[str, tuple[Callable[[], Any], str | None]] = {
    "int": (lambda: in_globals(scale=4), r"scale was 3 and is 4 \(read at .*test_guards_soundness\.py:\d+\)"),
    "int to float": (lambda: in_globals(scale=3.0), r"scale was 3 and is 3\.0"),
    "int to bool": (lambda: in_globals(scale=True), r"scale was 3 and is True"),
    "function": (lambda: in_globals(helper=lambda x: x - 1), r"helper was .*helper and is another object"),
    "builtin hidden": (lambda: in_globals(len=lambda x: 100), r"len"),
    "global not read": (lambda: in_globals(unread=1), None),
    "defaults": (lambda: replaced(helper, __defaults__=(9,)), r"helper\.__defaults__ was \(2,\) and is \(9,\)"),
    "keyword defaults": (
        lambda: replaced(helper, __kwdefaults__={"z": 9}), r"helper\.__kwdefaults__ was \{'z': 1\} and is \{'z': 9\}",
    ),
    "keyword defaults, in place": (lambda: keyword_default(9), r"helper\.__kwdefaults__ was \{'z': 1\}"),
    "code": (
        lambda: replaced(helper, __code__=(lambda x, k=2, *, z=1: x - 100).__code__), r"helper\.__code__ was replaced",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAME_CHANGES)
def test_changes_of_globals_and_functions(name: str) -> None:
    change, reason = NAME_CHANGES[name]
    x = torch.ones(2, dtype=torch.int64)
    check(uses_globals, lambda: (x,), change, reason)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (2, 5, r"k was 2 and is 5"),
        (2, 2.0, r"k was 2 and is 2\.0"),
        (2, torch.full((2,), 3.0), r"k was 2 and is .*Tensor"),
        (torch.ones(2), torch.full((2,), 3.0), None),
        (torch.ones(2), torch.ones(1), r"k\.shape\[0\] was 2 and is 1"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), r"k\.dtype was float32 and is float64"),
    ],
)
def test_changes_of_a_closure(before: Any, after: Any, reason: str | None) -> None:
    k = before

    def inner(x):
        return x * k

    def function(x):
        return inner(x) + k

    def change() -> None:
        nonlocal k
        k = after

    x = torch.ones(2)
    check(function, lambda: (x,), change, reason)


def test_the_callables_own_defaults() -> None:
    def function(x, n=2):
        return x * n

    x = torch.ones(2)
    check(function, lambda: (x,), lambda: setattr(function, "__defaults__", (5,)), r"n was 2 and is 5")


# ---- arguments -----------------------------------------------------------------------------


class Quiet(torch.Tensor):
    pass


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 1 if getattr(func, "__name__", "") in ("mul", "__mul__") else result


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def double(self) -> Any:
        return self.value * 2


def describe(x, n):
    return x * n, x.is_contiguous(), x.requires_grad, x.is_leaf, str(x.dtype), type(n).__name__


T = torch.arange(6.0).reshape(2, 3)
LEAF = T.clone().requires_grad_()

ARGUMENT_CHANGES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str | None]] = {
    "int": (describe, (T, 3), (T, 4), r"n was 3 and is 4"),
    "int to bool": (describe, (T, 1), (T, True), r"n was 1 and is True"),
    "bool to float": (describe, (T, True), (T, 1.0), r"n was True and is 1\.0"),
    "int to float": (describe, (T, 1), (T, 1.0), r"n was 1 and is 1\.0"),
    "sign of zero": (describe, (T, 0.0), (T, -0.0), "plain"),
    "large int": (lambda x, n: (x + 1, n > 0), (T, 2**70), (T, 2**70 + 1), r"n was 1180\d+424 and is 1180\d+425"),
    "string": (lambda x, s: (x + 1, s.upper()), (T, "a"), (T, "b"), r"s was 'a' and is 'b'"),
    "number and text passed on": (lambda x, n, s: (x + 1, n * 2, s + "!"), (T, 1, "a"), (T, 2, "b"), None),
    "list that only grows": (lambda x, n: n.append(x * 2), (T, [1]), (T, [1, 2]), None),
    "None": (lambda x, n: x + 1 if n is None else x * n, (T, None), (T, 2), r"n was None and is .*2"),
    "shape": (describe, (T, 3), (T[:1], 3), r"x\.shape\[0\] was 2 and is 1"),
    "rank": (describe, (T, 3), (T[0], 3), r"x\.dim\(\) was 2 and is 1"),
    "dtype": (describe, (T, 3), (T.double(), 3), r"x\.dtype was float32 and is float64"),
    "stride": (describe, (T, 3), (T.t().contiguous().t(), 3), r"x\.stride\(0\) was 3 and is 1"),
    "device": (lambda x: x * 2, (T,), (T.to("meta"),), r"x\.device was cpu and is meta"),
    "requires_grad": (describe, (T, 3), (LEAF, 3), r"x\.requires_grad was False and is True"),
    "leaf": (describe, (LEAF, 3), (LEAF * 1, 3), r"x\.is_leaf was True and is False"),
    "conjugate": (
        lambda x: (x * 2, x.is_conj()), (torch.ones(2, dtype=torch.complex64),),
        (torch.ones(2, dtype=torch.complex64).conj(),), "plain",
    ),
    "storage offset": (describe, (T, 3), (torch.arange(7.0)[1:].reshape(2, 3), 3), None),
    "parameter": (
        describe, (LEAF, 3), (nn.Parameter(T.clone()), 3), r"the type of x was torch\.Tensor and is .*Parameter",
    ),
    "subclass": (lambda x: x * 2, (T,), (T.clone().as_subclass(Quiet),), r"the type of x was"),
    "subclass with a meaning": (lambda x: x * 2, (T,), (T.clone().as_subclass(Loud),), r"the type of x was"),
    "number for a tensor": (lambda x: x * 2 + torch.ones(1), (T,), (3,), r"x was a tensor and is int"),
    "length": (lambda x, n: x * len(n), (T, [1, 2]), (T, [1, 2, 3]), r"len\(n\) was 2 and is 3"),
    "tuple to list": (lambda x, n: (x * 2, n), (T, (1, 2)), (T, [1, 2]), r"the type of n was .*tuple and is list"),
    "order of keys": (
        lambda x, n: {k: v * x for k, v in n.items()}, (T, {"a": 1, "b": 2}), (T, {"b": 2, "a": 1}),
        r"the keys of n were \('a', 'b'\) and are \('b', 'a'\)",
    ),
    "enum": (
        lambda x, e: x * 2 if e is Color.RED else x * 3, (T, Color.RED), (T, Color.BLUE), r"e was .* and is another",
    ),
    "object": (lambda x, b: x * b.double, (T, Box(2)), (T, Box(3)), r"b\.value was 2 and is 3"),
    "varargs": (lambda x, *a: x * len(a), (T, 1, 2), (T, 1, 2, 3), r"len\(a\) was 2 and is 3"),
    "distinct to same": (
        lambda x, y: x + 1 if x is y else y * 2, (T, T + 1), (T, T), r"x and y were two objects and are one",
    ),
    "same to distinct": (
        lambda x, y: x + 1 if x is y else y * 2, (T, T), (T, T + 1), r"x and y were one object and are two",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENT_CHANGES)
def test_changes_of_arguments(name: str) -> None:
    function, first, second, reason = ARGUMENT_CHANGES[name]
    current = [first]
    check(function, lambda: current[0], lambda: current.__setitem__(0, second), reason)


# ---- classes, and objects that may be one --------------------------------------------------


class Root:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @property
    def number(self) -> int:
        return 2


class Leaf(Root):
    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def up(self, x: torch.Tensor) -> torch.Tensor:
        return super().method(x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def __len__(self) -> int:
        return 2

    def __getattr__(self, name: str) -> int:
        if name == "made":
            return 2
        raise AttributeError(name)


@contextlib.contextmanager
def with_attribute(cls: type, name: str, value: Any) -> Iterator[None]:
    missing = object()
    before = cls.__dict__.get(name, missing)
    setattr(cls, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(cls, name)
        else:
            setattr(cls, name, before)


def seven(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 7


CLASS_CHANGES: dict[str, tuple[Callable[..., Any], type, str, Any]] = {
    "method": (lambda x, leaf: leaf.method(x), Root, "method", seven),
    "method, overridden": (lambda x, leaf: leaf.method(x), Leaf, "method", seven),
    "method through the class": (lambda x, leaf: Leaf.method(leaf, x), Leaf, "method", seven),
    "method through super": (lambda x, leaf: leaf.up(x), Root, "method", seven),
    "property": (lambda x, leaf: x * leaf.number, Root, "number", property(lambda self: 7)),
    "property, overridden": (lambda x, leaf: x * leaf.number, Leaf, "number", property(lambda self: 7)),
    "property, by a number": (lambda x, leaf: x * leaf.number, Leaf, "number", 7),
    "classmethod": (lambda x, leaf: leaf.of_class(x), Leaf, "of_class", classmethod(seven)),
    "staticmethod": (lambda x, leaf: leaf.static(x), Leaf, "static", staticmethod(lambda x: x * 7)),
    "call": (lambda x, leaf: leaf(x), Leaf, "__call__", seven),
    "length": (lambda x, leaf: x * len(leaf), Leaf, "__len__", lambda self: 7),
    "getattr": (lambda x, leaf: x * leaf.made, Leaf, "__getattr__", lambda self, name: 7),
    "getattr, hidden": (lambda x, leaf: x * leaf.made, Root, "made", 7),
    "hasattr": (lambda x, leaf: x * 2 if hasattr(leaf, "late") else x * 3, Root, "late", 7),
    "default of getattr": (lambda x, leaf: x * getattr(leaf, "late", 2), Leaf, "late", 7),
    "attribute of the instance, by a property": (lambda x, leaf: x * leaf.own, Root, "own", property(lambda self: 7)),
}


@pytest.mark.parametrize("name", CLASS_CHANGES)
def test_changes_of_classes(name: str) -> None:
    function, cls, attribute, value = CLASS_CHANGES[name]
    leaf = Leaf()
    leaf.__dict__["own"] = 2
    check(function, lambda: (T, leaf), lambda: with_attribute(cls, attribute, value), rf"{attribute}|own")


def append_to_first(x, a, b):
    a.append(1)
    return x * len(b)


def set_in_first(x, a, b):
    a["k"] = 5
    return x * b.get("k", 1)


def set_attribute_of_first(x, a, b):
    a.value = 5
    return x * b.value


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (append_to_first, lambda: [1]),
        (set_in_first, dict),
        (set_attribute_of_first, lambda: Box(1)),
        (lambda x, a, b: x * 2 if a == b else x * 3, object),
        (lambda x, a, b: x * 2 if a == b else x * 3, Leaf),
        (lambda x, a, b: x * 2 if a in [b] else x * 3, Leaf),
        (lambda x, a, b: x * 2 if a is b else x * 3, lambda: [1]),
    ],
)
def test_two_objects_may_become_one(function: Callable[..., Any], make: Callable[[], Any]) -> None:
    compiled = optimize(function, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    for distinct in (True, False, True, False):
        ours, plain = ((make(), make()) if distinct else (make(),) * 2 for _ in range(2))
        assert_same(compiled(T, *ours), function(T, *plain))


def test_attributes_that_tensors_may_get() -> None:
    x = T.clone()
    check(lambda x: x * getattr(x, "factor", 2), lambda: (x,), lambda: setattr(x, "factor", 7), "'factor'")


def test_order_of_an_ordered_dict() -> None:
    steps = collections.OrderedDict(a=2.0, b=3.0)

    def function(x):
        for key, value in steps.items():
            x = x * value if key == "a" else x + value
        return x

    reason = r"the keys of steps were \('a', 'b'\) and are \('b', 'a'\)"
    check(function, lambda: (T,), lambda: steps.move_to_end("a"), reason)


def mutates(x, y):
    x.add_(1)
    return y * 2, x


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.ones(4)
    return memory[:3], memory[1:]


@pytest.mark.parametrize("after", [lambda: (torch.ones(3),) * 2, overlapping], ids=["same", "overlapping"])
def test_inputs_that_share_memory(after: Callable[[], Any]) -> None:
    compiled = optimize(mutates, lambda capture, inputs: executor(capture))
    for make in (lambda: (torch.ones(3), torch.ones(3)), after, lambda: (torch.ones(3), torch.ones(3))):
        assert_same(compiled(*make()), mutates(*make()))


# ---- several models, one code --------------------------------------------------------------


def test_two_models_of_one_class_do_not_mix() -> None:
    first, second = Scaled(), Scaled()
    second.flag = False
    second.shifts = [5]

    def run(module, x):
        return module(x)

    compiled = optimize(run, lambda capture, inputs: executor(capture))
    x = torch.randn(2, 3)
    for _ in range(50):
        assert_same(compiled(first, x), run(first, x))
        assert_same(compiled(second, x), run(second, x))
    second.flag, second.shifts = True, [1, 2]
    for _ in range(50):
        assert_same(compiled(first, x), run(first, x))
        assert_same(compiled(second, x), run(second, x))


def test_train_and_eval_many_times() -> None:
    events: list[Any] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(1.0)))
    compiled = optimize(model, lambda capture, inputs: executor(capture), on_event=events.append)
    x = torch.randn(3, 4)
    for turn in range(120):
        model.train(turn % 2 == 0)
        for _ in range(turn % 4 + 1):
            if model.training:
                assert compiled(x).count_nonzero() == 0
            else:
                assert_same(compiled(x), model(x))
    assert len(events) == 2
