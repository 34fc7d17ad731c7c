"""What generated programs may use, as the text of a module: classes, generators, context managers, an exception."""

PRELUDE = '''
import bisect, collections, contextlib, copy, dataclasses, enum, functools, heapq, itertools, json, math, operator, re
import string, sys
import torch


class Shade(enum.Flag):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1

    @property
    def step(self):
        return self.value * 10


@dataclasses.dataclass(order=True)
class Tally:
    x: int
    y: int = 3
    scale: dataclasses.InitVar[int] = 2
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale):
        self.total = (self.x + self.y) * (scale if isinstance(scale, int) else 1)


class Doubling(dict):
    def __missing__(self, key):
        return 2


class Row(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def total(self):
        return len(self) + self[1]


class Named:
    def __set_name__(self, owner, name):
        self.text = name

    def __get__(self, instance, owner=None):
        return len(self.text) if instance is None else len(self.text) * 2


class Grid:
    size = Named()
    name = Named()


def described(value):
    match value:
        case int(n) if n > 2:
            return n
        case [first, *rest]:
            return first + len(rest)
        case Tally(x=x):
            return x
        case _:
            return 0


class Box:
    made = "box"

    def __init__(self, value, items=()):
        self.value = value
        self.items = list(items)

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, new):
        self.value = new // 2

    @classmethod
    def of(cls, value):
        return cls(value, [value])

    @staticmethod
    def twice(value):
        return value * 2

    def __add__(self, other):
        return type(self)(self.value + (other.value if isinstance(other, Box) else other), self.items)

    __radd__ = __add__

    def __eq__(self, other):
        return self.value == other.value if isinstance(other, Box) else NotImplemented

    def __lt__(self, other):
        return self.value < other.value

    def __hash__(self):
        return hash(self.value)

    def __bool__(self):
        return self.value != 0

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        for item in self.items:
            yield item

    def __contains__(self, item):
        return item in self.items

    def __getitem__(self, index):
        return self.items[index]

    def __neg__(self):
        return Box(-self.value, reversed(self.items))

    def __sub__(self, other):
        return NotImplemented

    def __isub__(self, other):
        self.value -= other
        return self

    def __matmul__(self, other):
        return Box(self.value, self.items * max(other, 0))

    def __mul__(self, other):
        made = copy.copy(self)
        made.value = self.value * other
        return made

    def __call__(self, *values, **named):
        return self.value + sum(values) + len(named)

    def __repr__(self):
        return f"{type(self).__name__}({self.value}, {self.items})"

    def grow(self, by=1):
        self.value += by
        return self


class SubBox(Box):
    made = "sub"

    def grow(self, by=1):
        super().grow(by)
        self.items.append(by)
        return self

    def __getattr__(self, name):
        if name.startswith("lazy"):
            return len(name)
        raise AttributeError(name)


class Failure(Exception):
    def __init__(self, code, *more):
        super().__init__(code, *more)
        self.code = code


class Swallow:
    """Notes how it is left; keeps KeyErrors in."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(None if kind is None else kind.__name__)
        return kind is not None and issubclass(kind, KeyError)


@contextlib.contextmanager
def noted(log, text):
    log.append(text)
    try:
        yield len(log)
    except IndexError as error:
        log.append(type(error).__name__)
        raise
    finally:
        log.append("left")


def counting(end, step=1):
    total = 0
    try:
        while total < end:
            got = yield total
            total += step if got is None else max(got, 1)
    except Failure as failure:
        yield failure.code
    return total


def tree(items):
    for item in items:
        if isinstance(item, list):
            yield from tree(item)
        else:
            yield item


def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs) + wrapper.calls

    wrapper.calls = 0
    return wrapper


@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 0

    def __iter__(self):
        yield self.x
        yield self.y


Pair = collections.namedtuple("Pair", "a b")


class Color(enum.Enum):
    ONE = 1
    TWO = 2
    THREE = 3


class Slotted:
    __slots__ = ("missing", "size")

    def __init__(self, size):
        self.size = size


class Deep(dict):
    """A dict that makes what is missing."""

    @property
    def size(self):
        return len(self)

    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def total(items):
    return items[0] + total(items[1:]) if items else 0


def power(x, n):
    if n <= 0:
        return x
    return power(x, n - 1) * x


def spread(first, *rest, y=1, **named):
    return first + sum(rest) * y + len(named)


def strict(n):
    if n < 0:
        raise ValueError(n)
    try:
        return n // (n - 1)
    finally:
        n += 1


def collect(items):
    found = 0

    def visit(row):
        nonlocal found
        for item in row:
            if item > 2:
                break
            found += item
        else:
            return len(row)
        return -1

    return visit(items) + found


def ternary(n, items):
    for item in items:
        if item == n:
            return item
        with contextlib.suppress(ZeroDivisionError):
            n += 1 // item
            continue
        n -= 1
    return n


def passes(items):
    def inner():
        for item in items:
            got = yield item
            if got is not None:
                return got
        return len(items)

    result = yield from inner()
    yield result


def kind_of(value):
    match value:
        case []:
            return "empty"
        case [one] | [one, _]:
            return f"short {one}"
        case [first, *rest] if first in rest:
            return f"again {rest}"
        case {"a": found, **rest}:
            return f"{found} and {len(rest)}"
        case SubBox(value=v) | Box(value=v):
            return f"box of {v}"
        case str() as text:
            return text[:3]
    return "other"


def logged(log, *values, **named):
    log.append((len(values), *values[:1]))


@contextlib.contextmanager
def stated(log, context):
    with context:
        log.append(torch.is_grad_enabled())
        yield
    log.append(torch.is_grad_enabled())
'''
