"""Credentials that a job is given reach all its processes, and nothing that is written or printed has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.config import conf

import recovery
from snapshot import Collection, Program, Stream, ToDriver
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.host.protocol.messages import UseStorage
from snapshot.operators.row_class import Row

PATIENCE = 60.0
SECRET = "a-secret-nobody-writes-down"
ROWS = pa.schema({"k": pa.int64(), "n": pa.int64()})


def is_known_here(_: Row) -> bool:
    from fsspec.config import conf

    return bool(conf.get("s3", {}) == {"key": "somebody", "secret": SECRET})


def program() -> Program:
    rows = Stream.read(Collection([(n % 10, 1) for n in range(100)], ROWS), uid="rows").filter(is_known_here)
    return rows.key_by("k").sum("n", uid="count").filter(is_known_here).write(ToDriver(), uid="out")


def start(folder: Path, options: Mapping[str, Any]) -> recovery.Run:
    return recovery.run(
        program(),
        checkpoints=folder / "tree",
        local=folder / "local",
        events=folder / "events.jsonl",
        advanced={"trace": folder / "trace.jsonl"},
        every="100ms",
        storage_options=options,
        progress=False,
    )


@pytest.fixture(autouse=True)
def _leave_fsspec_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conf, "s3", {})


def test_every_process_reaches_storage_with_the_options_of_the_job_and_no_file_has_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path, {"s3": {"key": "somebody", "secret": SECRET}})
    run.wait(PATIENCE)
    assert len(list(run.rows("out"))) == 100
    assert conf["s3"]["secret"] == SECRET
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events.jsonl", "trace.jsonl"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err + repr(run.events) + repr(run.status())


def test_options_that_cannot_be_meant_are_refused_and_the_message_has_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ContradictingOptions, match="go by protocol") as error:
        start(tmp_path, {"key": "somebody", "secret": SECRET})
    assert SECRET not in str(error.value)
    with pytest.raises(ContradictingOptions, match="must be plain values") as error:
        start(tmp_path, {"s3": {"secret": SECRET, "session": lambda: SECRET}})
    assert SECRET not in str(error.value)
    assert not (tmp_path / "tree").exists()


def test_a_message_that_has_secrets_does_not_show_them() -> None:
    assert repr(UseStorage({"s3": {"secret": SECRET}})) == "UseStorage()"
