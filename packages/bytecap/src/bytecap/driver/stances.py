"""Stances: what all compiled callables of the process do when no compiled version fits a call.

stance ::= "default"              compile a version
         | "force_eager"          everything runs plain, compiled versions too
         | "eager_on_recompile"   run plain; versions that fit are used
         | "fail_on_recompile"    raise RecompileForbidden; versions that fit are used
         | "eager_then_compile"   the first call of a code object runs plain, then as "default"
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, ClassVar, TypeVar

from bytecap.errors import BadOption, RecompileForbidden
from bytecap.hook import set_capturing

_KNOWN: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By their addresses. (Threads may add to it while another one walks it, which a WeakSet does not bear.)"""


def register(item: Any) -> None:
    """Let `reset()` know of a compiled callable, by what has `reset()` and `forget_other_threads()` for it."""
    _KNOWN[id(item)] = item


def reset() -> None:
    """Drop all compiled versions of all compiled callables; the next call of each compiles anew."""
    for item in _known():
        item.reset()


def _known() -> list[Any]:
    return [item for reference in _KNOWN.valuerefs() if (item := reference()) is not None]


os.register_at_fork(after_in_child=lambda: [item.forget_other_threads() for item in _known()])


Function = TypeVar("Function", bound=Callable[..., Any])

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")
_AS_ELSEWHERE = {"aot_eager_then_compile": "eager_then_compile"}
"""Stances of torch.compiler by what they come to: eager torch keeps to checkpoints by itself."""


class _Current:
    """The one stance of the process."""

    name = "default"
    seen: ClassVar[set[CodeType]] = set()  # code objects that ran plain once under "eager_then_compile"


def current_stance() -> str:
    """The stance that holds now."""
    return _Current.name


def _change(name: str) -> str:
    before, _Current.name = _Current.name, name
    _Current.seen.clear()
    set_capturing(name != "force_eager")
    return before


def may_compile(code: CodeType, reason: str | None) -> bool:
    """Whether a version of `code` may be compiled now. reason: why the existing versions did not fit.

    Errors: RecompileForbidden under "fail_on_recompile".
    """
    match _Current.name:
        case "default":
            return True
        case "fail_on_recompile":
            why = "it has no compiled version" if reason is None else reason
            raise RecompileForbidden(f"{code.co_qualname} has to be compiled: {why}; the stance is fail_on_recompile")
        case "eager_then_compile":
            seen = code in _Current.seen
            _Current.seen.add(code)
            return seen
    return False


class set_stance:
    """Take a stance: at once and for good, for a `with` block, or (as a decorator) for the calls of a function.

    >>> with set_stance("force_eager"):
    ...     current_stance()
    'force_eager'
    >>> current_stance()
    'default'
    """

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: object = None
    ) -> None:
        """skip_guard_eval_unsafe: accepted; guards are checked all the same. force_backend: refused."""
        stance = _AS_ELSEWHERE.get(stance, stance)
        if stance not in STANCES:
            raise BadOption(f"unknown stance {stance!r}", fix=f"Known: {', '.join(STANCES)}.")
        if force_backend is not None:
            raise BadOption("a stance has no back end of its own", fix="Compile with backend=.")
        self.stance = stance
        self._before = _change(stance)

    def __enter__(self) -> None:
        _change(self.stance)

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        _change(self._before)

    def __call__(self, function: Function) -> Function:
        _change(self._before)

        @functools.wraps(function)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            before = _change(self.stance)
            try:
                return function(*args, **kwargs)
            finally:
                _change(before)

        return with_stance  # type: ignore[return-value]
