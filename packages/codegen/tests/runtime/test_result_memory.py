"""Memory that recordings share: what a user holds is never written, what nobody holds is used again."""

import gc
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.runtime.result_memory import Block, Hold, ResultMemory, on_blocks, packed
from stagewire.types import contiguous


class Recording:
    """Writes a number into all of its results, and hands them out. results: a size and a kind of memory for each."""

    def __init__(self, memory, results, avoid=()):
        types = {str(number): contiguous("float32", (size,)) for number, (size, _) in enumerate(results)}
        taken = list(avoid)
        placed = memory.place(types, {str(number): kind for number, (_, kind) in enumerate(results)}, taken)
        self.results = [placed.pop(name) for name in types]
        self.hold = Hold(taken[len(avoid) :], self.results)

    def replay(self, number):
        for result in self.results:
            result.fill_(number)
        return [result.data for result in self.results]


def by_storage(tensor):
    """A reader of the tensor that holds the Python object of its storage alone."""
    storage, offset, shape = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape
    return lambda: torch.empty(0).set_(storage, offset, shape)


def by_view(tensor):
    """A reader of all but the first element of the tensor."""
    view = tensor[1:]
    return lambda: view


SIZES = st.integers(1, 4).map(lambda number: 100 * number)
KINDS = st.sampled_from(("result", "exact", "saved", "inputs"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.lists(st.tuples(SIZES, KINDS), min_size=1, max_size=4), st.none()),
        st.tuples(
            st.just("replay"),
            st.integers(0, 9),
            st.lists(st.tuples(st.integers(0, 3), st.sampled_from((by_storage, by_view))), max_size=2),
        ),
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
            recordings.append(Recording(memory, value))
        elif kind == "replay" and recordings:
            one = recordings[value % len(recordings)]
            if one.hold.is_free():
                number += 1
                made = one.replay(float(number))
                held += [(hold(made[k]), float(number)) for k, hold in more if k < len(made)]
                del made
        elif kind == "let go" and held:
            del held[value % len(held)]
        elif kind == "forget" and recordings:
            del recordings[value % len(recordings)]
        one = None  # the test itself holds nothing beside
        assert all((read() == stamp).all() for read, stamp in held)
    for recording in recordings:  # and whoever holds nothing is in nobody's way
        mine = {result.untyped_storage().data_ptr() for result in recording.results}
        theirs = {read().untyped_storage().data_ptr() for read, _ in held}
        assert recording.hold.is_free() == (not mine & theirs)


def test_blocks_are_used_again_and_given_back():
    memory = ResultMemory()
    of = lambda *sizes: list(zip(sizes, ("saved", "saved", "exact"), strict=True))  # noqa: E731
    large = Recording(memory, of(400, 300, 50))
    small = Recording(memory, of(200, 100, 50))
    assert small.hold.blocks == large.hold.blocks
    assert [block.kind for block in large.hold.blocks] == ["saved", "exact"]
    held = large.replay(1.0)[0]
    assert not small.hold.is_free()
    other = Recording(memory, of(200, 100, 50))
    assert other.hold.blocks[0] is not large.hold.blocks[0]
    assert other.hold.blocks[1] is large.hold.blocks[1]
    turn = Recording(memory, of(200, 100, 50), large.hold.blocks)
    assert not set(map(id, turn.hold.blocks)) & set(map(id, large.hold.blocks))
    del large, small, other, turn
    gc.collect()
    assert not len(memory._blocks)
    assert (held == 1.0).all()


def test_results_of_several_sizes_share_a_block_in_storages_of_their_size():
    """Who holds one of them keeps the others from being written, and those of its own size, with the recording or
    without it."""
    memory = ResultMemory()
    large, small = (Recording(memory, [(size, "result")]) for size in (400, 100))
    assert [one.results[0].untyped_storage().nbytes() for one in (large, small)] == [1600, 400]
    assert large.hold.blocks == small.hold.blocks
    held = small.replay(1.0)[0]
    assert not large.hold.is_free()
    assert Recording(memory, [(400, "result")]).hold.blocks != large.hold.blocks
    del small
    gc.collect()
    assert not large.hold.is_free()
    assert (held == 1.0).all()
    del held
    assert large.hold.is_free()


def test_sizes_that_grow_in_small_steps_share_a_block():
    memory = ResultMemory()
    recordings = [Recording(memory, [(size, "result")]) for size in range(300_000, 380_000, 2000)]
    assert [one.results[0].untyped_storage().nbytes() for one in recordings] == [*range(1_200_000, 1_520_000, 8000)]
    assert len(memory._blocks) <= 6


@pytest.mark.parametrize("kind", ["result", "saved", "inputs", "between"])
def test_a_larger_block_outgrows_those_that_it_can_stand_for(kind):
    memory = ResultMemory()
    small = Recording(memory, [(300_000, kind), (100, kind)])
    alike, tiny = Recording(memory, [(290_000, kind)]), Recording(memory, [(100, "exact")])
    assert not any(block.is_outgrown for one in (small, alike, tiny) for block in one.hold.blocks)
    large = Recording(memory, [(900_000, kind)])
    assert all(any(block.is_outgrown for block in one.hold.blocks) for one in (small, alike))
    assert not any(block.is_outgrown for one in (large, tiny) for block in one.hold.blocks)
    again = Recording(memory, [(300_000, kind)])
    assert again.hold.blocks == large.hold.blocks
    del small, alike, again
    gc.collect()
    assert len(memory._blocks) == 2


def test_what_is_held_or_taken_is_not_outgrown():
    """As results of one program that another one reads."""
    memory = ResultMemory()
    small, other = Recording(memory, [(300_000, "result")]), Recording(memory, [(300_000, "saved")])
    held = small.replay(1.0)
    Recording(memory, [(900_000, "result")])
    Recording(memory, [(900_000, "saved")], other.hold.blocks)
    assert not any(block.is_outgrown for one in (small, other) for block in one.hold.blocks)
    assert (held[0] == 1.0).all()


USED = st.tuples(st.integers(0, 9), st.integers(0, 4)).map(lambda one: (one[0], sum(one)))


@given(st.lists(st.tuples(st.integers(0, 3000), st.none() | USED), max_size=12))
def test_what_is_used_at_once_lies_apart(drawn):
    sizes = {str(number): size for number, (size, _) in enumerate(drawn)}
    used = {str(number): when for number, (_, when) in enumerate(drawn) if when is not None}
    total, places = packed(sizes, used)
    when = {name: range(used[name][0], used[name][1] + 1) if name in used else range(20) for name in sizes}
    for moment in range(20):
        there = sorted((places[name], sizes[name]) for name in sizes if moment in when[name])
        assert all(at + size <= behind for (at, size), (behind, _) in pairwise(there))
    assert all(at % 512 == 0 and at + sizes[name] <= total for name, at in places.items())
    assert total <= sum(-(-size // 512) * 512 for size in sizes.values())


def test_buffers_of_a_replay_lie_where_others_were():
    memory = ResultMemory()
    types = {name: contiguous("float32", (256,)) for name in "abc"}
    first = memory.place(types, dict.fromkeys("abc", "between"), taken := [], {"a": (0, 1), "b": (1, 2), "c": (2, 3)})
    assert first["a"].data_ptr() == first["c"].data_ptr() != first["b"].data_ptr()
    second = memory.place(types, dict.fromkeys("abc", "between"), taken)
    assert [block.size for block in taken] == [2048, 3072]
    third = memory.place(types, dict.fromkeys("abc", "between"), taken)
    assert third["a"].data_ptr() == second["a"].data_ptr()  # whoever has it: nothing lives from replay to replay


def test_a_small_result_has_no_large_block():
    memory = ResultMemory()
    large, small = (Recording(memory, [(size, "result")]) for size in (1700, 100))
    assert large.hold.blocks != small.hold.blocks


def test_gradients_have_blocks_of_just_their_size():
    memory = ResultMemory()
    large, small, equal = (Recording(memory, [(size, "exact")]) for size in (400, 100, 400))
    assert large.hold.blocks != small.hold.blocks
    assert large.hold.blocks == equal.hold.blocks


def test_who_has_a_tensor_when_a_recording_is_made_holds_it():
    """As an operator of the user's that stored an argument away; and where a recording ends in the meantime."""
    memory, taken = ResultMemory(), []
    placed = memory.place({"y": contiguous("float32", (100,))}, {"y": "exact"}, taken)
    stored = placed["y"].data
    hold = Hold(taken, placed.values())
    assert not hold.is_free()
    del stored
    assert hold.is_free()
    other = Hold(taken, [])
    del hold
    assert not other.is_free()  # its tensor is there: whose it is now is not known
    placed.clear()
    assert other.is_free()


def test_a_view_keeps_what_it_is_of():
    """torch keeps the base of a view: one more tensor of the recording's."""
    block = Block("exact", torch.zeros(400, dtype=torch.uint8))
    kept = [block.storage(400).tensor(contiguous("float32", (100,))).view(10, 10)]
    hold = Hold([block], kept)
    assert hold.is_free()
    held = kept[0].data
    assert not hold.is_free()
    del held
    assert hold.is_free()


def test_memory_of_its_own_is_watched_too():
    whole = torch.arange(12.0)
    blocks = []
    found = on_blocks([whole[2:], None, whole.view(3, 4)[:, 1], whole.view(torch.int32)], blocks)
    assert len(blocks) == 1
    torch.testing.assert_close(found[0], whole[2:])
    torch.testing.assert_close(found[2], whole.view(3, 4)[:, 1])
    assert found[3].tolist() == whole.view(torch.int32).tolist()
    assert on_blocks(found, blocks) == found
    hold = Hold(blocks, [one for one in found if one is not None])
    assert hold.is_free()
    held = found[2].data
    assert not hold.is_free()
    del held
    assert hold.is_free()


@pytest.mark.parametrize("resize", [lambda y: y.resize_(1000), lambda y: y.untyped_storage().resize_(0)])
def test_memory_is_not_resized(resize):
    one = Recording(ResultMemory(), [(10, "result")])
    with pytest.raises(RuntimeError, match="not resizable"):
        resize(one.replay(1.0)[0])


def test_results_without_elements_hold_nothing():
    one = Recording(ResultMemory(), [(0, "result"), (3, "result")])
    held = one.replay(1.0)
    del held[1]
    assert one.hold.is_free()
