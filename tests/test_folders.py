"""Folders in which files appear as a whole: what a store may do in the middle, and what is said of it then."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from snapshot import committed_files
from snapshot.connectors.files.folder import open_folder
from snapshot.connectors.files.sink import ToFiles
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.testing.sinks import DONE, SCHEMA, SinkBench
from tests.test_file_sink import trial


@pytest.fixture
def uri() -> str:
    return f"memory://{token_hex(8)}"


@pytest.mark.parametrize("left", [b"", b'{"files": ["part-'])
def test_an_entry_that_a_crash_left_half_written_is_no_commit_and_the_next_commit_completes_it(
    left: bytes, uri: str
) -> None:
    bench = SinkBench(trial(uri, roll_bytes=1, listed=True))
    transaction, payload, rows = bench.prepared()
    bench.settle(transaction, payload)
    files = MemoryFileSystem()
    [entry] = files.ls(f"{uri}/_epochcut/committed", detail=False)
    files.pipe_file(entry, left)
    bench.expect([], "an entry that is not whole names nothing")
    bench.recover(2)
    assert bench.settle(transaction, payload, 2).outcome is CommitOutcome.COMMITTED
    bench.expect(rows, "all the files of a transaction are named together")
    assert len(committed_files(uri)) == 2


def test_a_commit_names_no_file_that_is_gone_or_cut_short(uri: str) -> None:
    bench = SinkBench(trial(uri, roll_bytes=1, listed=True))
    transaction, payload, _ = bench.prepared()
    files = MemoryFileSystem()
    first, second = files.ls(f"{uri}/_epochcut/data", detail=False)
    whole = files.cat_file(first)
    files.rm_file(first)
    files.pipe_file(second, files.cat_file(second)[:-1])
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert Path(first).name in answer.reason
    assert Path(second).name in answer.reason
    files.pipe_file(first, whole)
    assert bench.writer().commit(transaction, payload).outcome is CommitOutcome.FAILED
    assert committed_files(uri) == []


def test_nobody_has_committed_anything_where_nothing_is(uri: str) -> None:
    assert committed_files(uri) == []


@pytest.mark.parametrize("was_listed", [False, True])
def test_a_commit_finds_its_files_where_they_were_written_if_that_place_is_accepted(
    was_listed: bool, tmp_path: Path
) -> None:
    before = SinkBench(trial(str(tmp_path), listed=was_listed))
    transaction, payload, rows = before.prepared()
    after = SinkBench(trial(str(tmp_path / "elsewhere"), listed=not was_listed))
    after.job = before.job
    refused = after.writer(2).commit(transaction, payload)
    assert refused.outcome is CommitOutcome.FAILED
    assert str(tmp_path) in refused.reason
    after.accept_places = frozenset({f"file://{tmp_path}"})
    assert after.writer(2).commit(transaction, payload).outcome in DONE
    before.expect(rows, "they are visible where they were written")


def test_a_rename_that_does_nothing_and_says_nothing_is_tried_again_later(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(uri))
    transaction, payload, rows = bench.prepared()
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "mv", lambda *_: None)
        answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "could not be renamed" in answer.reason
    bench.settle(transaction, payload)
    bench.expect(rows, "the next try commits")


def test_a_rename_whose_answer_was_lost_is_known_by_its_file(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SinkBench(trial(uri))
    transaction, payload, rows = bench.prepared()
    rename = MemoryFileSystem.mv

    def hang_up(files: MemoryFileSystem, old: str, new: str) -> None:
        rename(files, old, new)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "mv", hang_up)
        assert bench.writer().commit(transaction, payload).outcome is CommitOutcome.RETRY_LATER
    assert bench.writer().commit(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED
    bench.expect(rows, "they are there once")


@pytest.mark.parametrize("listed", [False, True])
def test_a_store_that_cannot_be_asked_has_neither_committed_nor_lost_anything(
    uri: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(uri, listed=listed))
    transaction, payload, rows = bench.prepared()

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("nobody listens")

    with monkeypatch.context() as patch:
        for method in ("info", "cat_file", "ls"):
            patch.setattr(MemoryFileSystem, method, refuse)
        answer = bench.writer().commit(transaction, payload)
        [problem] = ToFiles(uri, listed=listed).examine(bench.job, bench.uid, SCHEMA)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "nobody listens" in answer.reason
    assert "nobody listens" in problem
    bench.settle(transaction, payload)
    bench.expect(rows, "the next try commits")


def test_a_folder_that_was_never_written_to_has_no_leftovers(uri: str) -> None:
    for listed in (False, True):
        assert open_folder(uri, listed).leftovers(lambda name: True) == []
        assert open_folder(uri, listed).problems() == []


@pytest.mark.parametrize(("target", "extra"), [("s3://bucket/x", "s3"), ("webhdfs://somebody@host:9870/x", "hdfs")])
def test_a_library_that_is_missing_is_named_with_the_command_that_brings_it(
    target: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise ImportError("it is not installed")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    [problem] = ToFiles(target).check(SCHEMA)
    assert f"pip install 'epochcut[{extra}]'" in problem
