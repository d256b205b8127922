"""Decoders of what an epoch has of rows: in flight, staged, broadcast, and to be committed."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from snapshot.connectors.delta import sink as delta_sink
from snapshot.connectors.delta import table as delta_table
from snapshot.connectors.files import names as file_names
from snapshot.connectors.files import writer as file_writer
from snapshot.connectors.files.hive_folders import is_folder
from snapshot.connectors.files.names import file_name
from snapshot.connectors.http import sink as http_sink
from snapshot.connectors.kafka.tokens import About, producer_of
from snapshot.connectors.pravega import commits as pravega_commits
from snapshot.connectors.pravega.commit_log import CommitLog, Intent, Piece
from snapshot.connectors.pravega.messages import message, parsed
from snapshot.connectors.pravega.segment_store import StoreFailed, events_in, framed
from snapshot.connectors.rocksdb import sink as rocksdb_sink
from snapshot.connectors.sql.staged import StagedChanges
from snapshot.connectors.staging import staged_rows
from snapshot.connectors.staging.commit_tokens import token_of
from snapshot.connectors.staging.committed import Committed
from snapshot.connectors.staging.payloads import BadPayload, PayloadFields, place_text, places_in, read_payload
from snapshot.cut.frames import Data
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.host.partition import channel_state
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.operators.broadcast import Broadcast, BroadcastMismatch, BroadcastStates
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkContext, SinkError
from snapshot.structured import batch_log, spark_sink
from snapshot.testing.sinks import SCHEMA, SinkEnvironment
from snapshot.tree.frozen_json import JsonLike, NotJson
from snapshot.tree.layout import parse
from snapshot.tree.manifest import CommitPayload, ManifestError, StoredFile
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Partition, Uid
from tests.fuzz.decoder import Decoder, dumped, frozen, json_changed, stream, texts
from tests.fuzz.network import CHANNEL, DICTIONARIES, PLAIN, WE, rows
from tests.fuzz.tree import parts as _parts


def _broadcast(data: bytes) -> None:
    BroadcastStates(Uid("b"), {"rules": Broadcast(str, int), "pairs": Broadcast(int, tuple[str, float])}, data)


def _broadcasts() -> list[bytes]:
    states = BroadcastStates(Uid("b"), {"rules": Broadcast(str, int), "pairs": Broadcast(int, tuple[str, float])}, None)
    states.gate.writable = True
    states.maps["rules"].put("a", 5)
    states.maps["pairs"].put(1, ("x", 2.5))
    return [states.to_bytes()]


def _staged(data: bytes) -> None:
    staged_rows.batches_in(StoredFile("shared/1-0-1-0.staged", len(data), "sha256:00"), data)


_TRANSACTION: Final = TransactionId("clicks-0a1b2c3d/out/3-2-0-17")
_PRAVEGA: Final[dict[str, JsonLike]] = {"controller": "tcp://a:1", "scope": "s", "stream": "t"}


def _payload(data: bytes) -> None:
    """Read a payload as each sink does before it acts; a refusal is an answer."""
    value = frozen(data)
    context = SinkContext(
        JobId("clicks-0a1b2c3d"), Uid("out"), SCHEMA, WE, Partition(0), SinkEnvironment(), lambda *_: None
    )
    payload = CommitPayload(value)
    for kind, read in _SINKS.items():
        read_payload(kind, context, _TRANSACTION, payload, read)
    places_in(payload)


_SINKS: Final[dict[str, Callable[[PayloadFields], object]]] = {
    "ToFiles": partial(file_writer._committed_in, _TRANSACTION, "file:///out"),
    "ToRocksDB": partial(rocksdb_sink._staged_in, _TRANSACTION, "/out"),
    "ToDelta": partial(delta_sink._staged_in, _TRANSACTION, "/table"),
    "ToSQLite": lambda fields: StagedChanges.read(
        _TRANSACTION, fields.own_object({"path": "/db", "table": "t"}), fields
    ),
    "ToKafka": lambda fields: About.read(_TRANSACTION, fields.own_object({"bootstrap": "a:1", "topic": "t"}), fields),
    "ToPravega": lambda fields: pravega_commits.About.read(_TRANSACTION, fields.own_object(_PRAVEGA), fields),
    "ToHTTP": http_sink._Sent.read,
    "ToSpark": partial(spark_sink._Staged.read, "file:///out"),
}


def _payloads() -> list[bytes]:
    nonce, name = "0123456789abcdef", file_name(_TRANSACTION, 0, "jsonl", "0123456789abcdef")
    schema = b64encode(PLAIN.serialize().to_pybytes()).decode()
    token = delta_table.DeltaToken(_TRANSACTION, nonce, 0)
    columns = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
    sql = {"key": ["n"], "deleted": "", "nonce": nonce, "settled": [f"3-2-0-16/{nonce}"], "rows": 1}
    kafka = {"producer": producer_of(_TRANSACTION), "first": 3, "sealed_at": 5, "writer": nonce, "rows": 1}
    files = [name, {"name": f"d=1/{name}", "ticket": 5}]
    elsewhere = [{"place": "file:///out", "listed": True, "files": [name]}]
    rocksdb = {"file": file_name(_TRANSACTION, 0, "sst", nonce), "nonce": nonce, "schema": schema}
    delta = {"columns": columns, "writer": nonce, "slot": 0, "files": [[token.file(0), 5, 1]]}
    made: list[dict[str, Any]] = [
        {"sink": "ToFiles", "place": "file:///out", "listed": False, "files": files, "elsewhere": elsewhere},
        {"sink": "ToRocksDB", "place": "/out", **rocksdb},
        {"sink": "ToDelta", "place": "/table", **delta},
        {"sink": "ToSQLite", "place": {"path": "/db", "table": "t"}, **sql},
        {"sink": "ToKafka", "place": {"bootstrap": "a:1", "topic": "t"}, **kafka},
        {"sink": "ToPravega", "place": _PRAVEGA, "first": 3, "sealed_at": 5, "writer": nonce, "rows": 1},
        {"sink": "ToSpark", "place": "file:///out", "epoch": "7-2", "nonce": nonce, "rows": 1},
        {"sink": "ToHTTP", "nonce": nonce, "key": "n", "rows_per_request": 1, "rows": 1},
    ]
    return [dumped(one) for one in made]


def _logs() -> list[bytes]:
    intent = Intent(Piece("3-2/0123456789abcdef", 0, 4, 17), 1 << 70)
    return [CommitLog().begun(intent).settled(True).begun(intent).encode()]


def _names_of_files(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    for found in (parse, file_names.transaction_of, delta_table.token_of, is_folder):
        found(text)
    place_text(text)
    for raises in (parse_transaction_id, Committed.parse, partial(token_of, JobId("a"), Uid("b"))):
        with suppress(ValueError):
            raises(text)


def _encoded_before(_: ChannelId, rows: Rows) -> Data:
    raise AssertionError(f"{rows} are not encoded")


OUTPUT: Final[dict[str, Decoder]] = {
    "rows in flight": Decoder(
        lambda data: channel_state._unpacked(data, "here"),
        lambda: [b"".join(channel_state._packed(CHANNEL, [Data(b"some rows", 9), Data(b"", 0)], _encoded_before))],
        (DamagedFile,),
    ),
    "broadcast state": Decoder(_broadcast, _broadcasts, (BroadcastMismatch,), json_changed),
    "decisions for batches": Decoder(
        lambda data: batch_log._decoded(data, "batches/1.json"),
        lambda: [dumped({"version": 1, "run": "a", "partitions": [part.decode() for part in _parts()]})],
        (ManifestError,),
        json_changed,
    ),
    "identities of batches": Decoder(
        batch_log._parsed,
        lambda: [dumped({"version": 1, "identity": "0" * 32, "target": "files, uri x"})],
        (SinkError,),
        json_changed,
    ),
    "staged rows": Decoder(_staged, lambda: [stream(rows(PLAIN)), stream(rows(DICTIONARIES))], (BadPayload,)),
    "payloads": Decoder(_payload, _payloads, (NotJson, json.JSONDecodeError, UnicodeDecodeError), json_changed),
    "logs of commits": Decoder(CommitLog.decode, _logs, (ValueError,), json_changed),
    "events of a segment": Decoder(events_in, lambda: [framed(b"one") + framed(b"")], (StoreFailed,)),
    "messages of protobuf": Decoder(
        lambda data: parsed(data).inner(1).text(1),
        lambda: [message((1, message((1, "text"))), (2, 300))],
        (ValueError,),
    ),
    "names of files": Decoder(
        _names_of_files,
        texts(
            "journal/0000000042.json",
            "epochs/5-2-abc/manifest.json",
            "shared/1-0-1-2.sst",
            "day=2026-01-01/x=%2F",
            file_names.file_name(_TRANSACTION, 0, "parquet", "0123456789abcdef"),
            _TRANSACTION,
            "1-3,5,7-9",
            delta_table.DeltaToken(_TRANSACTION, "0123456789abcdef", 2).file(0),
            "3-2-0-16/0123456789abcdef",
        ),
        (),
    ),
}
