"""Names of Python modules, of the library and of builtins.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

from __future__ import annotations

import builtins
import math
import subprocess
import sys
import types

import pytest
import torch

from bytecap.testing.changes import Cases, check_change, patched, setting

MODULE_WITH_GETATTR = """
v = 2
def __getattr__(name):
    if name == "k":
        return v
    raise AttributeError(name)
"""
sys.zzz = 2  # a name that no module has
T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


@case
def patch_math():
    return (lambda x: x * math.sqrt(4)), (T,), lambda: patched(math, "sqrt", lambda v: 7)


@case
def patch_torch_sin_user():
    return (lambda x: torch.sin(x)), (T,), lambda: patched(torch, "sin", lambda v: v * 7)


@case
def patch_tensor_method():
    return (lambda x: x.relu()), (T,), lambda: patched(torch.Tensor, "relu", lambda s: s * 5)


def _updated(x):
    x = x * 1
    x += 2
    return x


def _written(x):
    y = x * 1
    y[0] = 7.0
    return y


OPERATORS = {
    "__add__": (lambda x: x + 1, lambda s, other: s * 5),
    "__mul__": (lambda x: x * x, lambda s, other: s - 5),
    "__rsub__": (lambda x: 1 - x, lambda s, other: s * other * 5),
    "__rtruediv__": (lambda x: 1 / (x + 1), lambda s, other: NotImplemented),
    "__iadd__": (_updated, lambda s, other: s.mul_(5)),
    "__neg__": (lambda x: -x, lambda s: s * 5),
    "__lt__": (lambda x: x < 3, lambda s, other: s * 5),
    "__eq__": (lambda x: x == 3, lambda s, other: s.mul(5)),
    "__getitem__": (lambda x: x[0], lambda s, key: s * 5),
    "__setitem__": (_written, lambda s, key, value: s.fill_(value)),
}


def check_operator(name):
    program, method = OPERATORS[name]
    check_change((program, (T,), lambda: patched(torch.Tensor, name, method)))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_tensors_that_are_patched(name):
    if name not in ("__getitem__", "__setitem__"):
        check_operator(name)
        return
    # CPython never again takes a class for what it was that had these: torch.tensor([x.sum(), 2]) raises then.
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@case
def patch_tensor_newattr():
    return (lambda x: x * getattr(x, "kk", 2)), (T,), lambda: patched(torch.Tensor, "kk", 5)


@case
def sys_attr():
    return (lambda x: x * sys.zzz), (T,), lambda: setattr(sys, "zzz", 9)


@case
def sys_argv():
    return (
        (lambda x: x * len(sys.argv)),
        (T,),
        lambda: setting(lambda: sys.argv, lambda v: setattr(sys, "argv", v), [1] * 9),
    )


@case
def sys_modules():
    return (lambda x: x * 2 if "zzmod" in sys.modules else x * 3), (T,), lambda: sys.modules.__setitem__("zzmod", types)


@case
def builtins_patched():
    import builtins

    return (lambda x: x * len([1, 2])), (T,), lambda: patched(builtins, "len", lambda v: 9)


@case
def builtins_in_inlined():
    import builtins

    ns = {}
    exec("def g(x): return x * len([1,2])", ns)
    g = ns["g"]
    return (lambda x: g(x)), (T,), lambda: patched(builtins, "len", lambda v: 9)


@case
def globals_of_exec():
    ns = {"k": 2}
    exec("def g(x): return x * k", ns)
    g = ns["g"]
    return (lambda x: g(x)), (T,), lambda: ns.__setitem__("k", 9)


@case
def globals_shadow_builtin_inlined():
    ns = {}
    exec("def g(x): return x * len([1,2])", ns)
    g = ns["g"]
    return (lambda x: g(x)), (T,), lambda: ns.__setitem__("len", lambda v: 9)


@case
def globals_module_inlined():
    m = types.ModuleType("zz_mod")
    sys.modules["zz_mod"] = m
    exec("k = 2\ndef g(x): return x * k", m.__dict__)
    g = m.g
    return (lambda x: g(x)), (T,), lambda: setattr(m, "k", 9)


@case
def module_attr():
    m = types.ModuleType("zz_mod2")
    sys.modules["zz_mod2"] = m
    m.k = 2
    return (lambda x: x * m.k), (T,), lambda: setattr(m, "k", 9)


@case
def module_getattr():
    m = types.ModuleType("zz_mod3")
    sys.modules["zz_mod3"] = m
    exec(MODULE_WITH_GETATTR, m.__dict__)
    return (lambda x: x * m.k), (T,), lambda: setattr(m, "v", 9)


@case
def module_unregistered():
    m = types.ModuleType("zz_mod4")
    m.k = 2
    return (lambda x: x * m.k), (T,), lambda: setattr(m, "k", 9)


@case
def module_in_sysmodules_replaced():
    m = types.ModuleType("zz_mod5")
    sys.modules["zz_mod5"] = m
    m.k = 2
    m2 = types.ModuleType("zz_mod5")
    m2.k = 9

    def f(x):
        import zz_mod5

        return x * zz_mod5.k

    return f, (T,), lambda: sys.modules.__setitem__("zz_mod5", m2)


@case
def import_from():
    m = types.ModuleType("zz_mod6")
    sys.modules["zz_mod6"] = m
    m.k = 2

    def f(x):
        from zz_mod6 import k

        return x * k

    return f, (T,), lambda: setattr(m, "k", 9)


@case
def name_that_becomes_a_builtin():
    def f(x):
        try:
            return x * zz_rate
        except NameError:
            return x - 1

    return f, (T,), lambda: patched(builtins, "zz_rate", 5)


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())


if __name__ == "__main__":
    check_operator(sys.argv[1])
