"""Trees as somebody writes them who means harm: sound by every checksum, and hostile in what they say.

Invariant: a forgery changes a tree that a job left, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rocksdict import DBCompressionType, SstFileWriter

import recovery
from recovery.offline.epoch_choice import choose
from recovery.offline.job_tree import open_tree
from recovery.offline.stopped_job import take_over
from snapshot import EOF, Collection, Program, Stream, ToFiles
from snapshot.epochs.transaction_events import Committable, transaction_id
from snapshot.ids import JobId
from snapshot.program.source import Source
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload, StoredFile
from statebackend.backends.rocksdb_tables import table_options
from statebackend.backends.sst import DELETED, read_sst
from statebackend.entries import META_KEY, STAMP
from statebackend.ids import Attempt, Incarnation, Partition, Uid
from statebackend.snapshots.sealed_json import seal
from tests.shop_job import SALES, Basket, sale

ESCAPES: Final = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nsound: 99-9"
"""What would give a terminal commands: its title, its screen, its colours, the direction of writing, a line more."""
LEFT: Final = "left.jsonl"
"""A file that a former run has left where the program's sink stages its files."""
_DEEP: Final = 800
"""So deep JSON can be parsed, and is deeper than most functions that follow it can go."""


def program(output: Path, source: Source | None = None) -> Program:
    """Sales by buyer and by item, to files. The first start ends in the middle."""
    some, more = [sale(number) for number in range(60)], [sale(number) for number in range(60, 80)]
    sales = Stream.read(source or Collection([*some, EOF(), *more], SALES), uid="sales")
    baskets = sales.key_by("region", "user").process(Basket, uid="baskets").write(ToFiles(str(output)), uid="bought")
    totals = sales.key_by("item").sum("cents", uid="totals").write(ToFiles(str(output)), uid="sums")
    return baskets + totals


def stopped_tree(folder: Path) -> Path:
    """Return the tree of a job that has stopped with two savepoints; its output is beside it."""
    tree = folder / "tree"
    with recovery.run(
        program(folder / "output"),
        checkpoints=tree,
        job="shop",
        every="10s",
        parallelism=1,
        local=folder / "local",
        progress=False,
    ) as run:
        run.savepoint()
        run.stop(savepoint=True)
    return tree


class Forger:
    """Changes a tree. `outside` is a folder that is none of its business."""

    def __init__(self, tree: Path, outside: Path) -> None:
        self.tree, self.outside = tree, outside

    @property
    def newest(self) -> Path:
        """The manifest of the newest epoch."""
        return max(self.tree.glob("epochs/*/manifest.json"), key=lambda path: int(path.parent.name.split("-")[0]))

    @property
    def job(self) -> str:
        """The job's id."""
        return str(json.loads((self.tree / "job.json").read_bytes())["job"])

    def body(self) -> Any:
        """What the newest manifest says."""
        return json.loads(self.newest.read_bytes())["body"]

    def manifest(self, change: Callable[[Any], object]) -> None:
        """Change what the newest manifest says; its checksum, and its digest in the journal, are made right."""
        body = self.body()
        change(body)
        text = json.dumps(body, separators=(",", ":"))
        header = f'{{"format":"epochcut.manifest","version":1,"checksum":"{_sha(text.encode())}","body":'
        data = f"{header}{text}}}\n".encode()
        self.newest.write_bytes(data)
        path = self.newest.relative_to(self.tree).as_posix()

        def renamed(entry: Any) -> None:
            if entry.get("manifest") == path:
                entry["digest"] = _sha(data)

        for number in self.numbers():
            self.entry(number, renamed)

    def numbers(self) -> list[int]:
        """The numbers of the journal's entries."""
        return sorted(int(path.stem) for path in self.tree.glob("journal/[0-9]*.json"))

    def entry(self, number: int, change: Callable[[Any], object]) -> None:
        """Change an entry of the journal; its checksum is made right."""
        file = self.tree / f"journal/{number:010}.json"
        content = json.loads(file.read_bytes())
        form, version, _ = content.pop("format"), content.pop("version"), content.pop("checksum")
        change(content)
        file.write_bytes(seal(form, version, content))

    def subtask(self, uid: str) -> Callable[[Callable[[Any], object]], None]:
        """Change what the newest manifest says of an operator in its only partition."""

        def change(how: Callable[[Any], object]) -> None:
            self.manifest(lambda body: [how(one["subtasks"][0]) for one in body["operators"] if one["uid"] == uid])

        return change

    def output(
        self, payload: JsonLike, *, staged: tuple[StoredFile, ...] = (), held: bool = False, job: str = ""
    ) -> None:
        """Let the tree have one more epoch, with output of the sink `bought` that has to be committed."""
        stopped = take_over(open_tree(str(self.tree)), "forger")
        manifest = stopped.remade(choose(stopped.tree).manifest, "forger")
        made = Incarnation(stopped.generation, Attempt(1))
        transaction = transaction_id(JobId(job or self.job), Uid("bought"), made, Partition(0), 1)
        one = Committable(transaction, manifest.epoch, CommitPayload(Json.of(payload), staged, held))
        operators = [
            replace(each, subtasks=(replace(each.subtasks[0], committables=(one,)),)) if each.uid == "bought" else each
            for each in manifest.operators
        ]
        stopped.publish(replace(manifest, operators=tuple(operators)))

    def output_that_nests(self) -> None:
        """Give it a payload that is deeper than one of ours can be made."""
        self.output({"sink": "ToFiles", "place": "x", "files": []})

        def deepen(part: Any) -> None:
            part["committables"][0]["payload"]["place"] = _nested("x")

        self.subtask("bought")(deepen)

    def stored(self, data: bytes, ending: str) -> StoredFile:
        """Put a file into the tree."""
        file = StoredFile(f"shared/1-0-1-99.{ending}", len(data), _sha(data))
        (self.tree / file.path).write_bytes(data)
        return file

    def state(self, data: bytes, uid: str = "totals") -> None:
        """Have other bytes in the place of the newest file of an operator's state."""

        def change(part: Any) -> None:
            file = part["files"][-1]
            (self.tree / file["path"]).write_bytes(data)
            file.update(size=len(data), checksum=_sha(data))

        self.subtask(uid)(change)

    def sst(self, entries: dict[bytes, bytes]) -> bytes:
        """Return a file of RocksDB with these entries, and what says whose it is as in the operator's own."""
        path = self.outside.parent / "made.sst"
        writer = SstFileWriter(table_options(DBCompressionType.zstd()))
        writer.open(str(path))
        for name, value in sorted(entries.items()):
            writer[name] = value
        writer.finish()
        data = path.read_bytes()
        path.unlink()
        return data

    def write(self, path: str, text: str) -> None:
        """Write a file, and the folders above it."""
        file = self.tree / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def linked(self, path: str, to: Path) -> None:
        """Have a link in the place of a file or folder."""
        here = self.tree / path
        if here.is_dir():
            shutil.rmtree(here)
        else:
            here.unlink()
        here.symlink_to(to)


def _sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _nested(inner: JsonLike, depth: int = _DEEP) -> JsonLike:
    for _ in range(depth):
        inner = [inner]
    return inner


def _job_json(**fields: object) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        file = forger.tree / "job.json"
        given = {name: str(value).replace("OUTSIDE", str(forger.outside)) if isinstance(value, str) else value
                 for name, value in fields.items()}  # fmt: skip
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **given}))

    return forge


def _moved(forger: Forger) -> None:
    (forger.tree / "job.json").unlink()
    forger.write("moved.json", json.dumps({"format": "epochcut.moved", "version": 1, "job": ESCAPES, "to": ESCAPES}))


def _files(place: str, *names: str) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        (forger.tree / ".staged").mkdir()
        for name in names:
            (forger.tree / ".staged" / Path(name).name).write_text("owned")
        root = place.replace("OUTSIDE", str(forger.outside)).replace("TREE", str(forger.tree))
        forger.output({"sink": "ToFiles", "place": root, "listed": False, "files": list(names)})

    return forge


def _own_place(*names: str) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        place = f"file://{forger.outside.parent}/output"
        forger.output({"sink": "ToFiles", "place": place, "listed": False, "files": list(names)})

    return forge


def _notes(notes: Callable[[Forger], object]) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        found = json.loads(json.dumps(notes(forger), sort_keys=True))
        forger.manifest(lambda body: body.update(notes=found))

    return forge


def _origins(forger: Forger) -> object:
    origin: object = None
    for _ in range(_DEEP):
        origin = {"how": ESCAPES, "uri": ESCAPES, "at": 10**400, "before": origin}
    return {"program": ESCAPES, "took": [[0, 10**400, -1, 1, 1, -1, 2**70]], "origin": origin}


def _bomb(forger: Forger) -> bytes:
    listed = (0xFFFFFFF0).to_bytes(4, "big") + pa.compress(bytes(1 << 20), codec="zstd", asbytes=True)
    return forger.sst({DELETED + bytes(4): STAMP.pack(1) + listed, META_KEY: STAMP.pack(1) + b"{}"})


def _reached(forger: Forger, forge: Callable[[Any], object]) -> None:
    for number in forger.numbers():
        forger.entry(number, forge)


FORGERIES: Final[dict[str, Callable[[Forger], object]]] = {
    "an id that is a folder": _job_json(job="OUTSIDE/folder"),
    "an id that leads up": _job_json(job="../outside-01234567", name="../outside"),
    "a name with escapes": _job_json(job=f"{ESCAPES}-01234567", name=ESCAPES),
    "a name that nests without end": lambda forger: forger.write("job.json", "[" * 100_000),
    "more key groups than there are": _job_json(max_parallelism=2**40),
    "a job that was moved by escapes": _moved,
    "output for another folder": _files("file://OUTSIDE", "../../.profile"),
    "output that is staged in the tree": _files("TREE", "../outside/.profile"),
    "output for a place of escapes": _files(f"file://OUTSIDE/{ESCAPES}", "part-x-0.jsonl"),
    "output of names that lead up": _own_place(f"../outside/{LEFT}"),
    "output of absolute names": _own_place("/etc/cron.d/owned"),
    "output of another job": lambda forger: forger.output(
        {"sink": "ToFiles", "place": "x", "listed": False, "files": ["y"]}, job="other-01234567"
    ),
    "output of another kind": lambda forger: forger.output({"sink": ESCAPES, "place": ESCAPES}),
    "output that nests": Forger.output_that_nests,
    "rows held back for another folder": lambda forger: forger.output(
        {
            "sink": "ToFiles",
            "held": [
                {
                    "place": f"file://{forger.outside}",
                    "listed": False,
                    "format": "jsonl",
                    "folders": ["../.."],
                    "schema": "x",
                    "since": 1,
                    "pieces": [[1, 1]],
                }
            ],
        },
        staged=(forger.stored(b"\xff\xff\xff\xff\x10\0\0\0nonsense", "staged"),),
        held=True,
    ),
    "notes of escapes": _notes(lambda _: {"program": ESCAPES, "origin": {"how": ESCAPES, "uri": ESCAPES, "at": 5}}),
    "notes that nest, of numbers beyond any": _notes(_origins),
    "a time that no calendar has": lambda forger: forger.manifest(lambda body: body.update(created_at=2**63 - 1)),
    "a type of keys that is none": lambda forger: forger.manifest(
        lambda body: [one.update(key_type=f"{ESCAPES}<") for one in body["operators"] if one["uid"] == "totals"]
    ),
    "a type of keys that nests": lambda forger: forger.manifest(
        lambda body: [one.update(key_type="struct<" * 500) for one in body["operators"] if one["uid"] == "totals"]
    ),
    "a position of escapes that nests": lambda forger: forger.subtask("sales")(
        lambda part: part.update(positions={ESCAPES: _nested(ESCAPES)})
    ),
    "splits that are not there": lambda forger: forger.subtask("sales")(
        lambda part: part.update(positions={"/etc/passwd": {"offset": 2**80}})
    ),
    "state outside of the tree": lambda forger: forger.subtask("totals")(
        lambda part: part["files"][-1].update(path="../outside/thesis.doc")
    ),
    "state that is larger than any": lambda forger: forger.subtask("totals")(
        lambda part: part["files"][-1].update(size=2**62)
    ),
    "state that is no file of ours": lambda forger: forger.state(b"a song about the sea" * 1000),
    "state whose names are cut short": lambda forger: forger.state(
        forger.sst({b"\0": STAMP.pack(1), b"\0\1\2": b"", META_KEY: _meta(forger)})
    ),
    "state that says it takes gigabytes": lambda forger: forger.state(_bomb(forger)),
    "state that says nothing of itself": lambda forger: forger.state(forger.sst({META_KEY: b""})),
    "state that is declared by nonsense": lambda forger: forger.state(
        forger.sst({META_KEY: STAMP.pack(1) + b"[" * 100_000})
    ),
    "rows in flight that are none": lambda forger: forger.subtask("totals")(
        lambda part: part.update(
            channels=[
                {
                    "source": "sales",
                    "target": "totals",
                    "sender": 0,
                    "receiver": 0,
                    "port": 0,
                    "parts": ["//////////8=", asdict(forger.stored(b"\xff" * 100, "channel"))],
                }
            ]
        )
    ),
    "a driver of escapes": lambda forger: _reached(
        forger, lambda entry: entry.update(driver=ESCAPES) if "driver" in entry else None
    ),
    "a journal that nests without end": lambda forger: forger.write("journal/0000000001.json", "[" * 100_000),
    "numbers of a journal beyond any": lambda forger: _reached(
        forger, lambda entry: entry.update(generation=10**400) if "generation" in entry else None
    ),
    "a repair of numbers beyond any": lambda forger: forger.write(
        "journal/repair.json", json.dumps({"format": "epochcut.repair", "number": 10**400})
    ),
    "a making that is none": lambda forger: forger.write("unfinished/0000000001-1.json", "[" * 100_000),
    "a link for state": lambda forger: forger.linked("shared", forger.outside),
    "a link for the journal": lambda forger: forger.linked("journal", forger.outside),
    "a link for the epochs": lambda forger: forger.linked("epochs", forger.outside),
    "a link for the name": lambda forger: forger.linked("job.json", forger.outside / "thesis.doc"),
    "a link for a manifest": lambda forger: forger.linked(
        forger.newest.relative_to(forger.tree).as_posix(), forger.outside / "thesis.doc"
    ),
    "a pipe for a manifest": lambda forger: _pipe(forger.newest),
    "a pipe for the name": lambda forger: _pipe(forger.tree / "job.json"),
    "a device for the name": lambda forger: forger.linked("job.json", Path("/dev/zero")),
}
"""What somebody may do to a tree, by its name."""


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _meta(forger: Forger) -> bytes:
    """What the operator's own state says of itself."""
    [file] = [
        part["files"][-1] for one in forger.body()["operators"] if one["uid"] == "totals" for part in one["subtasks"]
    ]
    with read_sst(forger.tree / file["path"], forger.outside.parent / "scratch") as content:
        meta = content.meta
    shutil.rmtree(forger.outside.parent / "scratch", ignore_errors=True)
    return STAMP.pack(1) + meta
