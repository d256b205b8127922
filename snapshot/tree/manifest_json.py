"""The bytes of a manifest: versioned, canonical JSON with a checksum.

Invariant: equal manifests give equal bytes, and bytes are read as the manifest that they were written from or
not at all. Every version that was ever released stays readable.

    {"format":"epochcut.manifest","version":1,"checksum":"sha256:...","body":{...}}

The checksum is over the bytes of the body. The text is put together here and not by the `json` module, which takes four
times as long: the driver writes a manifest for every epoch of thousands of subtasks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as _text
from reprlib import repr as _shown
from typing import NoReturn, TypeVar, cast

from snapshot.cut.frames import Watermark
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.tree.frozen_json import NULL, Json, JsonLike
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    DamagedManifest,
    Inline,
    JournalEnd,
    Manifest,
    ManifestKind,
    NewerManifest,
    OperatorSnapshot,
    PointsOutside,
    SplitPosition,
    StoredFile,
    SubtaskSnapshot,
)
from statebackend.files import FileRef, FileSet, PathError
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Partition, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.types import KeyType, UndeclarableKeyType
from statebackend.snapshots.file_set_json import FileSetJsonError, file_of, file_text, key_groups_of

FORMAT = "epochcut.manifest"
VERSION = 1

_HEADER = re.compile(rb'\{"format":"epochcut\.manifest","version":1,"checksum":"(sha256:[0-9a-f]{64})","body":')
_END = b"}\n"
_Item = TypeVar("_Item")


def digest(data: bytes) -> str:
    """Return what the journal says about the manifest with these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(manifest: Manifest) -> bytes:
    """Return the canonical bytes of the manifest."""
    parent = "null" if manifest.parent == NO_EPOCH else f'"{manifest.parent}"'
    # Left out where there are none, as in the manifests that were written before there was such a thing.
    notes = "" if manifest.notes == NULL else f'"notes":{manifest.notes.text},'
    end = "" if manifest.journal is None else _journal_end(manifest.journal)
    start = (
        f'{{"job":{_text(manifest.job)},"epoch":"{manifest.epoch}","attempt":{manifest.attempt},"parent":{parent},'
        f'"kind":"{manifest.kind.value}","max_parallelism":{manifest.max_parallelism},'
        f'"created_at":{manifest.created_at},{notes}{end}"operators":['
    )
    body = [start.encode()]
    for number, operator in enumerate(manifest.operators):
        body += (b"," if number else b"", *_operator(operator))
    body.append(b"]}")
    checksum = hashlib.sha256()
    for piece in body:  # megabytes, which are not put together before they are all there
        checksum.update(piece)
    header = f'{{"format":"{FORMAT}","version":{VERSION},"checksum":"sha256:{checksum.hexdigest()}","body":'
    return b"".join((header.encode(), *body, _END))


def decode(data: bytes, where: str) -> Manifest:
    """Read the manifest with these bytes; `where` names the file in errors.

    `NewerManifest` if a newer program wrote it. `DamagedManifest` if the bytes are not as some program wrote them, and
    as its subclass `PointsOutside` if a reference leaves the tree.
    """
    header = _HEADER.match(data)
    if header is None:
        _refuse_header(data, where)
    body = data[header.end() : -len(_END)]
    if digest(body) != header[1].decode():
        raise DamagedManifest(f"{where} is damaged: its checksum does not match, so it was changed or cut short")
    try:
        manifest = _Reader(where).manifest(json.loads(body))
    except DamagedManifest:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"{where} is damaged: {error}") from error
    if encode(manifest) != data:
        raise DamagedManifest(f"{where} is damaged: it is not in the form in which manifests are written")
    return manifest


def encode_subtask(subtask: SubtaskSnapshot) -> bytes:
    """Return a participant's part of an epoch in the form in which it goes to the driver and stands in the manifest."""
    return _subtask(subtask).encode()


def decode_subtask(data: bytes, where: str) -> SubtaskSnapshot:
    """Read what `encode_subtask` wrote; `DamagedManifest` or `PointsOutside`, which name `where`, for anything else.

    The result keeps its form, so that the driver puts the manifest together without writing every part of it anew.
    """
    try:
        subtask = _Reader(where).subtask(json.loads(data))
    except DamagedManifest:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"{where} is damaged: {error}") from error
    if encode_subtask(subtask) != data:
        raise DamagedManifest(f"{where} is damaged: it is not in the form in which manifests are written")
    subtask.remember(data)
    return subtask


def _refuse_header(data: bytes, where: str) -> NoReturn:
    """Raise the error that says what is wrong with bytes that do not begin as a manifest of this version does."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"{where} is damaged: {len(data)} bytes that are not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DamagedManifest(f"{where} is not a manifest: it does not have the format {FORMAT!r}")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerManifest(
            f"{where} has version {version} of the manifest format, and this program reads up to version {VERSION}; "
            "use a release of epochcut at least as new as the one that wrote it"
        )
    raise DamagedManifest(f"{where} is damaged: its header is not in the form in which manifests are written")


# --- writing ---------------------------------------------------------------------------------------------------------


def _journal_end(end: JournalEnd) -> str:
    complete = "null" if end.complete == NO_EPOCH else f'"{end.complete}"'
    return f'"journal":{{"number":{end.number},"complete":{complete}}},'


def _operator(operator: OperatorSnapshot) -> tuple[bytes, bytes, bytes]:
    # Left out where there is none, as in the manifests that were written before there was such a thing.
    broadcast = "" if operator.broadcast is None else f'"broadcast":{_part(operator.broadcast)},'
    key_type = f'"key_type":{_text(operator.key_type)},' if operator.key_type else ""
    start = (
        f'{{"uid":{_text(operator.uid)},"parallelism":{operator.parallelism},"enumerator":{operator.enumerator.text},'
        f'{broadcast}{key_type}"subtasks":['
    )
    subtasks = b",".join([subtask.written or _subtask(subtask).encode() for subtask in operator.subtasks])
    return start.encode(), subtasks, b"]}"


def _subtask(subtask: SubtaskSnapshot) -> str:
    groups, files, positions, time, channels, committables = "null", "", "", "null", "", ""
    if (state := subtask.state) is not None:
        groups = f"[{state.range.first},{state.range.end}]"
        files = ",".join([file_text(file) for file in state.files])
    if subtask.positions:
        positions = ",".join([f"{_text(at.split)}:{at.position.text}" for at in subtask.positions])
    if (watermark := subtask.watermark) is not None:
        time = f'{{"timestamp":{watermark.timestamp},"idle":{"true" if watermark.idle else "false"}}}'
    if subtask.channels:
        channels = ",".join([_channel(channel) for channel in subtask.channels])
    if subtask.committables:
        committables = ",".join([_committable(committable) for committable in subtask.committables])
    return (
        f'{{"partition":{subtask.partition},"key_groups":{groups},"files":[{files}],"positions":{{{positions}}},'
        f'"watermark":{time},"channels":[{channels}],"committables":[{committables}]}}'
    )


def _stored(file: StoredFile) -> str:
    return f'{{"path":"{file.path}","size":{file.size},"checksum":"{file.checksum}"}}'


def _channel(state: ChannelState) -> str:
    channel = state.channel
    return (
        f'{{"source":{_text(channel.source)},"target":{_text(channel.target)},"sender":{channel.sender},'
        f'"receiver":{channel.receiver},"port":{channel.port},"parts":[{",".join(map(_part, state.parts))}]}}'
    )


def _part(part: StoredFile | Inline) -> str:
    match part:
        case StoredFile():
            return _stored(part)
        case Inline(data):
            return f'"{base64.b64encode(data).decode()}"'


def _committable(committable: Committable[CommitPayload]) -> str:
    payload, sealed_in = committable.payload, committable.sealed_in
    staged = ",".join([_stored(file) for file in payload.staged]) if payload.staged else ""
    held = ',"held":true' if payload.held else ""
    return (
        f'{{"transaction":{_text(committable.transaction)},"sealed_in":"{sealed_in.number}-{sealed_in.generation}",'
        f'"payload":{payload.value.text},"staged":[{staged}]{held}}}'
    )


# --- reading ---------------------------------------------------------------------------------------------------------

_BODY = frozenset({"job", "epoch", "attempt", "parent", "kind", "max_parallelism", "created_at", "operators"})
_MAY_HAVE = frozenset({"notes", "journal"})
_JOURNAL = frozenset({"number", "complete"})
_OPERATOR = frozenset({"uid", "parallelism", "enumerator", "subtasks"})
_OPERATOR_MAY_HAVE = frozenset({"broadcast", "key_type"})
_SUBTASK = frozenset({"partition", "key_groups", "files", "positions", "watermark", "channels", "committables"})
_STORED = frozenset({"path", "size", "checksum"})
_WATERMARK = frozenset({"timestamp", "idle"})
_CHANNEL = frozenset({"source", "target", "sender", "receiver", "port", "parts"})
_COMMITTABLE = frozenset({"transaction", "sealed_in", "payload", "staged"})
_COMMITTABLE_MAY_HAVE = frozenset({"held"})


class _Reader:
    """Takes a parsed body apart; every complaint says where in the file it is."""

    def __init__(self, where: str) -> None:
        self._where = where

    def manifest(self, value: object) -> Manifest:
        body = self._fields(value, "body", _BODY, _MAY_HAVE)
        return Manifest(
            job=JobId(self._text(body, "body", "job")),
            epoch=Epoch.parse(self._text(body, "body", "epoch")),
            attempt=Attempt(self._integer(body, "body", "attempt")),
            kind=ManifestKind(self._text(body, "body", "kind")),
            max_parallelism=self._integer(body, "body", "max_parallelism"),
            created_at=self._integer(body, "body", "created_at"),
            operators=self._each(body, "body", "operators", self._operator),
            parent=NO_EPOCH if body["parent"] is None else Epoch.parse(self._text(body, "body", "parent")),
            notes=_json(body.get("notes")),
            journal=self._journal_end(body["journal"]) if "journal" in body else None,
        )

    def subtask(self, value: object) -> SubtaskSnapshot:
        return self._subtask(value, "subtask")

    def _journal_end(self, value: object) -> JournalEnd:
        fields = self._fields(value, "body.journal", _JOURNAL)
        number = self._integer(fields, "body.journal", "number")
        complete = fields["complete"]
        return JournalEnd(
            number, NO_EPOCH if complete is None else Epoch.parse(self._text(fields, "body.journal", "complete"))
        )

    def _operator(self, value: object, place: str) -> OperatorSnapshot:
        fields = self._fields(value, place, _OPERATOR, _OPERATOR_MAY_HAVE)
        broadcast: dict[str, object] = {"broadcast": [fields["broadcast"]] if "broadcast" in fields else []}
        return OperatorSnapshot(
            uid=Uid(self._text(fields, place, "uid")),
            parallelism=self._integer(fields, place, "parallelism"),
            subtasks=self._each(fields, place, "subtasks", self._subtask),
            enumerator=_json(fields["enumerator"]),
            broadcast=next(iter(self._each(broadcast, place, "broadcast", self._part)), None),
            key_type=self._key_type(fields, place) if "key_type" in fields else "",
        )

    def _key_type(self, fields: dict[str, object], place: str) -> str:
        name = self._text(fields, place, "key_type")
        try:
            KeyType.parse(name)
        except UndeclarableKeyType as error:
            self._complain(f"{place}.key_type", str(error), error)
        return name

    def _subtask(self, value: object, place: str) -> SubtaskSnapshot:
        fields = self._fields(value, place, _SUBTASK)
        files = self._each(fields, place, "files", self._file)
        groups = fields["key_groups"]
        if groups is None and files:
            self._complain(place, "it has files and no key groups")
        positions = fields["positions"]
        if not isinstance(positions, dict):
            self._complain(f"{place}.positions", f"expected an object, found {_shown(positions)}")
        return SubtaskSnapshot(
            partition=Partition(self._integer(fields, place, "partition")),
            state=None if groups is None else FileSet(self._range(groups, f"{place}.key_groups"), files),
            positions=tuple(SplitPosition(split, _json(position)) for split, position in positions.items()),
            watermark=self._watermark(fields["watermark"], f"{place}.watermark"),
            channels=self._each(fields, place, "channels", self._channel),
            committables=self._each(fields, place, "committables", self._committable),
        )

    def _file(self, value: object, _: str) -> FileRef:
        return file_of(value)

    def _range(self, value: object, place: str) -> KeyGroupRange:
        try:
            return key_groups_of(value, place)
        except FileSetJsonError as error:
            self._complain(place, error.reason, error)

    def _watermark(self, value: object, place: str) -> Watermark | None:
        if value is None:
            return None
        fields = self._fields(value, place, _WATERMARK)
        idle = fields["idle"]
        if not isinstance(idle, bool):
            self._complain(f"{place}.idle", f"expected true or false, found {_shown(idle)}")
        return Watermark(self._integer(fields, place, "timestamp"), idle)

    def _channel(self, value: object, place: str) -> ChannelState:
        fields = self._fields(value, place, _CHANNEL)
        channel = ChannelId(
            source=Uid(self._text(fields, place, "source")),
            target=Uid(self._text(fields, place, "target")),
            sender=Partition(self._integer(fields, place, "sender")),
            receiver=Partition(self._integer(fields, place, "receiver")),
            port=self._integer(fields, place, "port"),
        )
        return ChannelState(channel, self._each(fields, place, "parts", self._part))

    def _part(self, value: object, place: str) -> StoredFile | Inline:
        if isinstance(value, str):
            return Inline(base64.b64decode(value, validate=True))
        return self._stored(value, place)

    def _stored(self, value: object, place: str) -> StoredFile:
        fields = self._fields(value, place, _STORED)
        return StoredFile(
            path=self._text(fields, place, "path"),
            size=self._integer(fields, place, "size"),
            checksum=self._text(fields, place, "checksum"),
        )

    def _committable(self, value: object, place: str) -> Committable[CommitPayload]:
        fields = self._fields(value, place, _COMMITTABLE, _COMMITTABLE_MAY_HAVE)
        held = fields.get("held", False)
        if not isinstance(held, bool):
            self._complain(f"{place}.held", f"expected true or false, found {_shown(held)}")
        return Committable(
            transaction=TransactionId(self._text(fields, place, "transaction")),
            sealed_in=Epoch.parse(self._text(fields, place, "sealed_in")),
            payload=CommitPayload(_json(fields["payload"]), self._each(fields, place, "staged", self._stored), held),
        )

    def _each(
        self, fields: dict[str, object], place: str, name: str, read: Callable[[object, str], _Item]
    ) -> tuple[_Item, ...]:
        """Read the items of a list; a value that its type refuses is damage at the item's place."""
        items, result, at = fields[name], [], f"{place}.{name}"
        if not isinstance(items, list):
            self._complain(at, f"expected a list, found {_shown(items)}")
        for index, item in enumerate(items):
            try:
                result.append(read(item, f"{at}[{index}]"))
            except DamagedManifest:
                raise
            except FileSetJsonError as error:
                self._complain(f"{at}[{index}]{error.place}", error.reason, error)
            except PathError as error:
                raise PointsOutside(f"{self._where} points outside its tree: {at}[{index}]: {error}") from error
            except ValueError as error:
                self._complain(f"{at}[{index}]", str(error), error)
        return tuple(result)

    def _fields(
        self, value: object, place: str, names: frozenset[str], optional: frozenset[str] = frozenset()
    ) -> dict[str, object]:
        if not isinstance(value, dict):
            self._complain(place, f"expected an object, found {_shown(value)}")
        if not names <= value.keys() <= names | optional:
            missing, unknown = sorted(names - value.keys()), sorted(value.keys() - names - optional)
            self._complain(place, f"missing fields {missing}, unknown fields {unknown}")
        return value

    def _text(self, fields: dict[str, object], place: str, name: str) -> str:
        value = fields[name]
        if not isinstance(value, str):
            self._complain(f"{place}.{name}", f"expected a text, found {_shown(value)}")
        return value

    def _integer(self, fields: dict[str, object], place: str, name: str) -> int:
        value = fields[name]
        if type(value) is not int:
            self._complain(f"{place}.{name}", f"expected a whole number, found {_shown(value)}")
        return value

    def _complain(self, place: str, reason: str, cause: Exception | None = None) -> NoReturn:
        raise DamagedManifest(f"{self._where} is damaged: {place}: {reason}") from cause


def _json(value: object) -> Json:
    return Json.of(cast("JsonLike", value))  # it was parsed from JSON
