"""What lies in classes: methods, descriptors, special methods that appear later, metaclasses, super().

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

# ruff: noqa: B024, RUF012
from __future__ import annotations

import pytest
import torch

from bytecap.testing.changes import Cases, check_change

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


@case
def descriptor_attr():
    class D:
        v = 1

        def __get__(self, o, t):
            return self.v

    class A:
        d = D()

    a = A()
    return (lambda x: a.d * x), (T,), lambda: setattr(A.__dict__["d"], "v", 5)


@case
def descriptor_replaced():
    class D:
        def __init__(s, v):
            s.v = v

        def __get__(self, o, t):
            return self.v

    class A:
        d = D(1)

    a = A()
    return (lambda x: a.d * x), (T,), lambda: setattr(A, "d", D(8))


@case
def descriptor_get_patched():
    class D:
        def __get__(self, o, t):
            return 1

    class A:
        d = D()

    a = A()
    return (lambda x: a.d * x), (T,), lambda: setattr(D, "__get__", lambda s, o, t: 5)


@case
def property_setter_patched():
    class A:
        def __init__(s):
            s._p = 1

        @property
        def p(self):
            return self._p

        @p.setter
        def p(self, v):
            self._p = v

    def f(x):
        a = A()
        a.p = 3
        return x * a.p

    def g(self, v):
        self._p = v * 10

    return f, (T,), lambda: setattr(A, "p", A.p.setter(g))


@case
def property_deleted():
    class B:
        p = 9

    class A(B):
        @property
        def p(self):
            return 2

    a = A()
    return (lambda x: a.p * x), (T,), lambda: delattr(A, "p")


@case
def setattr_added():
    class A:
        pass

    def f(x):
        a = A()
        a.v = 3
        return x * a.v

    return f, (T,), lambda: setattr(A, "__setattr__", lambda s, n, v: object.__setattr__(s, n, v * 2))


@case
def getattribute_added():
    class A:
        v = 3

    a = A()
    return (lambda x: x * a.v), (T,), lambda: setattr(A, "__getattribute__", lambda s, n: 8)


@case
def getattr_added():
    class A:
        pass

    a = A()
    return (lambda x: x * getattr(a, "z", 3)), (T,), lambda: setattr(A, "__getattr__", lambda s, n: 8)


@case
def init_patched():
    class A:
        def __init__(s, v):
            s.v = v

    def i(s, v):
        s.v = v * 2

    return (lambda x: x * A(3).v), (T,), lambda: setattr(A, "__init__", i)


@case
def new_added():
    class A:
        def __init__(s, v):
            s.v = v

    class B:
        v = 30

    return (lambda x: x * A(3).v), (T,), lambda: setattr(A, "__new__", lambda c, *a: B())


@case
def metaclass_call_added():
    class M(type):
        pass

    class B:
        v = 30

    class A(metaclass=M):
        def __init__(s, v):
            s.v = v

    return (lambda x: x * A(3).v), (T,), lambda: setattr(M, "__call__", lambda c, *a: B())


@case
def operator_added():
    class A:
        def __add__(s, o):
            return o + 1

    a = A()
    return (lambda x: a + x), (T,), lambda: setattr(A, "__add__", lambda s, o: o + 100)


@case
def bool_added():
    class A:
        pass

    a = A()
    return (lambda x: x * 2 if a else x * 3), (T,), lambda: setattr(A, "__bool__", lambda s: False)


@case
def len_added_truth():
    class A:
        pass

    a = A()
    return (lambda x: x * 2 if a else x * 3), (T,), lambda: setattr(A, "__len__", lambda s: 0)


@case
def eq_added():
    class A:
        pass

    a, b = A(), A()
    return (lambda x: x * 2 if a == b else x * 3), (T,), lambda: setattr(A, "__eq__", lambda s, o: True)


@case
def eq_via_contains():
    class A:
        pass

    a, b = A(), A()
    return (lambda x: x * 2 if a in [b] else x * 3), (T,), lambda: setattr(A, "__eq__", lambda s, o: True)


@case
def iter_patched():
    class A:
        def __iter__(s):
            return iter([1, 2])

    a = A()

    def f(x):
        for v in a:
            x = x + v
        return x

    return f, (T,), lambda: setattr(A, "__iter__", lambda s: iter([5]))


@case
def iter_added_over_getitem():
    class A:
        def __getitem__(s, i):
            if i < 2:
                return i
            raise IndexError

    a = A()

    def f(x):
        for v in a:
            x = x + v
        return x

    return f, (T,), lambda: setattr(A, "__iter__", lambda s: iter([5]))


@case
def contains_added():
    class A:
        def __iter__(s):
            return iter([1, 2])

    a = A()
    return (lambda x: x * 2 if 5 in a else x * 3), (T,), lambda: setattr(A, "__contains__", lambda s, o: True)


@case
def enter_exit():
    class A:
        def __enter__(s):
            return 2

        def __exit__(s, *a):
            return False

    a = A()

    def f(x):
        with a as k:
            return x * k

    return f, (T,), lambda: setattr(A, "__enter__", lambda s: 5)


@case
def instance_call_ignored():
    class A:
        def __call__(s, x):
            return x * 2

    a = A()
    return (lambda x: a(x)), (T,), lambda: setattr(A, "__call__", lambda s, x: x * 9)


@case
def instance_method_patch():
    class A:
        def m(s, x):
            return x * 2

    a = A()
    return (lambda x: a.m(x)), (T,), lambda: setattr(a, "m", lambda x: x * 9)


@case
def bases_changed():
    class P:
        def m(s, x):
            return x * 2

    class Q:
        def m(s, x):
            return x * 5

    class A(P):
        pass

    a = A()
    return (lambda x: a.m(x)), (T,), lambda: setattr(A, "__bases__", (Q,))


@case
def bases_changed_isinstance():
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    a = A()
    return (
        (lambda x: x * 2 if isinstance(a, (Q, int)) else x * (3 + issubclass(A, P))),
        (T,),
        lambda: setattr(A, "__bases__", (Q,)),
    )


@case
def class_renamed():
    class A:
        pass

    a = A()
    return (lambda x: x * len(type(a).__name__) + len(A.__qualname__)), (T,), lambda: setattr(A, "__name__", "Longer")


@case
def isinstance_abc_register():
    import abc

    class P(abc.ABC):
        pass

    class A:
        pass

    a = A()
    return (lambda x: x * 2 if isinstance(a, P) else x * 3), (T,), lambda: P.register(A)


@case
def instancecheck_changed():
    class M(type):
        def __instancecheck__(c, o):
            return True

    class P(metaclass=M):
        pass

    class A:
        pass

    a = A()
    return (
        (lambda x: x * 2 if isinstance(a, P) else x * 3),
        (T,),
        lambda: setattr(M, "__instancecheck__", lambda c, o: False),
    )


@case
def dunder_class_assigned():
    class A:
        def m(s, x):
            return x * 2

    class B:
        def m(s, x):
            return x * 5

    a = A()
    return (lambda x: a.m(x)), (T,), lambda: setattr(a, "__class__", B)


@case
def slots_value():
    class A:
        __slots__ = ("v",)

    a = A()
    a.v = 2
    return (lambda x: x * a.v), (T,), lambda: setattr(a, "v", 9)


@case
def slots_deleted():
    class A:
        __slots__ = ("v",)

    a = A()
    a.v = 2
    return (lambda x: x * getattr(a, "v", 7)), (T,), lambda: delattr(a, "v")


@case
def slots_added():
    class A:
        __slots__ = ("v",)

    a = A()
    return (lambda x: x * getattr(a, "v", 7)), (T,), lambda: setattr(a, "v", 3)


@case
def class_in_class():
    class A:
        class B:
            k = 2

    return (lambda x: x * A.B.k), (T,), lambda: setattr(A.B, "k", 9)


@case
def class_attr_list():
    class A:
        k = [2]

    return (lambda x: x * A.k[0]), (T,), lambda: A.k.__setitem__(0, 9)


@case
def class_attr_of_instance_list():
    class A:
        k = [2]

    a = A()
    return (lambda x: x * a.k[0]), (T,), lambda: A.k.__setitem__(0, 9)


@case
def class_attr_inherited_dict():
    class P:
        k = {"a": 2}

    class A(P):
        pass

    a = A()
    return (lambda x: x * a.k["a"]), (T,), lambda: P.k.update(a=5)


@case
def class_vars():
    class A:
        k = 2

    return (lambda x: x * vars(A)["k"]), (T,), lambda: setattr(A, "k", 9)


@case
def obj_dir():
    class A:
        pass

    a = A()
    return (lambda x: x * 2 if "zz" in dir(a) else x * 3), (T,), lambda: setattr(a, "zz", 9)


@case
def meta_attr():
    class M(type):
        k = 2

    class A(metaclass=M):
        pass

    return (lambda x: x * A.k), (T,), lambda: setattr(M, "k", 9)


@case
def meta_property():
    class M(type):
        @property
        def k(c):
            return 2

    class A(metaclass=M):
        pass

    return (lambda x: x * A.k), (T,), lambda: setattr(M, "k", property(lambda c: 9))


@case
def class_getattr_meta():
    class M(type):
        def __getattr__(c, n):
            return 2

    class A(metaclass=M):
        pass

    return (lambda x: x * A.k), (T,), lambda: setattr(M, "__getattr__", lambda c, n: 9)


@case
def super_chain():
    class P:
        def m(s, x):
            return x * 2

    class Q(P):
        def m(s, x):
            return super().m(x) + 1

    q = Q()
    return (lambda x: q.m(x)), (T,), lambda: setattr(P, "m", lambda s, x: x * 9)


@case
def super_between():
    class P:
        def m(s, x):
            return x * 2

    class P2(P):
        pass

    class Q(P2):
        def m(s, x):
            return super().m(x) + 1

    q = Q()
    return (lambda x: q.m(x)), (T,), lambda: setattr(P2, "m", lambda s, x: x * 9)


@case
def super_attr():
    class P:
        k = 2

    class P2(P):
        pass

    class Q(P2):
        def m(s, x):
            return x * super().k

    q = Q()
    return (lambda x: q.m(x)), (T,), lambda: setattr(P2, "k", 5)


@case
def super_property():
    class P:
        @property
        def k(s):
            return 2

    class P2(P):
        pass

    class Q(P2):
        def m(s, x):
            return x * super().k

    q = Q()
    return (lambda x: q.m(x)), (T,), lambda: setattr(P2, "k", 5)


@case
def super_other_bases():
    class P:
        def m(s, x):
            return x * 2

    class P2:
        def m(s, x):
            return x * 5

    class Q(P):
        def m(s, x):
            return super().m(x)

    q = Q()
    return (lambda x: q.m(x)), (T,), lambda: setattr(Q, "__bases__", (P2,))


@case
def super_cls():
    class P:
        @classmethod
        def m(c, x):
            return x * 2

    class P2(P):
        pass

    class Q(P2):
        @classmethod
        def m(c, x):
            return super().m(x)

    return (lambda x: Q.m(x)), (T,), lambda: setattr(P2, "m", classmethod(lambda c, x: x * 7))


@case
def descriptor_loses_its_set():
    class D:
        def __get__(self, o, t):
            return 2

        def __set__(self, o, value):
            pass

    class A:
        d = D()

    a = A()
    vars(a)["d"] = 5
    return (lambda x: x * a.d), (T,), lambda: delattr(D, "__set__")


@case
def descriptor_gets_a_set():
    class D:
        def __get__(self, o, t):
            return 2

    class A:
        d = D()

    a = A()
    vars(a)["d"] = 5
    return (lambda x: x * a.d), (T,), lambda: setattr(D, "__set__", lambda self, o, value: None)


@case
def attribute_becomes_descriptor():
    class D:
        rate = 2

    class A:
        d = D()

    other = D()
    other.rate = 5
    a = A()
    return (lambda x: x * a.d.rate), (T,), lambda: setattr(D, "__get__", lambda self, o, t: other)


@case
def descriptor_that_only_sets():
    class D:
        rate = 2

        def __set__(self, o, value):
            pass

    class A:
        d = D()

    a = A()
    other = D()
    other.rate = 5
    return (lambda x: x * a.d.rate), (T,), lambda: vars(a).__setitem__("d", other)


@case
def torch_function_of_subclass():
    class S(torch.Tensor):
        pass

    def only_told(cls, func, types, args=(), kwargs=None):
        return torch.ones(1)

    change = classmethod(only_told)
    return (lambda x: x * 2), (T.as_subclass(S),), lambda: setattr(S, "__torch_function__", change)


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())
