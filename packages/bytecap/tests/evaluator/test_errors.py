"""Programs run plain and captured: errors."""

# ruff: noqa: B018

from __future__ import annotations

import math

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix)
def handles_exceptions(x):
    try:
        y = {}["k"]
    except KeyError:
        y = x * 2
    finally:
        z = x * 3
    try:
        raise ValueError("a", 1)
    except (TypeError, ValueError) as e:
        m = e.args
    try:
        int("z")
    except ValueError as e:
        m2 = str(e)
    return y, z, m, m2


@PROGRAMS.add(matrix)
def a_slice_of_no_dimensions(x):
    try:
        return x.sum()[:1]
    except IndexError:
        return x + 1


@PROGRAMS.add(matrix)
def without_a_dict(x):
    complaints = []
    for value in (5, None, (), [], "text"):
        try:
            vars(value)
        except TypeError as error:
            complaints.append(str(error))
    return x + 1, complaints


@PROGRAMS.add(matrix, refusal="BC005")
def raises(x):
    x * 2
    raise RuntimeError("boom", 3)


@PROGRAMS.add(matrix, lambda: 0, refusal="BC005")
def divides_by_zero(x, n):
    return x * (1 // n)


@PROGRAMS.add(matrix, refusal="BC005")
def shape_mismatch(x):
    return x @ x


@PROGRAMS.add(matrix)
def try_finally_paths(x):
    out = []

    def f(k):
        try:
            if k == 0:
                return "r"
            if k == 1:
                raise KeyError("k")
            if k == 2:
                raise ValueError("v")
        except KeyError as e:
            out.append(repr(e))
            return "k"
        else:
            out.append("else")
        finally:
            out.append(k)
        return "end"

    r = [f(0), f(1), f(3)]
    try:
        f(2)
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise RuntimeError("b") from e
    except RuntimeError as e:
        r.append(repr(e.__cause__))
    return x + 1, r, out


@PROGRAMS.add(matrix)
def messages_of_builtin_errors(x):
    out = []

    def f(a, b=1):
        return a

    for args, kw in [((), {}), ((1, 2, 3), {}), ((1,), {"c": 2}), ((1,), {"a": 2})]:
        try:
            f(*args, **kw)
        except TypeError as e:
            out.append(str(e))
    try:
        1 + "a"
    except TypeError as e:
        out.append(str(e))
    try:
        [1][3]
    except IndexError as e:
        out.append(str(e))
    try:
        None.foo
    except AttributeError as e:
        out.append(str(e))
    try:
        (1).foo
    except AttributeError as e:
        out.append(str(e))
    try:
        undefined_name
    except NameError as e:
        out.append(str(e))
    try:
        _a, _b = [1]
    except ValueError as e:
        out.append(str(e))
    try:
        _a, _b = [1, 2, 3]
    except ValueError as e:
        out.append(str(e))
    try:
        len(3)
    except TypeError as e:
        out.append(str(e))
    try:
        iter(3)
    except TypeError as e:
        out.append(str(e))
    try:
        int("x")
    except ValueError as e:
        out.append(str(e))
    try:
        {}["a"]
    except KeyError as e:
        out.append(str(e))
    try:
        [].pop()
    except IndexError as e:
        out.append(str(e))
    try:
        (1, 2).index(5)
    except ValueError as e:
        out.append(str(e))
    try:
        [1].remove(2)
    except ValueError as e:
        out.append(str(e))
    try:
        {[]: 1}
    except TypeError as e:
        out.append(str(e))
    try:
        raise AssertionError("msg")
    except AssertionError as e:
        out.append(str(e))
    try:
        next(iter([]))
    except StopIteration as e:
        out.append(str(e))
    try:
        f.foo
    except AttributeError as e:
        out.append(str(e))
    try:
        x.foo
    except AttributeError as e:
        out.append(str(e))
    try:
        max([])
    except ValueError as e:
        out.append(str(e))
    try:
        math.sqrt(-1)
    except ValueError as e:
        out.append(str(e))
    try:
        number = 3
        number()
    except TypeError as e:
        out.append(str(e))
    return x * 1, out


@PROGRAMS.add(matrix)
def empty_cells(x):
    out = []

    def reads():
        return later

    try:
        reads()
    except NameError as error:
        out.append((type(error).__name__, str(error)))
    try:
        later
    except NameError as error:
        out.append((type(error).__name__, str(error)))
    later = 3
    return x * reads(), out


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
