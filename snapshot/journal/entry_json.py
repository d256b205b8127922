"""The bytes of journal entries and summaries: versioned JSON with a checksum.

Invariant: what was written is what is read, or a named error says which entry or summary is damaged, or newer
than this program. Every version that was ever released stays readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from snapshot.journal.entries import (
    Body,
    Claimed,
    Closed,
    Committed,
    Completed,
    DamagedJournal,
    Entry,
    NewerJournal,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.state import (
    NO_OUTPUT,
    EpochRecord,
    EpochState,
    JournalState,
    OutputMade,
    Pin,
    with_assumed_output,
)
from snapshot.tree.layout import JournalEntry, JournalSummary, path_of
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.snapshots.sealed_json import DamagedDocument, Fields, NewerDocument, seal, unseal

ENTRY_VERSION = 2
"""From 2 on a completed entry may say that its committables are only carried. All others are written as version 1."""
SUMMARY_VERSION = 2
"""From 2 on a summary says of each epoch which output was made up to it."""

_ENTRY = "epochcut.journal.entry"
_SUMMARY = "epochcut.journal.summary"
_Content = TypeVar("_Content")


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes that are stored at the entry's number."""
    content = {"number": entry.number, "nonce": entry.nonce, **_body_to_json(entry.body)}
    return seal(_ENTRY, 2 if "only_carried" in content else 1, content)


def decode_entry(number: int, data: bytes) -> Entry:
    """Read the entry found at this number; `DamagedJournal` or `NewerJournal` if it cannot be read as one."""
    entry = _decode(path_of(JournalEntry(number)), data, _ENTRY, ENTRY_VERSION, _entry_from_json)
    if entry.number != number:
        where = path_of(JournalEntry(number))
        raise DamagedJournal(f"{where} is damaged: it says that it is entry {entry.number}")
    return entry


def encode_summary(state: JournalState) -> bytes:
    """Return the bytes of the state at its number, without what was removed; `state.removals` are forgotten."""
    kept = state.summarised()
    content = {
        "floor": kept.number,
        "generation": kept.generation,
        "driver": kept.driver,
        "newest_complete": "" if kept.newest_complete == NO_EPOCH else str(kept.newest_complete),
        "epochs": [_record_to_json(record) for record in kept.epochs],
        "pins": [{"pin": pin.pin, "epoch": str(pin.epoch), "pinner": pin.pinner.value} for pin in kept.pins],
        "nonces": list(kept.nonces),
        **({"moved_to": kept.moved_to} if kept.moved_to else {}),
        **({"made_elsewhere": _output_to_json(kept.made_elsewhere)} if kept.made_elsewhere.epochs else {}),
    }
    return seal(_SUMMARY, SUMMARY_VERSION, content)


def decode_summary(floor: int, data: bytes) -> JournalState:
    """Read the state at this floor; `DamagedJournal` or `NewerJournal` if it cannot be read as one."""
    where = path_of(JournalSummary(floor))
    state = _decode(where, data, _SUMMARY, SUMMARY_VERSION, _summary_from_json)
    if state.number != floor:
        raise DamagedJournal(f"{where} is damaged: it says that its floor is {state.number}")
    return state


def _decode(where: str, data: bytes, form: str, version: int, read: Callable[[Fields], _Content]) -> _Content:
    try:
        fields = unseal(data, form, version)
        content = read(fields)
        fields.close()
    except NewerDocument as error:
        raise NewerJournal(f"{where} was written by a newer program: {error}") from error
    except ValueError as error:
        raise DamagedJournal(f"{where} is damaged: {error}") from error
    return content


def _entry_from_json(fields: Fields) -> Entry:
    return Entry(fields.count("number"), Nonce(fields.text("nonce")), _body_from_json(fields))


def _body_to_json(body: Body) -> dict[str, object]:
    match body:
        case Claimed(generation=generation, driver=driver):
            return {"kind": "claimed", "generation": generation, "driver": driver}
        case Completed(only_carried=only_carried):
            carried = {"only_carried": True} if only_carried else {}
            return {"kind": "completed", **_completion_to_json(body), **carried}
        case Committed(by=by, epoch=epoch):
            return {"kind": "committed", "by": by, "epoch": str(epoch)}
        case Rewound(by=by, to=to):
            return {"kind": "rewound", "by": by, "to": str(to)}
        case Removed(by=by, epochs=epochs, files=files, manifests=manifests):
            named = {"epochs": list(map(str, epochs)), "files": list(files), "manifests": list(manifests)}
            return {"kind": "removed", "by": by, **named}
        case Pinned(pin=pin, epoch=epoch, pinner=pinner):
            return {"kind": "pinned", "pin": pin, "epoch": str(epoch), "pinner": pinner.value}
        case Unpinned(pin=pin):
            return {"kind": "unpinned", "pin": pin}
        case Closed(by=by, to=to):
            return {"kind": "closed", "by": by, "to": to}


def _body_from_json(fields: Fields) -> Body:
    match fields.text("kind"):
        case "claimed":
            return Claimed(Generation(fields.count("generation")), fields.text("driver"))
        case "completed":
            return _completion_from_json(fields)
        case "committed":
            return Committed(Generation(fields.count("by")), _epoch(fields, "epoch"))
        case "rewound":
            return Rewound(Generation(fields.count("by")), _epoch(fields, "to"))
        case "removed":
            epochs = tuple(map(Epoch.parse, fields.texts("epochs")))
            return Removed(Generation(fields.count("by")), epochs, fields.texts("files"), fields.texts("manifests"))
        case "pinned":
            return Pinned(PinId(fields.text("pin")), _epoch(fields, "epoch"), Pinner(fields.text("pinner")))
        case "unpinned":
            return Unpinned(PinId(fields.text("pin")))
        case "closed":
            return Closed(Generation(fields.count("by")), fields.text("to"))
        case other:
            raise DamagedDocument(f"its kind is {other!r}")


def _summary_from_json(fields: Fields) -> JournalState:
    counted = fields.version >= 2
    epochs = tuple(_record_from_json(one, counted=counted) for one in fields.objects("epochs"))
    return JournalState(
        number=fields.count("floor"),
        generation=Generation(fields.count("generation")),
        driver=fields.text("driver"),
        newest_complete=_epoch_if_any(fields, "newest_complete"),
        epochs=epochs if counted else with_assumed_output(epochs),
        pins=tuple(map(_pin_from_json, fields.objects("pins"))),
        nonces=tuple(map(Nonce, fields.texts("nonces"))),
        moved_to=fields.text("moved_to") if "moved_to" in fields else "",
        made_elsewhere=_output_from_json(fields, "made_elsewhere") if "made_elsewhere" in fields else NO_OUTPUT,
    )


def _completion_to_json(record: Completed | EpochRecord) -> dict[str, object]:
    return {
        "epoch": str(record.epoch),
        "manifest": record.manifest,
        "digest": record.digest,
        "has_committables": record.has_committables,
    }


def _record_to_json(record: EpochRecord) -> dict[str, object]:
    return {**_completion_to_json(record), "state": record.state.value, "output": _output_to_json(record.output)}


def _output_to_json(output: OutputMade) -> dict[str, object]:
    return {
        "epochs": output.epochs,
        "newest": "" if output.newest == NO_EPOCH else str(output.newest),
        **({"assumed": output.assumed} if output.assumed else {}),
    }


def _output_from_json(fields: Fields, name: str) -> OutputMade:
    found = fields.fields(name)
    assumed = found.count("assumed") if "assumed" in found else 0
    output = OutputMade(found.count("epochs"), _epoch_if_any(found, "newest"), assumed)
    found.close()
    return output


def _completion_from_json(fields: Fields) -> Completed:
    return Completed(
        _epoch(fields, "epoch"),
        fields.text("manifest"),
        fields.text("digest"),
        fields.flag("has_committables"),
        only_carried="only_carried" in fields and fields.flag("only_carried"),
    )


def _record_from_json(fields: Fields, *, counted: bool) -> EpochRecord:
    made = _completion_from_json(fields)
    state = EpochState(fields.text("state"))
    output = _output_from_json(fields, "output") if counted else NO_OUTPUT
    fields.close()
    return EpochRecord(made.epoch, made.manifest, made.digest, made.has_committables, output, state)


def _pin_from_json(fields: Fields) -> Pin:
    pin = Pin(PinId(fields.text("pin")), _epoch(fields, "epoch"), Pinner(fields.text("pinner")))
    fields.close()
    return pin


def _epoch(fields: Fields, name: str) -> Epoch:
    return Epoch.parse(fields.text(name))


def _epoch_if_any(fields: Fields, name: str) -> Epoch:
    text = fields.text(name)
    return Epoch.parse(text) if text else NO_EPOCH
