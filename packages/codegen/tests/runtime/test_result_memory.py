"""Memory that recordings share: what a user holds is never written, what nobody holds is used again."""

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.runtime.result_memory import Hold, ResultMemory
from stagewire.types import contiguous


class Recording:
    """Writes a number into all of its results, and hands them out."""

    def __init__(self, memory, sizes, together, avoid):
        types = {str(number): contiguous("float32", (size,)) for number, size in enumerate(sizes)}
        taken = list(avoid)
        placed = memory.place(types, {str(number) for number in together}, "saved", taken)
        self.results = [placed.pop(name) for name in types]
        self.hold = Hold(taken[len(avoid) :])

    def replay(self, number):
        for result in self.results:
            result.fill_(number)
        return [result.data for result in self.results]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sets(st.integers(0, 3))),
        st.tuples(st.just("replay"), st.integers(0, 9), st.lists(st.integers(0, 3), max_size=2)),
        st.tuples(st.just("let go"), st.integers(0, 9), st.none()),
        st.tuples(st.just("forget"), st.integers(0, 9), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_what_is_held_stays_what_it_was(steps):
    memory, recordings, held, number = ResultMemory(), [], [], 0
    for kind, value, more in steps:
        if kind == "record":
            sizes = [100 * size for size in value]
            recordings.append(Recording(memory, sizes, {k for k in more if k < len(sizes)}, []))
        elif kind == "replay" and recordings:
            one = recordings[value % len(recordings)]
            if one.hold.is_free():
                number += 1
                made = one.replay(float(number))
                held += [(made[k], float(number)) for k in more if k < len(made)]
                del made
        elif kind == "let go" and held:
            del held[value % len(held)]
        elif kind == "forget" and recordings:
            del recordings[value % len(recordings)]
        one = None  # the test itself holds nothing beside
        assert all((tensor == stamp).all() for tensor, stamp in held)
    for recording in recordings:  # and whoever holds nothing is in nobody's way
        mine = {result.untyped_storage().data_ptr() for result in recording.results}
        theirs = {tensor.untyped_storage().data_ptr() for tensor, _ in held}
        assert recording.hold.is_free() == (not mine & theirs)


def test_blocks_are_used_again_and_given_back():
    memory = ResultMemory()
    large = Recording(memory, [400, 300, 50], {0, 1}, [])
    small = Recording(memory, [200, 100, 50], {0, 1}, [])
    assert small.hold.blocks == large.hold.blocks
    assert [block.kind for block in large.hold.blocks] == ["exact", "saved"]
    held = large.replay(1.0)[0]
    assert not small.hold.is_free()
    other = Recording(memory, [200, 100, 50], {0, 1}, [])
    assert other.hold.blocks[0] is large.hold.blocks[0]
    assert other.hold.blocks[1] is not large.hold.blocks[1]
    turn = Recording(memory, [200, 100, 50], {0, 1}, large.hold.blocks)
    assert not set(map(id, turn.hold.blocks)) & set(map(id, large.hold.blocks))
    del large, small, other, turn
    gc.collect()
    assert not len(memory._blocks)
    assert (held == 1.0).all()


def test_results_that_users_see_have_storages_of_their_size():
    memory = ResultMemory()
    first = Recording(memory, [400], set(), [])
    second = Recording(memory, [100], set(), [])
    assert [one.results[0].untyped_storage().nbytes() for one in (first, second)] == [1600, 400]
