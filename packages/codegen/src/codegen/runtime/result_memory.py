"""Memory of results, which recordings of one device take over from one another while nobody holds what lies in it.

block   ::= kind storage+          memory; each storage of torch begins where it begins, and has another size
kind    ::= result | exact | slab | own
result  :   results of calls: several sizes share the block of the largest, each in a storage of just its size
exact   :   of just one size (gradients: held from one call to the next, and of the same sizes at each)
slab    ::= saved | inputs         windows: values saved for a backward, or copies of inputs that Python sees
          | between                buffers that live within a replay, each at a place that is free as long as it is used
own     :   a storage that a recording made itself; no other recording is given it

Blocks of results and slabs are a little larger than what they are made for: sizes that grow in small steps share them.
A block outgrows those that it can stand for, and that nobody holds when it is made: recordings in them are let go of
before, and made again in the larger block when they are called. So of sizes that grow the largest is what is kept.

A recording may be replayed while nobody holds a tensor in any block of it: not one of its own last replay, and not one
of another recording that shares the block. Whether anybody does is read off its storages: how many tensors torch has on
each (views, and what autograd or another library holds, are such), beside those that recordings are known to keep; and
how many hold the Python object of the storage, which torch counts once, however many there are.

A storage is foreign memory to torch. So its size cannot be changed (`y.resize_`, `y.untyped_storage().resize_(0)`
are refused): a recording has its address burnt in.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getrefcount
from types import MappingProxyType
from typing import Literal

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from codegen.runtime.memory_kinds import span
from codegen.runtime.python_wrapper import reading_of
from codegen.torch_capabilities import TORCH
from stagewire.types import TensorType

Kind = Literal["result", "exact", "saved", "inputs", "between", "own"]
SLABS: tuple[Kind, ...] = ("saved", "inputs", "between")
Span = tuple[int, int]
"""The first and the last place at which something is used."""
ALIGNMENT = 512
SPARE = 16
"""How many times as large as a result a block may be: who holds a small one keeps all of it from others."""
WORTH_SHARING = 1 << 20
"""Bytes from which a block is given up for a larger one."""


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of memory for a copy."""
    return TensorType(
        str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride(), device=str(tensor.device)
    )


class Storage:
    """One storage, on `memory` (bytes). shown: an entry for every tensor on it that a recording keeps."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.size = memory.numel()
        self.storage = from_dlpack(to_dlpack(memory)).untyped_storage()  # type: ignore[attr-defined]
        self.address = self.storage._cdata
        self.shown: list[None] = []
        self._references = getrefcount(self.storage)

    def is_held(self, count: Callable[[int], int] = TORCH.storage_users) -> bool:
        """Whether anybody but recordings has a tensor on it, or the storage itself.

        torch counts the Python object of a storage as one user, which it holds itself while there are others. `shown`
        is read after the users: a recording that goes takes its entries out before its tensors are gone.
        """
        users = count(self.address)
        if users > 1 + len(self.shown) or getrefcount(self.storage) > self._references + (users > 1):
            return self.size > 0
        return False

    def tensor(self, type_: TensorType, distance: int = 0) -> torch.Tensor:
        """A tensor on it, so many bytes from its start."""
        return reading_of(_bytes(self.storage), type_.dtype, (*type_.shape, *type_.stride, distance))  # type: ignore[arg-type]


class Block:
    """`memory` (bytes), and the storages on it by their sizes: they are kept, since a user may hold one for longer than
    the recording that handed it out."""

    def __init__(self, kind: Kind, memory: torch.Tensor) -> None:
        self.kind, self.size = kind, memory.numel()
        self.storages: dict[int, Storage] = {}
        self.is_outgrown = False
        self._memory = memory

    @classmethod
    def around(cls, storage: torch.UntypedStorage) -> Block:
        """A block of its own on memory that is there."""
        return cls("own", _bytes(storage))

    def storage(self, size: int) -> Storage:
        """The storage of the first bytes."""
        if size not in self.storages:
            self.storages[size] = Storage(self._memory[:size])
        return self.storages[size]

    def is_held(self) -> bool:
        """Whether anybody but recordings has something in it."""
        return any(one.is_held() for one in self.storages.values())


def suits(kind: Kind, size: int, room: int) -> bool:
    """Whether a block of so many bytes may hold so many of such a kind."""
    return room == size if kind == "exact" else size <= room <= (size * SPARE if kind == "result" else room)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return memory.set_(storage, 0, (storage.nbytes(),), (1,))  # type: ignore[call-overload]


def roomy(size: int) -> int:
    """So many bytes or a sixteenth more.

    >>> [roomy(size) for size in (5, 1 << 20, (1 << 20) + 1, 70 << 20)]
    [5, 1048576, 1114112, 75497472]
    """
    step = 1 << max(size.bit_length() - 5, 0)
    return size if size < 1 << 20 else -(-size // step) * step


class ResultMemory:
    """The blocks of one device; they live as long as a recording has them.

    on_large: is called before a large block is made, `is_outgrown` being set on those that it can stand for.
    """

    def __init__(self, on_large: Callable[[], None] = lambda: None) -> None:
        self._made = 0
        self._on_large = on_large
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()

    def place(
        self,
        types: Mapping[str, TensorType],
        kinds: Mapping[str, Kind],
        taken: list[Block],
        used: Mapping[str, Span] = MappingProxyType({}),
    ) -> dict[str, torch.Tensor]:
        """A tensor for each type, in memory of its kind; slabs hold all that are of one kind.

        taken: blocks that are not to be used again; those used now are appended. used: when each of those is that need
        not lie beside one another; others are used all the time.
        """
        sizes = {name: int(span(type_)) for name, type_ in types.items()}  # type: ignore[arg-type]
        found = {}
        for kind in SLABS:
            mine = {name: sizes[name] for name in types if kinds[name] == kind}
            total, places = packed(mine, used)
            if places:
                slab = self._block(kind, total, types[next(iter(places))].device, taken)
                storage = slab.storage(slab.size)
                found |= {name: storage.tensor(types[name], place) for name, place in places.items()}
        for name in sorted(types.keys() - found.keys(), key=lambda name: (-sizes[name], name)):
            block = self._block(kinds[name], sizes[name], types[name].device, taken)
            found[name] = block.storage(sizes[name]).tensor(types[name])
        return found

    def _block(self, kind: Kind, size: int, device: str, taken: list[Block]) -> Block:
        """The smallest block that fits and that nobody holds; a new one if there is none."""

        def is_free(block: Block) -> bool:
            return kind == "between" or not (any(block is other for other in taken) or block.is_held())

        known = [block for block in self._blocks.values() if block.kind == kind]
        fitting = [
            block for block in known if suits(kind, size, block.size) and not block.is_outgrown and is_free(block)
        ]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
        else:
            room = size if kind == "exact" else roomy(size)
            for other in known:
                is_small = WORTH_SHARING <= other.size < room and suits(kind, other.size, room)
                other.is_outgrown |= is_small and is_free(other)
            if room >= WORTH_SHARING:
                del known, fitting  # they keep the blocks
                self._on_large()
            block = Block(kind, torch.empty(room, dtype=torch.uint8, device=device))
            self._made += 1
            self._blocks[self._made] = block
        taken.append(block)
        return block


def packed(sizes: Mapping[str, int], used: Mapping[str, Span]) -> tuple[int, dict[str, int]]:
    """How many bytes hold all of these, and where each begins: the largest first, at the lowest place that is free
    while it is used. What has no entry in `used` is used all the time.

    >>> packed({"a": 512, "b": 1024, "c": 500}, {"a": (0, 1), "b": (1, 2), "c": (2, 3)})
    (1536, {'b': 0, 'a': 1024, 'c': 1024})
    >>> packed({"a": 512, "c": 500}, {})
    (1024, {'a': 0, 'c': 512})
    """
    places: dict[str, int] = {}
    total = 0
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        size, at = -(-sizes[name] // ALIGNMENT) * ALIGNMENT, 0
        beside = sorted((places[other], sizes[other]) for other in places if _at_once(used.get(name), used.get(other)))
        for place, taken in beside:
            if place - at >= size:
                break
            at = max(at, -(-(place + taken) // ALIGNMENT) * ALIGNMENT)
        places[name] = at
        total = max(total, at + size)
    return total, places


def _at_once(one: Span | None, other: Span | None) -> bool:
    return one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])


class Hold:
    """The blocks of one recording, which keeps `tensors` on them.

    What it keeps is counted, and not taken to be all that there is: whoever else has a tensor on a block by then (an
    operator of the user's that stored an argument away, a recording that is just going) is one who holds it.
    """

    def __init__(self, blocks: Iterable[Block], tensors: Iterable[torch.Tensor]) -> None:
        kept = {id(one): one for tensor in tensors for one in (tensor, tensor._base) if one is not None}
        counts = Counter(one.untyped_storage()._cdata for one in kept.values())
        self.blocks = list(blocks)
        self._handed = [block for block in self.blocks if block.kind != "between"]
        self._marks: list[tuple[list[None], int]] = []
        for storage in (one for block in self.blocks for one in block.storages.values()):
            storage.shown.extend([None] * counts[storage.address])
            self._marks.append((storage.shown, counts[storage.address]))

    def is_free(self) -> bool:
        """Whether nobody holds anything in them."""
        return not any(block.is_held() for block in self._handed)

    def __del__(self) -> None:
        for shown, count in self._marks:
            for _ in range(count):
                shown.pop()


def on_blocks(tensors: Sequence[torch.Tensor | None], blocks: list[Block]) -> list[torch.Tensor | None]:
    """The tensors, each on a block; for storages that none is on, `blocks` grows by some of their own."""
    known = {one.address for block in blocks for one in block.storages.values()}
    own: dict[int, Block] = {}
    found = []
    for tensor in tensors:
        if tensor is not None and (storage := tensor.untyped_storage())._cdata not in known:
            block = own.setdefault(storage._cdata, own.get(storage._cdata) or Block.around(storage))
            distance = tensor.storage_offset() * tensor.element_size()
            tensor = block.storage(block.size).tensor(type_of(tensor), distance)
        found.append(tensor)
    blocks.extend(own.values())
    return found
