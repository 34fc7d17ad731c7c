"""Numbers that captured code draws from a `random.Random` from outside: as plain, and the states are so after."""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bytecap import executor, graph_break, optimize
from bytecap.errors import CannotCapture, DataDependent, UnsupportedCall
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.types import ScalarType
from stagewire.verify import verify

FIRST, SECOND = random.Random(), random.Random()


class Eager:
    """A backend that takes numbers of the running call."""

    takes_symbols = takes_data_sizes = True

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def __call__(self, capture: Capture, inputs: Any) -> Callable[..., Any]:
        if not any(value.type == ScalarType("int") for node in capture.graph.nodes for value in node.results):
            verify(capture)  # which knows no symbols that nodes give
        assert decode(encode(capture)) == capture
        assert len(inputs) == len(capture.inputs)
        self.captures.append(capture)
        return executor(capture)


def observed(function: Callable[..., Any], calls: int = 4) -> list[Any]:
    """What calls give or raise, what they note, and the states of the generators after each."""
    FIRST.seed(1), SECOND.seed(2), random.seed(3), torch.manual_seed(4)
    found = []
    for number in range(calls):
        log: list[Any] = []
        try:
            result = function(torch.arange(5.0) + number, log)
        except CannotCapture:
            raise
        except Exception as error:
            result = error
        states = [hash(generator.getstate()) for generator in (FIRST, SECOND, random)]
        found.append((repr(result), [repr(item) for item in log], states))
    return found


def assert_same(function: Callable[..., Any], *, fullgraph: bool = True) -> list[Capture]:
    """The captures of a function that does the same captured."""
    backend = Eager()
    got = observed(optimize(function, backend, fullgraph=fullgraph, on_event=lambda event: None))
    for number, (one, other) in enumerate(zip(got, observed(function), strict=True)):
        assert one == other, f"call {number}: {one} is not {other}"
    return backend.captures


# -- whole functions


def floats(x, log):
    log.append(FIRST.random())
    y = x * FIRST.uniform(-1, 1) + random.gauss(0, 1)
    return y - random.random(), SECOND.betavariate(1, 2), FIRST.triangular(), FIRST.vonmisesvariate(0.0, 4.0)


def ints(x, log):
    count = FIRST.randint(1, 4)
    log.append(SECOND.getrandbits(30))
    return x[:count], x * FIRST.randrange(10), torch.zeros(count), x[FIRST.randrange(0, 5, 2)], count


def computed(x, log):
    scale, count = FIRST.random(), FIRST.randint(1, 9)
    log.append((count / 3, scale**0.5, int(scale * 10), -scale, abs(scale - 1), max(scale, FIRST.random())))
    log.append(
        (round(scale, 2), math.atan2(scale, count), math.fsum([scale, 1.0]), sum([scale, 0.1, 0.2]), pow(count, 2, 3))
    )
    return x * (2 * scale + count) / count, x + count * x.shape[0] * scale, round(scale), count % 4


def of_lists(x, log):
    order = [0, 1, 2, 3]
    FIRST.shuffle(order)
    SECOND.shuffle(order)
    log.append([order, SECOND.sample(range(50), k=3), random.choices([0.5, 1.5], [1, 2], k=2)])
    return x[torch.tensor(order)] * FIRST.choice([1, 2, 3]), FIRST.sample([1.0, 2.0, 4.0], 2)


def seeded(x, log):
    FIRST.gauss(0, 1)
    FIRST.seed("text")
    y = x * FIRST.gauss(0, 1)
    random.seed(FIRST.randint(0, 3))
    return y + random.random()


def given_numbers_of_the_call(x, log):
    low = FIRST.random()
    high = FIRST.uniform(low, b=low + x.shape[0])
    return x * high, SECOND.randint(0, FIRST.randint(1, 5)), SECOND.choice([FIRST.randint(1, 5), 7])


def in_loops_and_calls(x, log):
    def noise(generator):
        yield from (generator.normalvariate(0, 1) for _ in range(2))

    for number in noise(FIRST):
        x = x + number
    log.extend(map(FIRST.uniform, [1, 2], [3, 4]))
    return x * sum([SECOND.random() for _ in range(3)])


def raises_in_the_graph(x, log):
    return x.gather(0, torch.tensor([FIRST.randint(0, 9)])) + SECOND.gauss(0, 1)


def raises_in_front_of_the_graph(x, log):
    y = x * FIRST.random()
    try:
        return y + SECOND.randint(FIRST.randint(0, 3), 2)
    except ValueError as error:
        return y, str(error), SECOND.random()


def wrong_arguments(x, log):
    for draw in (lambda: FIRST.getrandbits(-1), lambda: FIRST.randint(3, 1), lambda: FIRST.sample(range(2), 3)):
        try:
            log.append(draw())
        except ValueError as error:
            log.append(str(error))
    return x * FIRST.random() + FIRST.choice(range(10**12)) % 3


def overflows(x, log):
    return x * FIRST.lognormvariate(0, 400), SECOND.random()


def has_a_check(x, log):
    log.append(FIRST.random())
    assert FIRST.randint(0, 3) < 2
    if (x * SECOND.random() > 4).any():
        raise ValueError("large")
    return x + 1


WHOLE = (
    floats, ints, computed, of_lists, seeded, given_numbers_of_the_call, in_loops_and_calls, raises_in_the_graph,
    raises_in_front_of_the_graph, wrong_arguments, overflows, has_a_check,
)  # fmt: skip


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_same_as_plain(program, fullgraph):
    captures = assert_same(program, fullgraph=fullgraph)
    assert len(captures) == 1


def test_gradients():
    def program(x, log):
        return (x * FIRST.random()).sin() * SECOND.randint(1, 5)

    def trained(function):
        def step(x, log):
            result = function(x.requires_grad_(), log)
            result.sum().backward()
            return result, x.grad

        return observed(step)

    assert trained(optimize(program, Eager(), fullgraph=True)) == trained(program)


def test_a_capture_serves_other_generators():
    def program(x, generator):
        return x * generator.random()

    backend = Eager()
    compiled = optimize(program, backend, fullgraph=True)
    for seed in range(3):
        expected = program(torch.ones(2), random.Random(seed))
        assert torch.equal(compiled(torch.ones(2), random.Random(seed)), expected)
    assert len(backend.captures) == 1


def test_one_generator_in_two_places():
    def program(x, first, second):
        return x * first.random() + second.random(), first.randint(0, 9)

    compiled = optimize(program, Eager(), fullgraph=True)
    for distinct in (True, False, True):
        results = []
        for function in (program, compiled):
            first = random.Random(3)
            results.append(str(function(torch.ones(2), first, random.Random(4) if distinct else first)))
        assert results[0] == results[1]


def test_a_replaced_generator_is_drawn_from():
    class Holder:
        generator = FIRST

    def program(x, log):
        y = x * Holder.generator.random()
        Holder.generator = SECOND if Holder.generator is FIRST else FIRST
        return y * Holder.generator.random()

    assert_same(program, fullgraph=False)


# -- what is refused, or ends the graph


def steers(x, log):
    return x + 1 if FIRST.random() < 0.5 else x - 1


def steers_by_an_int(x, log):
    for _ in range(FIRST.randint(1, 3)):
        x = x * 2
    return x


def chooses_objects(x, log):
    return x * 2 + FIRST.choice([x, x + 1]), random.choice("ab")


def reads_the_state(x, log):
    y = x * FIRST.gauss(0, 1)
    log.append((hash(FIRST.getstate()), FIRST.gauss_next))
    return y * FIRST.gauss(0, 1)


def puts_a_state_back(x, log):
    state = FIRST.getstate()
    y = x * FIRST.random()
    FIRST.setstate(state)
    return y * FIRST.random()


def shuffles_a_tuple(x, log):
    try:
        FIRST.shuffle((1, 2))
    except TypeError:
        log.append("a tuple")
    return x * FIRST.random()


def of_many_bits(x, log):
    return x * 2, FIRST.getrandbits(100), FIRST.randint(0, 1 << 70)


def of_a_number_of_data(x, log):
    return x * FIRST.uniform(0, x.sum().item())


def in_a_branch_of_the_graph(x, log):
    return torch.cond(x.sum() > 12, lambda y: y * FIRST.random(), lambda y: y + 1, (x,))


def in_a_checkpoint(x, log):
    x.requires_grad_()
    torch.utils.checkpoint.checkpoint(lambda y: (y * FIRST.random()).sin(), x, use_reentrant=False).sum().backward()
    return x.grad is None


class Loaded(random.Random):
    def random(self):
        return 0.25


LOADED = Loaded(3)


def of_a_subclass(x, log):
    return x * LOADED.uniform(0, 4)


def of_the_machine(x, log):
    return x + (random.SystemRandom().random() < 2)


REFUSED = {
    steers: DataDependent, steers_by_an_int: DataDependent, chooses_objects: UnsupportedCall,
    reads_the_state: UnsupportedCall, shuffles_a_tuple: UnsupportedCall,
    puts_a_state_back: UnsupportedCall, of_many_bits: UnsupportedCall,
    of_a_number_of_data: DataDependent, in_a_branch_of_the_graph: UnsupportedCall,
    in_a_checkpoint: UnsupportedCall, of_the_machine: UnsupportedCall,
}  # fmt: skip


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_refused_and_nothing_is_drawn(program):
    FIRST.seed(5)
    state = FIRST.getstate()
    with pytest.raises(REFUSED[program]):
        optimize(program, Eager(), fullgraph=True)(torch.arange(5.0), [])
    assert FIRST.getstate() == state


@pytest.mark.parametrize("program", [*REFUSED, of_a_subclass], ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_same_with_breaks(program):
    assert_same(program, fullgraph=False)


def test_a_backend_without_numbers_of_the_call_gets_none():
    compiled = optimize(floats, lambda capture, _: executor(capture), on_event=lambda event: None)
    assert observed(compiled) == observed(floats)
    with pytest.raises(UnsupportedCall):
        optimize(floats, lambda capture, _: executor(capture), fullgraph=True)(torch.ones(5), [])


# -- programs that are drawn

DRAWS = (
    "a = {r}.random()", "a = {r}.uniform(-1, b)", "b = {r}.gauss(0, 1)", "n = {r}.randint(0, 6)",
    "m = {r}.randrange(1, 5)", "n = {r}.choice([1, 3, m])", "b, a = {r}.sample([0.5, a, b], 2)", "{r}.seed(n)",
)  # fmt: skip
USES = (
    "x = x * a + b", "x = x + n", "x = (x * m).cos()", "a = a * 2 + m", "b = -b / m", "n = int(a * 3) % 4",
    "log.append((a, n))", "holder.append(b)", "x[n] = a", "x = x + x.gather(0, torch.tensor([n]))",
    "x = x + {r}.expovariate(m) if x.dim() else x", "assert n < 5", "x = x + torch.rand(5)",
    "for _ in range(2): x = x - {r}.random()", "a = round(a, 2) + sum([a, b, 0.1])", "n = pow(m, n, 5)",
    "b = math.hypot(b, m)",
)  # fmt: skip
BREAKS = (
    "graph_break()", "log.append(hash({r}.getstate()))", "x = x + 1 if a < 0.3 else x * {r}.random()",
    "x = x.sin() if n > 3 else x.cos()", "log.append(f'{{a}}')", "{r}.setstate(({r}.getstate()))",
    "FIRST.gauss_next = None", "log.append({r}.choice('abc'))",
)  # fmt: skip


def lines(templates: tuple[str, ...]) -> st.SearchStrategy[str]:
    generators = st.sampled_from(["FIRST", "SECOND", "random"])
    return st.builds(lambda text, r: text.format(r=r), st.sampled_from(templates), generators)


def program_of(body: list[str]) -> Callable[..., Any]:
    text = "\n    ".join(["def program(x, log):", "holder, a, b, n, m = [], 0.5, 0.25, 2, 3", *body])
    text += "\n    return x, holder, a, b, n, m\n"
    name = f"<drawn {hash(text)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    names = {
        "torch": torch,
        "math": math,
        "random": random,
        "graph_break": graph_break,
        "FIRST": FIRST,
        "SECOND": SECOND,
    }
    exec(compile(text, name, "exec"), names)
    return names["program"]


@given(st.lists(lines(DRAWS) | lines(USES), min_size=2, max_size=10))
def test_drawn_programs_are_whole(body):
    body = [line for line in body if line != "x[n] = a"]
    assert_same(program_of(["x = x + 0", *body]))


@given(st.lists(lines(DRAWS) | lines(USES) | lines(BREAKS), min_size=2, max_size=12))
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_drawn_programs_with_breaks(body):
    assert_same(program_of(["x = x + 0", *body]), fullgraph=False)
