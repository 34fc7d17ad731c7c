"""What lies in containers and constants: items, order, types, signs of zero.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

# ruff: noqa: E742
from __future__ import annotations

import collections
import dataclasses
import enum

import pytest
import torch

from bytecap.testing.changes import Cases, check_change

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


@case
def dataclass_field():
    @dataclasses.dataclass
    class A:
        v: int = 2

    a = A()
    return (lambda x: x * a.v), (T,), lambda: setattr(a, "v", 9)


@case
def frozen_dataclass_forced():
    @dataclasses.dataclass(frozen=True)
    class A:
        v: int = 2

    a = A()
    return (lambda x: x * a.v), (T,), lambda: object.__setattr__(a, "v", 9)


@case
def frozen_dataclass_eq():
    @dataclasses.dataclass(frozen=True)
    class A:
        v: int = 2

    a, b = A(), A()
    return (lambda x: x * 2 if a == b else x * 3), (T,), lambda: object.__setattr__(a, "v", 9)


@case
def namedtuple_swapped():
    P = collections.namedtuple("P", "a b")
    box = [P(1, 2)]
    return (lambda x: x * box[0].a), (T,), lambda: box.__setitem__(0, P(5, 2))


@case
def enum_value():
    class E(enum.Enum):
        A = 1
        B = 2

    box = [E.A]
    return (lambda x: x * box[0].value), (T,), lambda: box.__setitem__(0, E.B)


@case
def intenum_vs_int():
    class E(enum.IntEnum):
        A = 1
        B = 2

    box = [E.A]
    return (lambda x: (x * box[0], repr(box[0]))), (T,), lambda: box.__setitem__(0, 1)


@case
def int_subclass_value():
    class I(int):
        pass

    box = [I(2)]
    return (lambda x: x * box[0]), (T,), lambda: box.__setitem__(0, I(5))


@case
def str_subclass_value():
    class I(str):
        pass

    box = [I("a")]
    return (lambda x: x * 2 if box[0] == "a" else x * 3), (T,), lambda: box.__setitem__(0, I("b"))


@case
def list_subclass_item():
    class L(list):
        pass

    l = L([1, 2])
    return (lambda x: x * l[0]), (T,), lambda: l.__setitem__(0, 7)


@case
def tuple_subclass_item():
    class L(tuple):
        pass

    b = [L([1, 2])]
    return (lambda x: x * b[0][0]), (T,), lambda: b.__setitem__(0, L([7, 2]))


@case
def dict_subclass_item():
    class L(dict):
        pass

    l = L(a=1)
    return (lambda x: x * l["a"]), (T,), lambda: l.__setitem__("a", 7)


@case
def dict_subclass_missing_added():
    class L(dict):
        pass

    l = L(a=1)
    return (lambda x: x * 2 if "b" not in l else x * 3), (T,), lambda: l.__setitem__("b", 7)


@case
def dict_subclass_getitem_added():
    class L(dict):
        pass

    l = L(a=1)
    return (lambda x: x * l["a"]), (T,), lambda: setattr(L, "__getitem__", lambda s, k: 40)


@case
def set_member():
    s = {1, 2}
    return (lambda x: x * 2 if 3 in s else x * 3), (T,), lambda: s.add(3)


@case
def set_member_swap():
    s = {1, 2}
    return (lambda x: x * sum(s)), (T,), lambda: (s.discard(2), s.add(9))


@case
def set_order():
    s = {0, 8}  # collide in table of 8

    def f(x):
        for v in s:
            x = x * 2 + v
        return x

    def ch():
        s.clear()
        s.add(8)
        s.add(0)

    return f, (T,), ch


@case
def frozenset_order():
    b = [frozenset([0, 8])]

    def f(x):
        for v in b[0]:
            x = x * 2 + v
        return x

    return f, (T,), lambda: b.__setitem__(0, frozenset([8, 0]))


@case
def set_true_vs_1():
    s = {1}

    def f(x):
        return x * 2, [type(v) for v in s]

    return f, (T,), lambda: (s.clear(), s.add(True))


@case
def dict_key_true_vs_1():
    s = {1: 5}

    def f(x):
        return x * 2, [type(v) for v in s]

    return f, (T,), lambda: (s.clear(), s.__setitem__(True, 5))


@case
def dict_has_key_true_vs_1():
    s = {1: 5}
    return (lambda x: x * s[1]), (T,), lambda: (s.clear(), s.__setitem__(True, 6))


@case
def deque_content():
    d = collections.deque([1, 2])
    return (lambda x: x * d[0]), (T,), lambda: d.appendleft(9)


@case
def counter_content():
    d = collections.Counter("aab")
    return (lambda x: x * d["a"]), (T,), lambda: d.update("a")


@case
def defaultdict_factory():
    d = collections.defaultdict(int)

    def f(x):
        return x * dict(d).get("a", 2)

    return f, (T,), lambda: d.__setitem__("a", 7)


@case
def defaultdict_factory_changed():
    d = collections.defaultdict(lambda: 2)

    def f(x):
        v = d["a"]
        del d["a"]
        return x * v

    return f, (T,), lambda: setattr(d, "default_factory", lambda: 9)


@case
def chainmap():
    d = collections.ChainMap({"a": 1}, {"b": 2})
    return (lambda x: x * d["b"]), (T,), lambda: d.maps[1].__setitem__("b", 9)


@case
def range_swapped():
    b = [range(3)]

    def f(x):
        for i in b[0]:
            x = x + i
        return x

    return f, (T,), lambda: b.__setitem__(0, range(4))


@case
def slice_swapped():
    b = [slice(0, 1)]
    return (lambda x: x[b[0]] * 2), (T,), lambda: b.__setitem__(0, slice(0, 2))


@case
def ellipsis_swapped():
    b = [...]
    return (lambda x: x[b[0]] * 2), (T,), lambda: b.__setitem__(0, 0)


@case
def bytes_swapped():
    b = [bytes([65, 66])]
    return (lambda x: x * len(b[0])), (T,), lambda: b.__setitem__(0, b"ABC")


@case
def bytearray_content():
    b = bytearray(b"ab")
    return (lambda x: x * b[0]), (T,), lambda: b.__setitem__(0, 1)


@case
def complex_swapped():
    b = [1j]
    return (lambda x: x * b[0]), (T,), lambda: b.__setitem__(0, 2j)


@case
def complex_negzero():
    b = [complex(1, 0.0)]
    return (lambda x: (x * 2, str(b[0]))), (T,), lambda: b.__setitem__(0, complex(1, -0.0))


@case
def nan_stays():
    b = [float("nan")]
    return (lambda x: x * b[0]), (T,), lambda: b.__setitem__(0, 1.0)


@case
def nan_other():
    b = [1.0]
    return (lambda x: x * b[0]), (T,), lambda: b.__setitem__(0, float("nan"))


@case
def negzero():
    b = [0.0]
    return (lambda x: x * b[0]), (T,), lambda: b.__setitem__(0, -0.0)


@case
def str_swapped():
    b = ["sum"]
    return (lambda x: getattr(x, b[0])()), (T,), lambda: b.__setitem__(0, "mean")


@case
def dtype_swapped():
    b = [torch.float32]
    return (lambda x: x.to(b[0]) * 2), (T,), lambda: b.__setitem__(0, torch.float64)


@case
def device_swapped():
    b = [torch.device("cpu")]
    return (lambda x: (x * 2).to(b[0])), (T,), lambda: b.__setitem__(0, torch.device("meta"))


@case
def memory_format_swapped():
    b = [torch.contiguous_format]
    return (
        (lambda x: x.contiguous(memory_format=b[0]) * 2),
        (torch.ones(2, 3, 4, 5),),
        lambda: b.__setitem__(0, torch.channels_last),
    )


@case
def size_swapped():
    b = [torch.Size([2, 3])]
    return (lambda x: x.reshape(b[0]) * 2), (T,), lambda: b.__setitem__(0, torch.Size([3, 2]))


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())
