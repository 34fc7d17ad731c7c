"""What a function depends on: defaults, attributes, closures, partials, decorators.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

# ruff: noqa: B018
from __future__ import annotations

import functools
import operator
import types

import pytest
import torch

from bytecap.testing.changes import Cases, check_change

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


@case
def default_list_content():
    acc = [1, 2]

    def f(x, a=acc):
        return x * len(a) + a[0]

    return (lambda x: f(x)), (T,), lambda: acc.__setitem__(0, 9)


@case
def default_list_content_root():
    acc = [1, 2]

    def f(x, a=acc):
        return x * len(a) + a[0]

    return f, (T,), lambda: acc.append(9)


@case
def default_tensor_resized():
    k = torch.ones(3)

    def f(x, a=k):
        return x * a

    return (lambda x: f(x)), (T,), lambda: setattr(k, "data", torch.ones(3, dtype=torch.float64) * 2)


@case
def default_object_attr():
    b = types.SimpleNamespace(v=2)

    def f(x, a=b):
        return x * a.v

    return (lambda x: f(x)), (T,), lambda: setattr(b, "v", 5)


@case
def kwdefault_object_attr():
    b = types.SimpleNamespace(v=2)

    def f(x, *, a=b):
        return x * a.v

    return (lambda x: f(x)), (T,), lambda: setattr(b, "v", 5)


@case
def function_attribute():
    def f(x):
        return x * f.k

    f.k = 2
    return (lambda x: f(x)), (T,), lambda: setattr(f, "k", 5)


@case
def function_attribute_added():
    def f(x):
        return x * getattr(f, "k", 3)

    return (lambda x: f(x)), (T,), lambda: setattr(f, "k", 5)


@case
def closure_of_method():
    k = 2

    class A:
        def m(self, x):
            return x * k

    a = A()

    def ch():
        nonlocal k
        k = 7

    return (lambda x: a.m(x)), (T,), ch


@case
def closure_of_property():
    k = 2

    class A:
        @property
        def p(self):
            return k

    a = A()

    def ch():
        nonlocal k
        k = 7

    return (lambda x: a.p * x), (T,), ch


@case
def closure_of_cached_property():
    k = 2

    class A:
        @functools.cached_property
        def p(self):
            return k

    def f(x):
        return A().p * x

    def ch():
        nonlocal k
        k = 7

    return f, (T,), ch


@case
def cached_property_value_changed():
    class A:
        @functools.cached_property
        def p(self):
            return 2

    a = A()
    a.p
    return (lambda x: a.p * x), (T,), lambda: a.__dict__.__setitem__("p", 9)


@case
def cached_property_deleted():
    class A:
        n = 2

        @functools.cached_property
        def p(self):
            return self.n

    a = A()
    a.p

    def ch():
        a.n = 5
        del a.p

    return (lambda x: a.p * x), (T,), ch


@case
def closure_of_static():
    k = 2

    class A:
        @staticmethod
        def p(x):
            return k * x

    def ch():
        nonlocal k
        k = 7

    return (lambda x: A.p(x)), (T,), ch


@case
def closure_of_classmethod():
    k = 2

    class A:
        @classmethod
        def p(cls, x):
            return k * x

    def ch():
        nonlocal k
        k = 7

    return (lambda x: A.p(x)), (T,), ch


@case
def closure_in_descriptor():
    k = 2

    class D:
        def __get__(self, o, t):
            return k

    class A:
        d = D()

    a = A()

    def ch():
        nonlocal k
        k = 7

    return (lambda x: a.d * x), (T,), ch


@case
def function_name_changed():
    def g():
        pass

    return (lambda x: (x * 2, g.__name__)), (T,), lambda: setattr(g, "__name__", "Z")


@case
def function_doc_changed():
    def g():
        "a"

    return (lambda x: (x * 2, g.__doc__)), (T,), lambda: setattr(g, "__doc__", "Z")


@case
def partial_args():
    def g(a, x):
        return x * a

    b = [functools.partial(g, 2)]
    return (lambda x: b[0](x)), (T,), lambda: b.__setitem__(0, functools.partial(g, 5))


@case
def partial_keywords_mutated():
    def g(x, a=1):
        return x * a

    p = functools.partial(g, a=2)
    return (lambda x: p(x)), (T,), lambda: p.keywords.__setitem__("a", 9)


@case
def partial_root_keywords_mutated():
    def g(x, a=1):
        return x * a

    p = functools.partial(g, a=2)
    return p, (T,), lambda: p.keywords.__setitem__("a", 9)


@case
def partial_func_attr():
    def g(x):
        return x * p.k

    p = functools.partial(g)
    p.k = 2
    return (lambda x: p(x)), (T,), lambda: setattr(p, "k", 9)


@case
def partialmethod():
    class A:
        def m(s, a, x):
            return x * a

        n = functools.partialmethod(m, 2)

    a = A()
    return (lambda x: a.n(x)), (T,), lambda: setattr(A, "n", functools.partialmethod(A.m, 7))


@case
def bound_method_swapped():
    class A:
        def __init__(s, v):
            s.v = v

        def m(s, x):
            return x * s.v

    b = [A(2).m]
    return (lambda x: b[0](x)), (T,), lambda: b.__setitem__(0, A(9).m)


@case
def bound_method_self_mutated():
    class A:
        def __init__(s, v):
            s.v = v

        def m(s, x):
            return x * s.v

    a = A(2)
    b = [a.m]
    return (lambda x: b[0](x)), (T,), lambda: setattr(a, "v", 5)


@case
def bound_method_root_self_mutated():
    class A:
        def __init__(s, v):
            s.v = v

        def m(s, x):
            return x * s.v

    a = A(2)
    return a.m, (T,), lambda: setattr(a, "v", 5)


@case
def builtin_method_of_list():
    l = [1, 2]
    g = l.count
    return (lambda x: x * g(1)), (T,), lambda: l.append(1)


@case
def builtin_method_of_dict():
    l = {"a": 1}
    g = l.get
    return (lambda x: x * g("a")), (T,), lambda: l.update(a=7)


@case
def itemgetter_swapped():
    b = [operator.itemgetter(0)]
    return (lambda x: b[0](x) * 2), (T,), lambda: b.__setitem__(0, operator.itemgetter(1))


@case
def attrgetter_target():
    g = operator.attrgetter("v")
    a = types.SimpleNamespace(v=2)
    return (lambda x: g(a) * x), (T,), lambda: setattr(a, "v", 5)


@case
def methodcaller():
    b = [operator.methodcaller("sum")]
    return (lambda x: b[0](x) * 2), (T,), lambda: b.__setitem__(0, operator.methodcaller("mean"))


@case
def lru_cache_swapped():
    b = [functools.lru_cache(lambda n: n * 2)]
    return (lambda x: x * b[0](3)), (T,), lambda: b.__setitem__(0, functools.lru_cache(lambda n: n * 5))


@case
def wrapped_decorator():
    def deco(fn):
        @functools.wraps(fn)
        def w(*a):
            return fn(*a) * w.k

        w.k = 2
        return w

    @deco
    def g(x):
        return x + 1

    return (lambda x: g(x)), (T,), lambda: setattr(g, "k", 5)


@case
def singledispatch():
    @functools.singledispatch
    def g(a):
        return 2

    g.register(int, lambda a: 3)

    def ch():
        g.register(int, lambda a: 9)

    return (lambda x: x * g(1)), (T,), ch


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())
