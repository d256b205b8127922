"""The notes of a manifest about its epoch, for people: the program that made it, its cost, and its origin.

Invariant: notes are read from whatever a manifest has, and what cannot be understood is left out: a note that
is damaged or newer than this program never makes an epoch unusable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snapshot.host.protocol.messages import PartitionCost
from snapshot.ids import JobId
from snapshot.tree.frozen_json import NULL, Json, JsonLike
from snapshot.tree.manifest import Manifest
from statebackend.ids import Epoch, Partition

COPY: Final = "copy"
MOVE: Final = "move"
"""The verbs that copy a job, and that move it elsewhere: an epoch tells by which of them it was made."""

_MOST_ORIGINS: Final = 100
"""So many verbs back it is told where an epoch comes from."""
_TIMES: Final = ("since_trigger_ms", "alignment_ms", "sync_ms", "async_ms")
_SIZES: Final = ("state_bytes", "channel_bytes")
_ENDLESS: Final = 2**64
"""No time and no size is so large: a sum of greater ones might be no number."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an epoch that no running job has taken. `how` is the verb that made it, such as `rescale`.

    `at` is in milliseconds since 1970. `before` is where the epoch came from that it was made of, if that was made too.
    """

    how: str
    uri: str
    at: int
    job: JobId | None = None
    epoch: Epoch | None = None
    before: Origin | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """The known notes. `program` is the version that the program's author gave it (option `program_version`)."""

    program: str = ""
    took: tuple[PartitionCost, ...] = ()
    origin: Origin | None = None


def provenance(made_of: Manifest, how: str, uri: str, at: int) -> Json:
    """Return the notes of what is made of an epoch of the tree at `uri`: its program is known, its cost is not."""
    before = from_json(made_of.notes)
    origin = Origin(how, uri, at, made_of.job, made_of.epoch, before.origin)
    return to_json(Notes(before.program, origin=origin))


def to_json(notes: Notes) -> Json:
    """Return the notes as a manifest has them; null where nothing is known."""
    content: dict[str, JsonLike] = {}
    if notes.program:
        content["program"] = notes.program
    if notes.took:
        content["took"] = [
            [took.partition, *(round(getattr(took, name), 3) for name in _TIMES), *(getattr(took, n) for n in _SIZES)]
            for took in notes.took
        ]
    if notes.origin is not None:
        content["origin"] = _origin(notes.origin)
    return Json.of(content) if content else NULL


def from_json(found: Json) -> Notes:
    """Read what `to_json` wrote, as far as it can be understood."""
    match found.value():
        case dict() as content:
            program = content.get("program")
            took = content.get("took")
            parts = tuple(filter(None, map(_took_from, took))) if isinstance(took, list) else ()
            origin = _origin_from(content.get("origin"), _MOST_ORIGINS)
            return Notes(program if isinstance(program, str) else "", parts, origin)
        case _:
            return Notes()


def _origin(origin: Origin) -> dict[str, JsonLike]:
    content: dict[str, JsonLike] = {"how": origin.how, "uri": origin.uri, "at": origin.at}
    if origin.job is not None:
        content["job"] = origin.job
    if origin.epoch is not None:
        content["epoch"] = str(origin.epoch)
    if origin.before is not None:
        content["before"] = _origin(origin.before)
    return content


def _origin_from(found: JsonLike, most: int) -> Origin | None:
    if not isinstance(found, Mapping) or not most:
        return None
    job, epoch, before = found.get("job"), found.get("epoch"), found.get("before")
    match found.get("how"), found.get("uri"), found.get("at"):
        case str(how), str(uri), int(at):
            made_of = JobId(job) if isinstance(job, str) else None
            return Origin(how, uri, at, made_of, _epoch(epoch), _origin_from(before, most - 1))
        case _:
            return None


def _took_from(found: JsonLike) -> PartitionCost | None:
    match found:
        case [int(partition), *times, int(state), int(channel)] if len(times) == len(_TIMES):
            since, alignment, sync, later = map(_milliseconds, times)
            return PartitionCost(Partition(partition), since, alignment, sync, later, state, channel)
        case _:
            return None


def _milliseconds(found: JsonLike) -> float:
    return float(found) if isinstance(found, int | float) and abs(found) < _ENDLESS else 0.0


def _epoch(found: JsonLike) -> Epoch | None:
    try:
        return Epoch.parse(found) if isinstance(found, str) else None
    except ValueError:
        return None
