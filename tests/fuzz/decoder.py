"""What is fuzzed, and how its input is changed so that what lies behind a checksum is reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from snapshot.tree.frozen_json import Json, NotJson
from statebackend.snapshots.sealed_json import seal
from tests.fuzz.mutations import changed_bytes, changed_text

GOLDEN: Final = Path(__file__).parent.parent / "golden"
Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Decoder:
    """What is tried: `seeds` are inputs that it takes, `mutate` changes one, `named` are errors that it may raise."""

    decode: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    named: tuple[type[Exception], ...]
    mutate: Mutate = changed_bytes
    slow: bool = False
    """It takes milliseconds, so fewer inputs have to do."""


def frozen(data: bytes) -> Json:
    """Return what a part of a manifest says; the manifest's own reader refuses what is nested too deep for Python."""
    try:
        return Json.of(json.loads(data))
    except RecursionError as error:
        raise NotJson(str(error)) from error


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a document of JSON, mostly in what it says."""
    if random.random() < 0.2:
        return changed_bytes(random, data, others)
    return changed_text(random, data, dumped)


def sealed_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a sealed document; its checksum is made right."""
    if random.random() < 0.1:
        return changed_bytes(random, data, others)

    def sealed(value: Any) -> bytes:
        if not isinstance(value, dict):
            return dumped(value)
        content = {name: value[name] for name in value if name not in ("format", "version", "checksum")}
        return seal(value.get("format", "x"), value.get("version", 1), content)

    return changed_text(random, data, sealed)


def texts(*some: str) -> Callable[[], list[bytes]]:
    return lambda: [one.encode() for one in some]


def stream(rows: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(out.getvalue())
