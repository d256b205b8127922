"""A sink made of the options of a query: texts, by the names of the sink's fields, in any writing.

Invariant: an option that the sink does not have is refused, as a misspelt one would silently mean its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from snapshot.program.sink import Sink, SinkError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BATCH: Final = "batch"
"""The option that says which batch a batch write is of."""
QUERYS_OWN: Final = ("staging", "checkpointLocation", "commitPatience", "queryName", BATCH)
"""Options that are the query's, not the sink's."""
_PLACES: Final = ("path", "uri", "url")
"""Fields that Spark's `path`, which `start(path)` gives, stands for."""


_T = TypeVar("_T")


def sink_of(format: str, kind: Callable[..., Sink], options: Mapping[str, str]) -> Sink:
    """Return the sink that the options describe; `SinkError` says which of them are wrong."""
    return options_of(format, kind, options)


def options_of(format: str, kind: Callable[..., _T], options: Mapping[str, str]) -> _T:
    """Return what the options describe, which is a dataclass; `SinkError` says which of them are wrong.

    Names are compared without case and underscores, so `rollBytes` is `roll_bytes`. A field of several texts takes
    them with commas between them, a mapping as a JSON object. `path` is the sink's `uri` or `url` if it has no `path`.
    """
    declared = fields(cast("type[DataclassInstance]", kind))
    hints = get_type_hints(kind)
    known = {_plain(field.name): field for field in declared}
    for place in _PLACES:
        if place in known:
            known.setdefault("path", known[place])
    values: dict[str, object] = {}
    for name, text in options.items():
        field = known.get(_plain(name))
        if field is not None:
            values[field.name] = _value(format, field, hints[field.name], text)
        elif _plain(name) not in map(_plain, ("path", *QUERYS_OWN)):
            listed = ", ".join(field.name for field in declared)
            raise SinkError(f"{format} has no option {name!r}; it has {listed} and {', '.join(QUERYS_OWN)}")
    for field in declared:
        if field.name not in values and _is_needed(field):
            raise SinkError(f"{format} needs the option {field.name!r}")
    return kind(**values)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _is_needed(field: Field[object]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(format: str, field: Field[object], hint: object, text: str) -> object:
    try:
        return _read(hint, text)
    except ValueError as error:
        shown = repr(text) if field.repr else "not what it should be"  # what is not printed may be secret
        raise SinkError(f"the option {field.name!r} of {format} is {shown}: {error}") from error


def _read(hint: object, text: str) -> object:
    """Return the text as a value of the type that the hint names; `ValueError` says why it is none."""
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return text.lower() == "true"
    if hint in (int, float):
        return int(text) if hint is int else float(text)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal and text not in parts:
        raise ValueError(f"expected one of {', '.join(map(str, parts))}")
    if hint is str or origin is Literal:
        return text
    if origin is tuple:
        return tuple(_read(parts[0], part.strip()) for part in text.split(",") if part.strip())
    if origin is Mapping:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("expected a JSON object")
        return found
    choices = [part for part in parts if part is not NoneType]
    if not choices:
        raise ValueError("it cannot be given as an option")
    several = [part for part in choices if get_origin(part) is tuple]
    return _read(several[0] if several and "," in text else choices[0], text)
