"""What generated programs may use, as the text of a module: classes, generators, context managers, an exception."""

PRELUDE = '''
import collections, contextlib, copy, functools, itertools, operator, sys
import torch


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
'''
