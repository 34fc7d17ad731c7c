"""Memory of results, which recordings of one device take over from one another while nobody holds what lies in it.

block ::= exact | slab         one storage of torch
exact ::= result               of just its size: users see these (results of calls, gradients)
slab  ::= window*              values saved for a backward, or copies of inputs: no user sees them

A recording may be replayed while nobody holds a tensor in any block of it: not one of its own last replay, and not one
of another recording that shares the block. Whether anybody does is read off how often torch refers to the storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import torch

from codegen.runtime.encode import reading_of
from codegen.runtime.memory_kinds import span
from stagewire.types import TensorType

Kind = Literal["exact", "saved", "inputs"]
ALIGNMENT = 512


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of memory for a copy."""
    return TensorType(
        str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride(), device=str(tensor.device)
    )


class Block:
    """One storage. shown: an entry for every tensor on it that a recording keeps."""

    def __init__(self, kind: Kind, size: int, device: str) -> None:
        self.kind, self.size = kind, size
        self.storage = torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        self.shown: list[None] = []

    def uses(self) -> int:
        """How many tensors there are on it."""
        return torch._C._storage_Use_Count(self.storage._cdata) - 1

    def is_held(self) -> bool:
        """Whether anybody but recordings has a tensor on it."""
        return self.uses() > len(self.shown)

    def tensor(self, type_: TensorType, distance: int = 0) -> torch.Tensor:
        """A tensor on it, so many bytes from its start."""
        memory = torch.empty(0, dtype=torch.uint8, device=type_.device).set_(self.storage, 0, (self.size,), (1,))
        return reading_of(memory, type_.dtype, (*type_.shape, *type_.stride, distance))  # type: ignore[arg-type]


class ResultMemory:
    """The blocks of one device; they live as long as a recording has them."""

    def __init__(self) -> None:
        self._made = 0
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()

    def place(
        self, types: Mapping[str, TensorType], together: Collection[str], kind: Kind, taken: list[Block]
    ) -> dict[str, torch.Tensor]:
        """A tensor for each type: those of `together` in one slab of `kind`, each other one in a block of its size.

        taken: blocks that are not to be used again; those used now are appended.
        """
        found = {}
        places: dict[str, int] = {}
        total = 0
        for name, type_ in types.items():
            size = int(span(type_))  # type: ignore[arg-type]
            if name in together:
                places[name] = total
                total += -(-size // ALIGNMENT) * ALIGNMENT
            else:
                found[name] = self._block("exact", size, type_.device, taken).tensor(type_)
        if places:
            slab = self._block(kind, total, types[next(iter(places))].device, taken)
            found |= {name: slab.tensor(types[name], place) for name, place in places.items()}
        return found

    def _block(self, kind: Kind, size: int, device: str, taken: list[Block]) -> Block:
        """A block that nobody holds, of the size or (a slab) the smallest that is large enough; a new one if needed."""
        fitting = [
            block
            for block in self._blocks.values()
            if block.kind == kind
            and (block.size == size if kind == "exact" else block.size >= size)
            and not any(block is other for other in taken)
            and not block.is_held()
        ]
        block = min(fitting, key=lambda one: one.size) if fitting else Block(kind, size, device)
        if not fitting:
            self._made += 1
            self._blocks[self._made] = block
        taken.append(block)
        return block


class Hold:
    """The blocks of one recording; made when nobody else has a tensor on them but that recording, and others."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._marks = [(block, block.uses() - len(block.shown)) for block in blocks]
        for block, count in self._marks:
            block.shown.extend([None] * count)
        self._watched = [(block.storage._cdata, block.shown) for block, _ in self._marks]

    @property
    def blocks(self) -> list[Block]:
        """The blocks."""
        return [block for block, _ in self._marks]

    def is_free(self) -> bool:
        """Whether nobody holds anything in them."""
        count = torch._C._storage_Use_Count
        return all(count(storage) <= 1 + len(shown) for storage, shown in self._watched)

    def __del__(self) -> None:
        for block, count in self._marks:
            for _ in range(count):
                block.shown.pop()
