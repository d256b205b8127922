"""Starts that are refused: what they say, and that they leave a place as they found it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.driver.tree import address as reach
from recovery.driver.tree.address import Made, Reach
from recovery.offline import stopped_job
from snapshot import Files, Stream, ToDriver, ToSQLite
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.host.net.listener import PortTaken
from snapshot.host.protocol.messages import Address
from snapshot.ids import JobId
from snapshot.program.problems import InvalidProgram
from snapshot.program.program import Program
from snapshot.program.source import SourceVanished
from statebackend.durations import NotADuration
from statebackend.stores.local_store import LocalStore
from statebackend.stores.store import BlobInfo, StoreUnavailable
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_runs import completed, journal, program, start


@pytest.fixture
def busy() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def reading(uri: object) -> Program:
    return Stream.read(Files(str(uri), "text"), uid="lines").write(ToDriver(), uid="out")


def without_a_table(folder: Path) -> Program:
    (folder / "no database").write_text("but a text")
    lines = Stream.read(Files(str(folder), "text"), uid="lines")
    return lines.write(ToSQLite(str(folder / "no database"), "lines"), uid="out")


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Path], dict[str, Any]]]] = {
    "every": (NotADuration, "every: 1 is no duration: .* say '1s' or '1ms'", lambda _: {"every": 1}),
    "parallelism": (ContradictingOptions, "max_parallelism of at least 129", lambda _: {"parallelism": 129}),
    "a late option": (NotADuration, "stop_timeout: 5 is no duration", lambda _: {"stop_timeout": 5}),
    "a target": (InvalidProgram, "out: ", lambda folder: {"of": without_a_table(folder)}),
    "a source": (SourceVanished, "there is no file at", lambda folder: {"of": reading(folder / "nothing")}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_leaves_neither_a_tree_nor_files_on_the_host(tmp_path: Path, what: str) -> None:
    kind, complaint, options_in = REFUSED[what]
    options = options_in(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(kind, match=complaint):
        start(tmp_path, ScriptedCluster(), **options).wait(PATIENCE)
    assert everything(tmp_path) == before


def test_a_driver_that_finds_no_port_leaves_nothing(tmp_path: Path, busy: int) -> None:
    with pytest.raises(PortTaken, match=rf"port {busy} .* \(option ports\)"):
        start(tmp_path, ScriptedCluster(), ports=(busy,))
    assert everything(tmp_path) == {}


def test_a_place_that_cannot_hold_the_jobs_tree_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "tree"
    with pytest.raises(StoreUnavailable, match=rf"option checkpoints says \(checkpoints='{place}'\): a folder that"):
        recovery.run(program(), checkpoints=place, launcher=ScriptedCluster(), progress=False)


def test_so_is_one_whose_journal_cannot_be_read_for_as_long_as_the_start_is_patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> tuple[BlobInfo, ...]:
        raise StoreUnavailable("no answer")

    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
    monkeypatch.setattr(LocalStore, "list", fails)
    run = start(tmp_path, ScriptedCluster(), store_patience="100ms")
    with pytest.raises(
        StoreUnavailable, match=rf"no answer; .* option checkpoints says \(checkpoints='[^']*{tmp_path}/tree'"
    ):
        run.wait(PATIENCE)


def test_a_refused_start_can_be_put_right_at_the_same_place(tmp_path: Path) -> None:
    with pytest.raises(ContradictingOptions):
        start(tmp_path, ScriptedCluster(), parallelism=129)
    run = start(tmp_path, cluster := ScriptedCluster(), parallelism=2, max_parallelism=256)
    completed(cluster)
    run.stop()
    with pytest.raises(recovery.WrongJob, match=r"max_parallelism is 128, .* born with 256"):
        start(tmp_path, ScriptedCluster(), max_parallelism=128)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"parallelism": 129}, recovery.WrongJob),
        ({"job": "others"}, recovery.WrongJob),
        ({"of": program(count="total")}, recovery.ProgramDoesNotFit),
    ],
)
def test_what_was_there_before_a_refused_start_stays(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception]
) -> None:
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
    before = everything(tmp_path)
    with pytest.raises(kind):
        start(tmp_path, ScriptedCluster(), **options).wait(PATIENCE)
    after = everything(tmp_path)
    assert before.keys() <= after.keys()
    assert (tmp_path / "local" / "events.jsonl").read_bytes().startswith(before[str(tmp_path / "local/events.jsonl")])


def test_a_refused_start_of_a_job_that_is_there_leaves_no_files_of_its_own_on_the_host(tmp_path: Path) -> None:
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
    refused = recovery.run(
        program(count="total"),
        checkpoints=tmp_path / "tree",
        launcher=ScriptedCluster(),
        local=tmp_path / "another",
        parallelism=2,
        progress=False,
    )
    with pytest.raises(recovery.ProgramDoesNotFit):
        refused.wait(PATIENCE)
    assert not (tmp_path / "another").exists()
    assert [type(event).__name__ for event in refused.events][-1] == "GaveUp"


def test_only_what_was_not_there_is_taken_back_and_no_file_of_another_driver(tmp_path: Path) -> None:
    kept, new, shared = tmp_path / "kept", tmp_path / "new", tmp_path / "shared"
    kept.mkdir()
    made = Made()
    made.expect(kept, kept / "events", new, new / "events", shared, shared / "events")
    for folder in (kept, new, shared):
        folder.mkdir(exist_ok=True)
        (folder / "events").touch()
    (shared / reach.FILE).touch()
    made.take_back()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "kept", "shared", f"shared/{reach.FILE}", "shared/events",
    ]  # fmt: skip


# --- a job that runs already


def test_a_job_is_not_started_twice_on_a_host_however_often_that_is_tried(tmp_path: Path) -> None:
    with start(tmp_path, first := ScriptedCluster()) as run:
        completed(first)
        for _ in range(3):
            with pytest.raises(
                recovery.JobRuns,
                match=rf"driver process {os.getpid()}\); stop it first: recovery stop .*; or start with take_over=True",
            ):
                start(tmp_path, ScriptedCluster())
        assert not run.status().state.over
        assert journal(tmp_path).generation == 1
    assert run.status().state is recovery.RunState.STOPPED
    with start(tmp_path, again := ScriptedCluster()):
        completed(again)


def test_a_driver_that_is_gone_or_is_another_jobs_hinders_no_start(tmp_path: Path, busy: int) -> None:
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
    gone = Address("127.0.0.1", 1)
    for job, address, pid in (
        (run.job, gone, 2**22 + 1),
        (run.job, gone, 1),
        (JobId("another"), Address("127.0.0.1", busy), os.getppid()),
    ):
        reach.leave(tmp_path / "local", Reach(job, str(tmp_path / "tree"), address, pid, b"s" * 32))
        run = start(tmp_path, cluster := ScriptedCluster())
        completed(cluster)
        run.stop()


def test_a_driver_that_does_not_answer_is_named_unless_it_had_the_number_of_this_process(
    tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_job, "_PATIENCE", 0.2)
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
    silent = Address("127.0.0.1", busy)
    reach.leave(tmp_path / "local", Reach(run.job, str(tmp_path / "tree"), silent, os.getppid(), b"s" * 32))
    with pytest.raises(recovery.JobRuns, match=rf"\(process {os.getppid()}\) is there and does not .*take_over=True"):
        start(tmp_path, ScriptedCluster())
    reach.leave(tmp_path / "local", Reach(run.job, str(tmp_path / "tree"), silent, os.getpid(), b"s" * 32))
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster)
    run.stop()
