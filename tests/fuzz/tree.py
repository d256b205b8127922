"""Decoders of documents in a tree: manifests, the journal, and who the job is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from recovery.decisions import notes
from recovery.driver.tree import address as reach
from recovery.driver.tree import identity
from recovery.offline import tree_marks
from snapshot.ids import JobId
from snapshot.journal.entries import JournalError
from snapshot.journal.entry_json import decode_entry, decode_summary
from snapshot.tree.frozen_json import NotJson
from snapshot.tree.manifest import ManifestError
from snapshot.tree.manifest_json import decode, decode_subtask
from statebackend.ids import Generation
from statebackend.snapshots import file_set_json, snapshot_log
from tests.fuzz.decoder import GOLDEN, Decoder, dumped, frozen, json_changed, sealed_changed, texts
from tests.fuzz.mutations import changed_bytes, changed_text


def manifest_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change the body of a manifest; its checksum is made right."""
    if random.random() < 0.1:
        return changed_bytes(random, data, others)
    body = dumped(json.loads(data)["body"])
    body = changed_text(random, body, dumped) if random.random() < 0.8 else changed_bytes(random, body, [body])
    checksum = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return f'{{"format":"epochcut.manifest","version":1,"checksum":"{checksum}","body":'.encode() + body + b"}\n"


def _moved(data: bytes) -> None:
    with suppress(identity.JobMoved):
        identity._refuse_if_moved(_One(data), "here")  # type: ignore[arg-type]


def golden(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(GOLDEN.glob(pattern))]


def parts() -> list[bytes]:
    body = json.loads((GOLDEN / "manifest-v1.json").read_bytes())["body"]
    return [dumped(part) for operator in body["operators"] for part in operator["subtasks"]]


def _file_sets() -> list[bytes]:
    found = [json.loads(part) for part in parts()]
    return [dumped({"key_groups": one["key_groups"], "files": one["files"]}) for one in found if one["files"]]


@dataclass(frozen=True)
class _One:
    """A store with one blob."""

    data: bytes

    def read(self, path: str) -> bytes:
        return self.data


TREE: Final[dict[str, Decoder]] = {
    "manifests": Decoder(lambda data: decode(data, "m"), golden("manifest-*.json"), (ManifestError,), manifest_changed),
    "parts of manifests": Decoder(lambda data: decode_subtask(data, "m"), parts, (ManifestError,), json_changed),
    "entries of journals": Decoder(
        lambda data: decode_entry(7, data), golden("journal-entry-*.json"), (JournalError,), sealed_changed
    ),
    "summaries of journals": Decoder(
        lambda data: decode_summary(11, data), golden("journal-summary-*.json"), (JournalError,), sealed_changed
    ),
    "marks": Decoder(
        partial(tree_marks.mark_from, "unfinished/0000000001-1.json"),
        lambda: [tree_marks.Mark(1, 1, "fork", "a", Generation(1), "n", tree_marks.Made(b"{}", b"{}")).encoded()],
        (ValueError,),
        sealed_changed,
    ),
    "names of jobs": Decoder(
        identity._birth_from,
        lambda: [identity.bytes_of(identity.Birth("clicks", JobId("clicks-01234567"), 128))],
        (identity.WrongJob,),
        json_changed,
    ),
    "places of moved jobs": Decoder(
        _moved,
        texts('{"format": "epochcut.moved", "version": 1, "job": "clicks-01234567", "to": "s3://b/x"}'),
        (identity.WrongJob,),
        json_changed,
    ),
    "addresses of drivers": Decoder(
        lambda data: reach._parsed(Path("driver.json"), data.decode(errors="replace")),
        texts(
            '{"format": "epochcut.driver", "version": 1, "job": "clicks-01234567", '
            '"address": {"host": "h", "port": 5}, "pid": 7, "secret": "00ff", '
            '"tls": {"certificate": "c", "key": "k", "authorities": "a"}, "tree": "/t"}'
        ),
        (reach.JobNotRunning,),
        json_changed,
    ),
    "notes": Decoder(
        lambda data: notes.from_json(frozen(data)),
        texts(
            '{"program": "1", "took": [[0, 1.5, 2.0, 3.0, 4.0, 5, 6]], "origin": {"how": "fork", "uri": "u", "at": 5, '
            '"job": "j", "epoch": "1-1", "before": {"how": "copy", "uri": "u", "at": 5}}}'
        ),
        (NotJson, json.JSONDecodeError, UnicodeDecodeError),
        json_changed,
    ),
    "file sets": Decoder(
        lambda data: file_set_json.from_json(data.decode(errors="replace")), _file_sets, (ValueError,), json_changed
    ),
    "entries of snapshot folders": Decoder(
        partial(snapshot_log.decode, "counts", 42),
        golden("snapshot-folder-*.json"),
        (snapshot_log.SnapshotFolderError,),
        sealed_changed,
    ),
}
