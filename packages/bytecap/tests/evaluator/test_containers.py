"""Programs run plain and captured: containers."""

# ruff: noqa: B023

from __future__ import annotations

import collections

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix, lambda: {"a": 1, "b": {"c": [tensor(2)]}})
def dicts(x, d):
    d["z"] = x
    d["b"]["c"].append(x * 2)
    del d["a"]
    return sorted(d), d.get("q"), d.setdefault("w", 5), next(iter(d.items()))


class Lists(collections.defaultdict):
    pass


@PROGRAMS.add(matrix, lambda: Lists(list, b=[2.0]))
def a_subclass_of_defaultdict_makes_what_is_missing(x, lists):
    lists["a"].append(x * 2)
    return lists["b"], sorted(lists), lists.default_factory


@PROGRAMS.add(matrix, lambda: collections.deque([1, 2, 3], 3))
def containers_complain_as_those_of_c(x, queue):
    messages = []
    ordered, pairs, members = collections.OrderedDict(a=1, b=2), {1: 2}, {1, 2}
    iterators = [iter(ordered), iter(pairs), iter(members), iter(queue), reversed(ordered)]
    ordered.move_to_end("a")
    pairs.clear()
    members.add(3)
    queue.append(x)
    for attempt in (
        *(lambda iterator=iterator: next(iterator) for iterator in iterators * 2),
        lambda: [].pop(), lambda: [1].pop(3), lambda: [].insert(1), lambda: [1].reverse(2), lambda: [1].remove(x.shape),
        lambda: [1, 2].index(1, 1), lambda: (1,).index("a"), lambda: collections.deque().popleft(), lambda: queue[3],
        lambda: queue[1:], lambda: queue.insert(0, 1), lambda: collections.deque([1]).index(2), lambda: queue["a"],
        lambda: [2, 1].sort(key=3), lambda: [1, "a"].sort(), lambda: collections.deque([1]).remove(5),
    ):  # fmt: skip
        try:
            messages.append(attempt())
        except Exception as error:
            messages.append((type(error).__name__, str(error)))
    return messages, queue, ordered


@PROGRAMS.add(matrix, lambda: collections.deque([1, 2, 3], 3), lambda: [5, 6, 7])
def moves_in_outside_containers(x, queue, items):
    queue.append(x)
    queue.extendleft(iter([8, 9]))
    queue.rotate(-1)
    items.insert(-1, x)
    items.sort(key=lambda item: -item if isinstance(item, int) else 0)
    items.remove(6)
    return queue.pop(), queue, items.index(5), items, queue.copy(), queue.maxlen


@PROGRAMS.add(matrix)
def unpack(x):
    a, *b, c = [x, 1, 2, 3]
    (d, e), f = (x, 2), 3
    first, *rest = "abc"
    return a, b, c, d, e, f, first, rest, [*b, *[1]], {**{"a": 1}, "b": 2}, (*b,)


NT = collections.namedtuple("NT", "a b")


@PROGRAMS.add(matrix)
def ntuple(x):
    n = NT(x, 2)
    return n, n.a + n.b, n._replace(b=3), n[0]


@PROGRAMS.add(matrix, lambda: [3, 1, 2], lambda: {1, 2}, lambda: collections.OrderedDict(a=1))
def mutargs(x, l, s, o):
    l.sort()
    l.insert(0, x)
    l[1:2] = [7, 8]
    l += [9]
    s.add(3)
    s |= {4}
    s.discard(1)
    d = collections.deque([1, 2])
    d.appendleft(0)
    d.append(x)
    o["b"] = x
    o.move_to_end("a")
    return l, s, d, o


@PROGRAMS.add(matrix)
def default_and_ordered_dicts(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["b"]
    c = collections.OrderedDict([("z", 1)])
    c["y"] = 2
    return d, c


@PROGRAMS.add(lambda: (tensor(2), {"a": [tensor(3)]}))
def nested(p):
    a, d = p
    return a.sum() + d["a"][0].sum()


@PROGRAMS.add(matrix)
def lists(x):
    l = [3, 1, 2]
    m = l
    m.append(4)
    l2 = l[:]
    l2.reverse()
    l3 = l * 2
    del l[0]
    l[-1] = 9
    l.extend((1, 2))
    l.pop(0)
    return (
        x * l[0],
        l,
        m is l,
        l2,
        l3,
        l.count(1),
        l.index(9),
        [1, 2] < [1, 3],
        [1] == [1],
        3 in l,
        l.copy(),
        sorted("bca"),
        list("ab"),
        [[0] * 2] * 2,
    )


@PROGRAMS.add(matrix)
def dict_operations(x):
    d = {"b": 1, "a": x}
    d.update(c=3)
    d |= {"e": 5}
    k = list(d)
    v = d.pop("b")
    d2 = d | {"z": 1}
    d3 = dict(zip("ab", [1, 2], strict=False))
    d4 = dict.fromkeys("ab", 0)
    return (
        k,
        v,
        d,
        d2,
        d3,
        d4,
        "a" in d,
        len(d),
        [*d.values()][1:],
        d.popitem(),
        dict.fromkeys(d, 1),
        d == {**d},
        list(reversed(d3)),
        d.keys() & {"a"},
        dict(a=1, **d3 and {}),
        sorted(d3.items(), key=lambda p: -p[1]),
    )


@PROGRAMS.add(matrix)
def set_operations(x):
    s = {1, 2}
    s |= {3}
    return (
        x * len(s),
        s & {1},
        s - {1},
        s ^ {1, 9},
        s <= {1, 2, 3, 4},
        frozenset([1]) | {2},
        {1, 2} == {2, 1},
        s.isdisjoint({7}),
        sorted(s),
        1 in s,
    )


class L(list):
    def total(self):
        return sum(self)


@PROGRAMS.add(matrix)
def list_subclass(x):
    l = L([1, 2])
    l.append(3)
    l.extra = x
    return l, l.total(), len(l), l[0]


class Out(collections.OrderedDict):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.__dict__.update(dict(self))

    def __getitem__(self, k):
        return list(self.values())[k] if isinstance(k, int) else super().__getitem__(k)


@PROGRAMS.add(matrix)
def model_output_class(x):
    o = Out(loss=x.sum(), logits=x)
    return o, o[0], o["logits"], o.loss


@PROGRAMS.add(matrix)
def starexpr(x):
    return torch.cat([*[x, x]], **{"dim": 1}), print("a", end="")


@PROGRAMS.add(matrix)
def comps(x):
    return (
        [x * i for i in range(3)],
        {k: x + v for k, v in zip("abc", range(3), strict=False)},
        {i % 2 for i in range(5)},
        tuple(x - i for i in range(2)),
    )


@PROGRAMS.add(matrix)
def nested_comprehensions(x):
    return (
        [[x[i, j] for j in range(2) if j != i] for i in range(2)],
        {i: list(range(i)) for i in range(3)},
        next(lambda: i for i in range(2))(),
    )


@PROGRAMS.add(matrix)
def comprehensions_with_and_without_cells_of_one_name(x, k=2):
    kept = [k + 1 for k in range(3)], [(k, lambda: k) for k in (4, 5)], [k for k, _ in zip("ab", x, strict=False)]
    nested = [[lambda: k * j for k in (k, j)] for k, j in ((5, 6), (7, 8))]
    called = [function() for _, function in kept[1]], [function() for row in nested for function in row]
    return kept[0], kept[2], called, x + k


@PROGRAMS.add(matrix)
def swaps(x):
    a, b = x.sum(), x.mean()
    a, b = b, a
    return {"a": a, "b": [b, (a, b)]}


@PROGRAMS.add(matrix, lambda: collections.OrderedDict(a=1))
def ordered_dict_gains_an_item(x, o):
    o["b"] = x * 2
    return o


@PROGRAMS.add(matrix, lambda: collections.OrderedDict(a=1, b=2))
def ordered_dict_loses_an_item(x, o):
    del o["a"]
    return o, x * 2


class Made(collections.OrderedDict):
    def __getitem__(self, key):
        cls, count = super().__getitem__(key)
        return cls(count)


MADE = Made(a=(range, 3), b=(list, "xy"))


@PROGRAMS.add(matrix)
def dict_subclass_with_its_own_getitem(x):
    return x * len(MADE["a"]), MADE["b"], list(MADE), len(MADE), "a" in MADE


@PROGRAMS.add(matrix, lambda: [tensor(2)])
def what_fills_a_list_sees_it_grow(x, given):
    outputs = list(x.chunk(2, 1))
    outputs.extend(outputs[-1] * scale for scale in (2, 3))
    outputs += (len(outputs) for _ in range(2))
    given.extend(given[-1] + i for i in range(3))
    return outputs, given


@PROGRAMS.add(matrix)
def what_fills_other_containers_sees_them_grow(x):
    queue, members, table = collections.deque([1], maxlen=4), {1}, {0: x}
    queue.extend(queue[-1] * 2 for _ in range(5))
    queue.extendleft(queue[0] + 1 for _ in range(2))
    members.update(max(members) + 1 for _ in range(3))
    table.update((i, table[i - 1] + i) for i in range(1, 4))
    return queue, members, table


class Elsewhere(list):
    def __iter__(self):
        return iter([7, 8])


@PROGRAMS.add(matrix, lambda: Elsewhere([1, 2, 3]))
def what_c_reads_of_a_subclass(x, given):
    made = Elsewhere([1, 2, 3])
    return 3 in made, 7 in made, 3 in given, list(given), made * 2, made == [1, 2, 3], made[0], x + 1


@PROGRAMS.add(matrix)
def what_is_no_mapping_and_what_ended(x):
    def ends():
        yield 1

    messages, ended = [], ends()
    next(ended)
    for attempt in (lambda: {**[(1, 2)]}, lambda: {"a": 1, **"b"}, lambda: next(ended)):
        try:
            attempt()
        except (TypeError, StopIteration) as error:
            messages.append((str(error), error.args))
    return messages, x + 1


@PROGRAMS.add(matrix, refusal="BC002")
def methods_with_too_many_arguments(x):
    items = [x]
    try:
        items.append(1, 2)
    except TypeError as error:
        return str(error), items


@PROGRAMS.add(matrix)
def what_fills_a_list_fails_half_way(x):
    kept = [x]

    def items():
        yield x + 1
        raise ValueError("no more")

    try:
        kept.extend(items())
    except ValueError:
        return kept


class Attributes:
    def __init__(self):
        self.a, self.b, self.c, self.d = 1, [2], 3, 4


def least_recently_used(x, cache, owner):
    cache["a"] = cache.pop("a")
    cache["new"] = x
    first = next(iter(cache))
    if len(cache) > 3:
        cache.pop(first)


def deleted_and_stored_again(x, cache, owner):
    del cache["a"], owner.b, owner.d
    cache["z"], cache["a"] = 1, x
    owner.c = 9
    owner.b, owner.e = x, 5
    owner.d = owner.e


def not_looked_at(x, cache, owner):
    kept = owner.a
    del owner.a
    owner.a = kept
    del cache["b"]
    cache["b"] = 2


@pytest.mark.parametrize("change", [least_recently_used, deleted_and_stored_again, not_looked_at])
def test_keys_that_are_stored_again_come_last(change):
    def program(x, cache, owner):
        change(x, cache, owner)
        return x + 1

    captured = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    orders = []
    for call in (program, captured, captured):
        cache, owner = {"a": 1, "b": 2, "c": 3}, Attributes()
        call(torch.ones(2), cache, owner)
        orders.append([*cache, *vars(owner)])
    assert orders[1:] == orders[:1] * 2


def test_whether_a_defaultdict_has_a_factory_is_guarded():
    def program(x, table):
        return x * (1 if table.default_factory is None else 2)

    captured = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    for factory, factor in ((None, 1), (list, 2), (int, 2), (None, 1)):
        assert captured(torch.ones(1), collections.defaultdict(factory)).item() == factor


class Queue(collections.deque):
    pass


def test_what_is_not_modelled_is_not_changed_at_capture():
    def program(x, queue):
        queue += [2]
        return x + 1

    captured = optimize(program, lambda capture, inputs: executor(capture))
    for _ in range(2):
        queue = Queue([1])
        captured(torch.ones(1), queue)
        assert list(queue) == [1, 2]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
