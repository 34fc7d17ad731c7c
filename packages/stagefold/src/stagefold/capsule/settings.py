"""Options as data: what they were is written down, and made again from that.

    data ::= None | bool | int | float | str | {"tuple": [data*]} | {"frozenset": [data*]} | {"path": str}
           | {"dict": [[data, data]*]}
           | {"object": "module:name", "fields"?: {name: data}} | {"opaque": str}

Functions and objects of a module are written as where they are imported from, a dataclass or named tuple with its
fields; whatever is local to a function, or stands in the script itself, is opaque.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from stagefold.errors import BadCapsule
from stagefold.options import Options, parse_options


def as_data(value: Any) -> Any:
    """What stands for a value in a capsule.

    >>> as_data((1, frozenset(["a"])))
    {'tuple': [1, {'frozenset': ['a']}]}
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() if hasattr(value, "_fields") and _found(type(value)):
            return {"object": _path(type(value)), "fields": {key: as_data(one) for key, one in value._asdict().items()}}
        case tuple() | list():
            return {"tuple": [as_data(one) for one in value]}
        case frozenset() | set():
            return {"frozenset": [as_data(one) for one in sorted(value)]}
        case Path():
            return {"path": str(value)}
        case Mapping():
            return {"dict": [[as_data(key), as_data(one)] for key, one in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _found(type(value)):
        fields = {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"object": _path(type(value)), "fields": fields}
    return {"object": _path(value)} if _found(value) else {"opaque": repr(value)}


def as_value(data: Any, what: str) -> Any:
    """The value that `as_data` wrote. what: names it in the error."""
    match data:
        case {"tuple": list(items)}:
            return tuple([as_value(one, what) for one in items])
        case {"frozenset": list(items)}:
            return frozenset([as_value(one, what) for one in items])
        case {"path": str(path)}:
            return Path(path)
        case {"dict": list(items)}:
            return {as_value(key, what): as_value(one, what) for key, one in items}
        case {"object": str(path)}:
            module, _, name = path.partition(":")
            try:
                found: Any = attrgetter(name)(importlib.import_module(module))
            except (ImportError, AttributeError) as error:
                raise BadCapsule(f"{what} is {path}, which cannot be had here: {error}", fix=_ELSEWHERE) from None
            fields = data.get("fields")
            is_named = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
            if fields is not None and not (is_named or (isinstance(found, type) and dataclasses.is_dataclass(found))):
                raise BadCapsule(f"{what} is {path} with fields, which is no dataclass", fix=_ELSEWHERE)
            return found if fields is None else found(**{key: as_value(one, what) for key, one in fields.items()})
        case {"opaque": str(text)}:
            raise BadCapsule(f"{what} is {text}, which only the recorded program had", fix=_ELSEWHERE)
    return data


def as_text(data: Any) -> str:
    """What `as_data` wrote, to be read: objects by their names.

    >>> as_text({"tuple": [{"object": "loopir.passes.fuse_nests:FuseNests", "fields": {}}, 1]})
    '(FuseNests, 1)'
    """
    match data:
        case {"tuple": list(items)}:
            return f"({', '.join(map(as_text, items))})"
        case {"object": str(path)}:
            return path.partition(":")[2]
        case {"opaque": str(text)}:
            return text
        case {"dict": list(items)}:
            return f"{{{', '.join(f'{as_text(key)}: {as_text(one)}' for key, one in items)}}}"
    return str(data)


_ELSEWHERE = (
    "Give another one (--option, --stage; or options= and stages= of stagefold.replay), or have it in a module that is "
    "installed where the capsule is recorded and replayed."
)


def _path(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


def _found(value: Any) -> bool:
    """Whether another process can import it."""
    if not hasattr(value, "__qualname__") or getattr(value, "__module__", "__main__") == "__main__":
        return False
    try:
        return as_value({"object": _path(value)}, "") is value
    except BadCapsule:
        return False


_LOCAL = ("cache_dir", "trace_dir", "progress", "cache", "cache_size", "cache_days")
"""Options that say nothing of the documents."""


def given_options(options: Options) -> dict[str, Any]:
    """The options that differ from the defaults, as `compile(options=...)` takes them, as data."""
    own = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name != "stage"}
    default = Options()
    given = {key: value for key, value in own.items() if key not in _LOCAL and value != getattr(default, key)}
    for slot, fields in options.stage:
        given.update({f"{slot}.{name}": value for name, value in fields})
    return {key: as_data(value) for key, value in given.items()}


def parsed(data: dict[str, Any], changes: dict[str, Any]) -> Options:
    """The recorded options, with changes."""
    recorded = {key: as_value(one, f"the option {key!r}") for key, one in data.items() if key not in changes}
    return dataclasses.replace(parse_options(None, {**recorded, **changes}), trace_dir=None)
