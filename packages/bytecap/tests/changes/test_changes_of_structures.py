"""Cells, registries, patterns, protocols and other structures of Python that hold values.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

# ruff: noqa: B904, B905, E731
from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.testing.changes import Cases, assert_alike, check_change, outcome, patched, setting

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


@case
def nested_autocast():
    def f(x):
        with torch.autocast("cpu", enabled=False):
            return x @ torch.ones(3, 3)

    return f, (T,), lambda: torch.autocast("cpu")


@case
def nested_autocast2():
    def f(x):
        with torch.autocast("cpu"):
            y = x @ torch.ones(3, 3)
        return y, x @ torch.ones(3, 3)

    return f, (T,), lambda: torch.autocast("cpu", enabled=True, dtype=torch.float16)


@case
def autocast_obj():
    ac = torch.autocast("cpu")

    def f(x):
        with ac:
            return x @ torch.ones(3, 3)

    return f, (T,), lambda: setattr(ac, "fast_dtype", torch.float16)


@case
def autocast_enabled_attr():
    ac = torch.autocast("cpu")

    def f(x):
        with ac:
            return x @ torch.ones(3, 3)

    return f, (T,), lambda: setattr(ac, "_enabled", False)


@case
def nograd_obj():
    flag = [True]

    def f(x):
        with torch.set_grad_enabled(flag[0]):
            return x * 2

    return f, (T.clone().requires_grad_(),), lambda: flag.__setitem__(0, False)


@case
def two_cells_shared():
    k = 2

    def a():
        return k

    def b(x):
        return x * a() * k

    def ch():
        nonlocal k
        k = 5

    return b, (T,), ch


@case
def cell_function_swapped():
    def a():
        return 2

    def b(x):
        return x * a()

    def ch():
        nonlocal a
        a = lambda: 7

    return b, (T,), ch


@case
def cell_emptied():
    k = 2

    def b(x):
        try:
            return x * k
        except NameError:
            return x * 100

    def ch():
        nonlocal k
        del k

    return b, (T,), ch


@case
def cell_in_nested_class():
    k = 2

    class A:
        def m(s, x):
            return x * k

    class B(A):
        def m(s, x):
            return super().m(x) + 1

    b = B()

    def ch():
        nonlocal k
        k = 7

    return (lambda x: b.m(x)), (T,), ch


@case
def decorator_closure_list():
    reg_ = [lambda x: x * 2]

    def b(x):
        for f in reg_:
            x = f(x)
        return x

    return b, (T,), lambda: reg_.append(lambda x: x + 100)


@case
def registry_dict():
    reg_ = {"a": lambda x: x * 2}
    return (lambda x: reg_["a"](x)), (T,), lambda: reg_.update(a=lambda x: x * 9)


@case
def registry_get_missing():
    reg_ = {}
    return (lambda x: reg_.get("a", lambda x: x)(x)), (T,), lambda: reg_.update(a=lambda x: x * 9)


@case
def dict_or():
    a, b = {"k": 1}, {"j": 2}
    return (lambda x: x * sum((a | b).values())), (T,), lambda: b.update(k=5)


@case
def star_args():
    l = [1, 2]

    def g(x, *a):
        return x * sum(a)

    return (lambda x: g(x, *l)), (T,), lambda: l.append(9)


@case
def star_kwargs():
    l = {"a": 1}

    def g(x, **a):
        return x * sum(a.values())

    return (lambda x: g(x, **l)), (T,), lambda: l.update(b=9)


@case
def list_eq():
    l = [1, 2]
    return (lambda x: x * 2 if l == [1, 2] else x * 3), (T,), lambda: l.append(9)


@case
def in_list():
    l = ["a", "b"]
    return (lambda x: x * 2 if "c" in l else x * 3), (T,), lambda: l.append("c")


@case
def in_str():
    l = ["abc"]
    return (lambda x: x * 2 if "c" in l[0] else x * 3), (T,), lambda: l.__setitem__(0, "ab")


@case
def str_format():
    l = ["abc"]
    return (lambda x: (x * 2, f"{l[0]}-{len(l)}")), (T,), lambda: l.__setitem__(0, "ab")


@case
def str_of_obj():
    class A:
        def __repr__(s):
            return "A" + str(s.v)

    a = A()
    a.v = 1
    return (lambda x: (x * 2, repr(a), str(a), f"{a}")), (T,), lambda: setattr(a, "v", 5)


@case
def any_all():
    l = [True, True]
    return (lambda x: x * 2 if all(l) else x * 3), (T,), lambda: l.__setitem__(1, False)


@case
def min_max_sort():
    l = [3, 1, 2]
    return (lambda x: x * max(l) + sorted(l)[0]), (T,), lambda: l.append(9)


@case
def zip_enum():
    l, m = [1, 2], [3, 4]

    def f(x):
        for i, (a, b) in enumerate(zip(l, m)):
            x = x * a + b + i
        return x

    return f, (T,), lambda: (l.append(1), m.append(7))


@case
def itertools_product():
    l = [1, 2]
    return (lambda x: x * sum(a * b for a, b in itertools.product(l, l))), (T,), lambda: l.append(9)


@case
def walrus_match():
    l = [{"kind": "a", "v": 2}]

    def f(x):
        match l[0]:
            case {"kind": "a", "v": v}:
                return x * v
            case _:
                return x

    return f, (T,), lambda: l[0].update(kind="b")


@case
def nested_obj():
    class C:
        pass

    a = C()
    a.b = C()
    a.b.c = C()
    a.b.c.v = 2

    def ch():
        n = C()
        n.v = 9
        a.b.c = n

    return (lambda x: x * a.b.c.v), (T,), ch


@case
def shared_obj_two_paths():
    class C:
        pass

    a = C()
    b = C()
    s = C()
    s.v = 2
    a.s = b.s = s

    def ch():
        n = C()
        n.v = 9
        b.s = n

    return (lambda x: x * a.s.v + b.s.v), (T,), ch


@case
def property_on_module():
    class M_(nn.Module):
        @property
        def scale(s):
            return s._s

        def forward(s, x):
            return x * s.scale

    m = M_()
    m._s = 2
    return m, (T,), lambda: setattr(m, "_s", 9)


@case
def weakref_target():
    class C:
        pass

    a = C()
    a.v = 2
    r = weakref.ref(a)
    return (lambda x: x * r().v), (T,), lambda: setattr(a, "v", 9)


@case
def contextvar():
    v = contextvars.ContextVar("v", default=2)
    return (lambda x: x * v.get()), (T,), lambda: v.set(9) and None


@case
def contextvar_with_a_default():
    v = contextvars.ContextVar("v")
    return (lambda x: x * v.get(2)), (T,), lambda: v.set(9) and None


@case
def file_that_appears():
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "file")

    def appear(folder=folder):
        with open(path, "w"):
            pass

    return (lambda x: x * 2 if os.path.exists(path) else x), (T,), appear


@case
def threadlocal():
    l = threading.local()
    l.v = 2
    return (lambda x: x * l.v), (T,), lambda: setattr(l, "v", 9)


@case
def threadlocal_without():
    l = threading.local()
    return (lambda x: x * getattr(l, "v", 2)), (T,), lambda: setattr(l, "v", 9)


@case
def ordered_move():
    d = collections.OrderedDict(a=1, b=2)

    def f(x):
        for k, v in d.items():
            x = x * v + (k == "a")
        return x

    return f, (T,), lambda: d.move_to_end("a")


@case
def userdict():
    d = collections.UserDict(a=1)
    return (lambda x: x * d["a"]), (T,), lambda: d.update(a=5)


@case
def class_getitem():
    class C:
        def __class_getitem__(c, k):
            return k * 2

    return (lambda x: x * C[3]), (T,), lambda: setattr(C, "__class_getitem__", classmethod(lambda c, k: k * 5))


@case
def hash_changed():
    class C:
        def __init__(s, v):
            s.v = v

        def __hash__(s):
            return hash(s.v)

        def __eq__(s, o):
            return s.v == o.v

    a = C(1)
    d = {C(1): 2, C(3): 7}
    return (lambda x: x * d[a]), (T,), lambda: setattr(a, "v", 3)


@case
def eq_values():
    class C:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

    a, b = C(1), C(1)
    return (lambda x: x * 2 if a == b else x * 3), (T,), lambda: setattr(a, "v", 3)


@case
def getattr_hook_state():
    class C:
        def __init__(s):
            s.d = {"z": 2}

        def __getattr__(s, n):
            try:
                return s.__dict__["d"][n]
            except KeyError:
                raise AttributeError(n)

    a = C()
    return (lambda x: x * a.z), (T,), lambda: a.d.update(z=9)


@case
def dataclass_replace_default():
    @dataclasses.dataclass
    class C:
        v: int = 2

    return (lambda x: x * C().v), (T,), lambda: setattr(C, "__init__", lambda s: setattr(s, "v", 9))


@case
def class_default_new_instance():
    class C:
        v = 2

    return (lambda x: x * C().v), (T,), lambda: setattr(C, "v", 9)


@case
def module_made_inside():
    def f(x):
        m = nn.ReLU(inplace=False)
        return m(x - 3)

    return f, (T,), lambda: patched(nn.ReLU, "forward", lambda s, x: x * 9)


@case
def func_default_dtype_ctor():
    return (
        (lambda x: x + torch.tensor([1.5]) + torch.full((1,), 2.5) + torch.arange(3.0)),
        (T,),
        lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    )


@case
def func_default_device_ctor():
    return (
        (lambda x: (x * 2, torch.empty(3).device.type, torch.tensor(1).device.type)),
        (T,),
        lambda: torch.device("meta"),
    )


@dataclasses.dataclass(frozen=True)
class Key:
    name: str


class Level(enum.Enum):
    LOW = 1


KEYS = ((0, 1), b"x", 1j, torch.float32, int, Level.LOW, frozenset([1]), len, Key("a"), (Key("a"), 1), range(2),
        object(), torch.device("cpu"))  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
@pytest.mark.parametrize(
    "program",
    [lambda x, d, k: x * d[k], lambda x, d, k: x * d.get(k, 9), lambda x, d, k: x * (k in d)],
    ids=["item", "get", "in"],
)
def test_value_under_a_key_that_is_no_literal(program: Callable[..., Any], key: Any) -> None:
    run = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    for names in ({key: 4}, {key: 5}, {}, {"other": 1, key: 6}, {key: 7, "other": 1}, {key: 4}):
        assert_alike(outcome(run, (T, names, key)), outcome(program, (T, names, key)))


class Plain:
    pass


PAIR = (Plain(), Plain())
PROGRAMS_ON_PAIRS = (
    lambda x, a, b: x * len({a, b}),
    lambda x, a, b: x * len({a: 1, b: 2}),
    lambda x, a, b: x * len(dict.fromkeys([a, b])),
    lambda x, a, b: (x * 2, a in {b}),
    lambda x, a, b: (x * 2, {a: 3}.get(b)),
    lambda x, a, b: (x * 2, {a} == {b}, {a} & {b}),
    lambda x, a, b: (x * 2, a is b, a == b, a in [b], [a, b].index(b)),
)


@pytest.mark.parametrize("program", PROGRAMS_ON_PAIRS)
@pytest.mark.parametrize("pair", [PAIR, (lambda: 1, lambda: 2), (T, T * 2)], ids=["objects", "functions", "tensors"])
def test_objects_that_become_one(program: Callable[..., Any], pair: tuple[Any, Any]) -> None:
    if isinstance(pair[0], torch.Tensor) and program is PROGRAMS_ON_PAIRS[-1]:
        pytest.skip("== of tensors gives a tensor")
    a, b = pair
    for order in ([(a, b), (a, a), (b, b), (b, a)], [(a, a), (a, b), (b, a)]):
        run = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
        for first, second in order:
            assert_alike(outcome(run, (T, first, second)), outcome(program, (T, first, second)))


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())
