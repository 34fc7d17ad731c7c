"""id() of an object, and of the running thread: good for comparing and as a key, unknown as a number."""

from __future__ import annotations

from typing import Any

from bytecap.values.base import Value


class IdentityToken(Value):
    """The identity of `real`: tokens of one object are equal, and nothing else is known of the number."""

    __slots__ = ("real",)

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return "id() of an object"

    def reconstruct(self, emitter: Any) -> None:
        from bytecap.errors import CannotRebuild

        raise CannotRebuild("the number that id() gives cannot leave captured code")
