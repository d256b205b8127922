"""JSON documents with a format, a version and a checksum over all that they say.

Invariant: what `unseal` returns is what `seal` was given, or an error says what is wrong; nothing is guessed,
no field is skipped and none is made up. The bytes are canonical: equal content gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from statebackend.errors import StoreError


class DamagedDocument(StoreError, ValueError):
    """The bytes are not a document of the expected format, or not as they were written."""


class NewerDocument(StoreError, ValueError):
    """The document has a version that this program does not know."""


def seal(form: str, version: int, content: Mapping[str, object]) -> bytes:
    """Return the bytes of a document; `content` is plain JSON with no `format`, `version` or `checksum` of its own."""
    document = {**content, "format": form, "version": version}
    return _canonical({**document, "checksum": _checksum(document)}) + b"\n"


def unseal(data: bytes, form: str, version: int) -> Fields:
    """Return the content of a document of this format and at most this version, to be taken field by field."""
    try:
        document = json.loads(data.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedDocument(f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != form:
        raise DamagedDocument(f"it is not of the format {form!r}")
    found = document.get("version")
    if type(found) is not int or found < 1:
        raise DamagedDocument(f"its version is {found!r}, not a number from 1")
    if found > version:
        raise NewerDocument(f"it has version {found} of {form!r}, and this program reads up to {version}")
    if document.pop("checksum", None) != _checksum(document):
        raise DamagedDocument("its checksum does not match what it says")
    del document["format"], document["version"]
    return Fields(document, found)


class Fields:
    """The fields of a JSON object, each taken once and as what it must be; `close` when all should be taken.

    `version` is that of the document.
    """

    def __init__(self, values: dict[str, object], version: int = 1) -> None:
        self._values = values
        self.version = version

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> object:
        """Take any value at all, to be checked with care."""
        return self._take(name)

    def text(self, name: str) -> str:
        """Take a string."""
        value = self._take(name)
        if not isinstance(value, str):
            raise DamagedDocument(f"{name!r} is {value!r}, not a text")
        return value

    def count(self, name: str) -> int:
        """Take a whole number from 0."""
        value = self._take(name)
        if type(value) is not int or value < 0:
            raise DamagedDocument(f"{name!r} is {value!r}, not a whole number from 0")
        return value

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise DamagedDocument(f"{name!r} is {value!r}, not true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a list of strings."""
        values = self._list(name)
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) < len(values):
            raise DamagedDocument(f"{name!r} holds something that is not a text")
        return texts

    def fields(self, name: str) -> Fields:
        """Take an object with fields of its own."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise DamagedDocument(f"{name!r} is {value!r}, not an object")
        return Fields(value, self.version)

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Take a list of objects, each with fields of its own."""
        values = self._list(name)
        objects = tuple(Fields(value, self.version) for value in values if isinstance(value, dict))
        if len(objects) < len(values):
            raise DamagedDocument(f"{name!r} holds something that is not an object")
        return objects

    def close(self) -> None:
        """Refuse fields that were not taken."""
        if self._values:
            raise DamagedDocument(f"it has unknown fields: {', '.join(sorted(self._values))}")

    def _take(self, name: str) -> object:
        if name not in self._values:
            raise DamagedDocument(f"{name!r} is missing")
        return self._values.pop(name)

    def _list(self, name: str) -> list[object]:
        value = self._take(name)
        if not isinstance(value, list):
            raise DamagedDocument(f"{name!r} is {value!r}, not a list")
        return value


def _canonical(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _checksum(document: Mapping[str, object]) -> str:
    return "sha256:" + hashlib.sha256(_canonical(document)).hexdigest()


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise DamagedDocument("a field is there twice")
    return values


def _no_constant(name: str) -> object:
    raise DamagedDocument(f"{name} is not JSON")
