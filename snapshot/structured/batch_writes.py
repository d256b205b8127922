"""Who writes batches to a target from a function of `foreachBatch`: an identity that a staging folder keeps.

What always holds: writes with one staging folder, in one query, have one identity, which the first of them draws, and
one target: with two, the second would find each batch decided by the first, and its rows would be lost.
"""

from __future__ import annotations

import json
import re
from secrets import token_hex
from typing import Final

from snapshot.program.sink import Sink, SinkError
from statebackend.stores.store import BlobNotFound, BlobStore, UnknownOutcome

_PATH: Final = "writes.json"
_PLACES: Final = ("path", "uri", "url", "table", "topic")
"""Fields of sinks that say where rows go, and hold no secret."""
_TRIES: Final = 3
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")


def target_of(name: str, sink: Sink) -> str:
    """Return words for the place to which a sink writes, the same for every batch."""
    places = [f"{place} {value}" for place in _PLACES if (value := getattr(sink, place, ""))]
    return f"{name}, {', '.join(places)}"


def identity_of(store: BlobStore, target: str) -> str:
    """Return the identity of these writes; draw it if they are the first.

    Raises `SinkError` if the folder is that of writes to another target; `UnknownOutcome` if the store does not say.
    """
    for _ in range(_TRIES + 1):
        try:
            found = _parsed(store.read(_PATH))
            break
        except BlobNotFound:
            drawn = json.dumps({"version": 1, "identity": token_hex(16), "target": target})
            try:
                store.create(_PATH, drawn.encode())  # of several that come at once one wins, which is read then
            except UnknownOutcome:
                continue
    else:
        raise UnknownOutcome(f"{_PATH} could not be made")
    identity, theirs = found
    if theirs != target:
        raise SinkError(
            f"the staging folder is that of batches written to {theirs}, and these are written to {target}; "
            f"give each write in a foreachBatch the option 'staging' with a folder of its own"
        )
    return identity


def _parsed(data: bytes) -> tuple[str, str]:
    """Return the identity that was drawn, and the target that it is for; raise `SinkError` if the bytes hold none."""
    try:
        match json.loads(data):
            case {"version": 1, "identity": str(identity), "target": str(target)} if _IDENTITY.fullmatch(identity):
                return identity, target
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    raise SinkError(
        f"{_PATH} of the staging folder is damaged: {data[:100]!r}; give the option 'staging' another folder"
    )
