"""Cells: the boxes of closure variables."""

from __future__ import annotations

from types import CellType

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedValue
from bytecap.objects.base import Value, state
from stagewire.capture import Source


class CellValue(Value):
    """A closure cell; `real` is the outside cell it stands for, None for one made in the frame.

    place: where the cell itself is found, if the next call may have another one there.
    """

    content: Value | None = None
    real: CellType | None = None
    content_source: Source | None = None
    loaded: bool = state()
    mutated: bool = state(default=False)
    # The free variable of the captured frame itself that this cell is, if it is one.
    frame_name: str | None = state(default=None)
    place: Source | None = state(default=None)
    cls = CellType

    def __post_init__(self) -> None:
        self.loaded = self.real is None

    def get(self, tracer: Tracer, name: str, *, own: bool = False) -> Value:
        """The content; an empty cell raises NameError in the evaluated program (`own`: of the running function)."""
        if self.is_empty(tracer):
            if own:
                message = f"cannot access local variable '{name}' where it is not associated with a value"
                raise tracer.raises(UnboundLocalError, message)
            message = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            raise tracer.raises(NameError, message)
        assert self.content is not None
        return self.content

    def is_empty(self, tracer: Tracer) -> bool:
        """Whether it holds nothing."""
        if not self.loaded:
            assert self.real is not None
            try:
                real = self.real.cell_contents
            except ValueError:
                raise UnsupportedValue("a variable of an outer function that has no value yet") from None
            self.loaded = True
            self.content = tracer.objects.wrap(real, self.content_source)
        return self.content is None

    def set(self, tracer: Tracer, value: Value | None) -> None:
        self.loaded = True
        self.content = value
        self.mutate(tracer)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "cell_contents":
            return self.get(tracer, "?")
        return super().get_attribute(tracer, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name != "cell_contents":
            return super().set_attribute(tracer, name, value)
        return self.set(tracer, value)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.frame_name is not None:
            emitter.load_free_cell(self.frame_name)
            return
        if self.real is not None:
            emitter.load_outside_cell(self)
            return
        emitter.call_function(CellType)
        emitter.keep(self)
        emitter.later(self._fill)
        emitter.load(self)

    def _fill(self, emitter: Emitter) -> None:
        """Store the content; a function may be in a cell of its own closure."""
        if self.content is not None:
            emitter.load(self.content)
            emitter.load(self)
            emitter.store_attribute("cell_contents")
