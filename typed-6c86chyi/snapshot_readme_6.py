import json
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from snapshot import Abilities, CommitAnswer, CommitOutcome, read_payload
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, staged_batches, unreadable
from snapshot.testing.sinks import SinkTrial, check_sink


@dataclass(frozen=True)
class ToJson:
    """A folder with one JSON file for each transaction."""

    folder: str
    exactly_once = True
    abilities = Abilities(reads_tokens=True)

    def check(self, schema):
        return []  # rows of any schema

    def examine(self, job, uid, schema):
        return [] if Path(self.folder).is_dir() else [f"{self.folder} is not a folder; make it"]

    def open(self, context):
        return ToJsonWriter(self, context)

    def recover(self, job, uid, older_than, named):
        """Do nothing: rows wait in the job's tree, and a lost attempt leaves none in the folder."""


class ToJsonWriter:
    def __init__(self, sink, context):
        self.sink, self.context, self.nonce = sink, context, ""
        self.rows = StagedRows(context.uid, context.staging)

    def begin(self, transaction):
        self.nonce = os.urandom(8).hex()  # a tree that was put back repeats names of transactions
        self.rows.begin()

    def write(self, rows):
        self.rows.write(rows)

    def seal(self):
        return self.rows.seal({MADE_BY: "ToJson", PLACE: self.sink.folder, "nonce": self.nonce})

    def commit(self, transaction, payload):
        def file_of(fields):  # the tree may be forged: read nothing that was not checked
            return Path(fields.own_place(self.sink.folder), f"{fields.text('nonce', NONCE)}.json")

        file = read_payload("ToJson", self.context, transaction, payload, file_of)
        if isinstance(file, CommitAnswer):
            return file  # refused, with the reason
        if file.exists():
            return CommitAnswer(CommitOutcome.ALREADY_COMMITTED)
        try:
            rows = [row for batch in staged_batches(payload, self.context.staging) for row in batch.to_pylist()]
        except UNREADABLE as error:
            return unreadable(error)
        hidden = file.with_name(f".{os.urandom(8).hex()}")
        hidden.write_text(json.dumps(rows))
        try:
            os.link(hidden, file)  # as a whole, and only if it is not there
        except FileExistsError:
            return CommitAnswer(CommitOutcome.ALREADY_COMMITTED)
        finally:
            hidden.unlink()
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self):
        self.rows.close()


with TemporaryDirectory() as folder:

    def visible(_):
        return [row["row"] for file in Path(folder).glob("*.json") for row in json.loads(file.read_text())]

    check_sink(SinkTrial(ToJson(folder), visible))
print("the sink keeps its promises")
