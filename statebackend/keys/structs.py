"""Keys of several fields.

Invariant: the canonical bytes of a struct are those of its fields, each as `entries.delimited` writes it, so
two structs share them only if all fields are the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from typing import ClassVar, Final

import pyarrow as pa

from statebackend.entries import delimited, undelimited
from statebackend.keys.types import BrokenKey, KeyType, UndeclarableKeyType, WrongKeyType

DEEPEST: Final = 16
"""So many structs may be one in the other."""
TOO_DEEP: Final = f"more than {DEEPEST} structs are one in the other"


@dataclass(frozen=True, slots=True)
class StructKey(KeyType):
    """Several fields, each `delimited`. With names, keys may also be given as mappings, and columns must have them."""

    fields: tuple[KeyType, ...]
    names: tuple[str, ...] | None = None
    tag: ClassVar[int] = 12

    def __post_init__(self) -> None:
        if not self.fields:
            raise UndeclarableKeyType("a struct without fields is no key")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise UndeclarableKeyType(f"fields of a key share a name: {', '.join(self.names)}")
        if any("\ud800" <= letter <= "\udfff" for name in self.names or () for letter in name):
            raise UndeclarableKeyType("a field of a key has a name that is no text")
        if self.depth > DEEPEST:
            raise UndeclarableKeyType(TOO_DEEP)

    @property
    def depth(self) -> int:
        """Return how many structs are one in the other."""
        return 1 + max(field.depth if isinstance(field, StructKey) else 0 for field in self.fields)

    def _name(self) -> str:
        if self.names is None:
            parts = [field.name for field in self.fields]
        else:
            parts = [f"{dumps(name)}: {field.name}" for name, field in zip(self.names, self.fields, strict=True)]
        return f"struct<{', '.join(parts)}>"

    def _arrow(self) -> pa.DataType:
        names = self.names or [f"f{index}" for index in range(len(self.fields))]
        return pa.struct([(name, field.arrow) for name, field in zip(names, self.fields, strict=True)])

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, tuple):
            parts = key
        elif isinstance(key, Mapping) and self.names is not None:
            if set(key) != set(self.names):
                self._refuse(key, "its names are others")
            parts = tuple(key[name] for name in self.names)
        else:
            self._refuse(key, "it is no tuple")
        if len(parts) != len(self.fields):
            self._refuse(key, f"it has {len(parts)} fields")
        try:
            return b"".join(delimited(field.encode(part)) for field, part in zip(self.fields, parts, strict=True))
        except WrongKeyType as error:
            self._refuse(key, str(error))

    def _key_of(self, canonical: bytes) -> tuple[object, ...]:
        parts, at = [], 0
        for declared in self.fields:
            try:
                part, at = undelimited(canonical, at)
                parts.append(declared.decode(part))
            except ValueError as error:
                raise BrokenKey(f"the bytes of a key of type {self.name} are broken: {error}") from error
        if at != len(canonical):
            raise BrokenKey(f"the bytes of a key of type {self.name} go on behind its last field")
        return tuple(parts)
