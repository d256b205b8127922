"""A process that stands by, on a host where nothing of the job is: it gets epochs ready, and hands over what it has."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from snapshot.host.partition import opening
from snapshot.host.partition.opening import OpenedState
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.process import standby as following
from snapshot.host.process.standby import Follower
from snapshot.host.protocol.messages import Follow, Followed, StandBy
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.ids import JobId
from snapshot.operators.operator import KeyedOperator
from snapshot.program.pickling import dumps
from snapshot.program.plan import Plan
from statebackend.files import FileSet
from statebackend.ids import Epoch, Generation, Uid
from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.snapshots.local_files import LINKS
from statebackend.snapshots.uploads import NotDurable
from statebackend.stores.local_store import LocalStore
from tests.jobs.job import Scale, sink_of
from tests.jobs.running import RUNNING

UID = Uid("totals")
PATIENCE = 60.0
SOON = 20.0
USUAL, IMPATIENT = HostOptions(), HostOptions(store_timeout=200)
BOTH = pytest.mark.parametrize("how", [Following.FILES, Following.OPEN])


def program(folder: Path) -> Plan:
    scale = Scale(100, 100.0, str(folder / "gate"))
    return RUNNING.program(scale, sink_of("jsonl", str(folder / "output"))).plan(8)


def operator_of(plan: Plan) -> KeyedOperator:
    return next(iter(plan.keyed.values()))


class Standby:
    """A follower, and a partition elsewhere whose epochs it is told of."""

    def __init__(self, folder: Path, how: Following, options: HostOptions) -> None:
        self.folder = folder
        plan = program(folder)
        operator = operator_of(plan)
        self.store = LocalStore(folder / "tree")
        self._paths = count()
        declared = Operator(UID, operator.inputs[0].key_type, operator.states, plan.max_parallelism)
        self.writer = KeyedState(declared, folder / "elsewhere", self.store, self.name)
        (self.table,) = operator.states
        self.cache = StateCache()
        self.answers: SimpleQueue[Followed] = SimpleQueue()
        stand_by = StandBy(JobId("job"), how, dumps(plan), 1, options, str(folder / "tree"), str(folder / "here"))
        self.follower = Follower(stand_by, self.cache, lambda: None, self.answers.put)
        self._number = 0

    def name(self) -> str:
        return f"shared/{next(self._paths)}.sst"

    def update(self, state: KeyedState) -> int:
        """Add one to each of some keys; what the first has come to."""
        keys = state.keys(pa.array(range(100), pa.int64()))
        table = state[self.table]
        slots = table.update(keys, {"v": pa.array([1] * 100, pa.int64())})
        return int(table.results(slots).column("n")[0].as_py())

    def cut(self) -> tuple[Epoch, FileSet]:
        self._number += 1
        epoch = Epoch(Generation(1), self._number)
        self.update(self.writer)
        files = self.writer.snapshot(epoch)
        self.writer.completed(epoch)
        return epoch, files

    def told(self, epoch: Epoch, files: FileSet) -> Followed:
        self.follower.follow(Follow(epoch, {UID: (files,)}))
        return self.answers.get(timeout=PATIENCE)


@contextmanager
def standby(folder: Path, how: Following, options: HostOptions = USUAL) -> Iterator[Standby]:
    made = Standby(folder, how, options)
    try:
        yield made
    finally:
        made.follower.close()
        made.follower.wait()
        made.cache.close()
        made.writer.close()


@BOTH
def test_each_epoch_costs_what_is_new_in_it(tmp_path: Path, how: Following) -> None:
    with standby(tmp_path, how) as one:
        epoch, files = one.cut()
        first = one.told(epoch, files)
        assert (first.heard, first.has, first.problem) == (epoch, epoch, "")
        assert first.downloaded_bytes == sum(file.size for file in files.files)
        assert one.told(epoch, files).downloaded_bytes == first.downloaded_bytes
        before = {file.path for file in files.files}
        epoch, files = one.cut()
        new = sum(file.size for file in files.files if file.path not in before)
        assert one.told(epoch, files).downloaded_bytes == first.downloaded_bytes + new


@BOTH
def test_a_file_that_is_gone_is_no_problem_and_a_damaged_one_is_until_the_next_epoch(
    tmp_path: Path, how: Following
) -> None:
    with standby(tmp_path, how) as one:
        first, files = one.cut()
        one.told(first, files)
        epoch, files = one.cut()
        path = files.files[-1].path
        data = one.store.read(path)
        one.store.delete(path)
        assert (said := one.told(epoch, files)).has == first
        assert said.problem == ""
        one.store.write(path, data[:-1] + b"?")
        said = one.told(epoch, files)
        assert said.has == (first if how is Following.FILES else None)
        assert "is damaged" in said.problem
        one.store.delete(path)
        one.store.write(path, data)
        epoch, files = one.cut()
        assert one.told(epoch, files).has == epoch


def test_a_state_that_is_opened_anew_is_not_kept_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standby(tmp_path, Following.OPEN) as one:
        one.told(*one.cut())
        epoch, files = one.cut()
        path = files.files[-1].path
        data = one.store.read(path)
        one.store.delete(path)
        with monkeypatch.context() as patched:
            patched.setattr(KeyedState, "catch_up", lambda *_, **__: False)
            said = one.told(epoch, files)
        assert (said.has, said.problem) == (None, "")
        one.store.write(path, data)
        said = one.told(epoch, files)
        assert (said.has, said.problem) == (epoch, "")


def test_an_open_state_is_at_hand_for_a_role_as_the_epoch_has_it_and_writes_on(tmp_path: Path) -> None:
    with standby(tmp_path, Following.OPEN) as one:
        one.told(*one.cut())
        epoch, files = one.cut()  # which it has not heard of
        one.follower.close()
        state = one.cache.take(UID, files.range, epoch, files, one.name)
        assert state is not None
        with state:
            assert one.update(state) == 3
            cut = state.snapshot(Epoch(Generation(2), 9))
        assert {file.path for file in cut.files} - {file.path for file in files.files}


def test_whoever_wants_a_state_that_is_on_its_way_waits_for_it(tmp_path: Path) -> None:
    with standby(tmp_path, Following.OPEN) as one:
        epoch, files = one.cut()
        one.follower.follow(Follow(epoch, {UID: (files,)}))
        one.follower.close()  # wherever it is
        state = one.cache.take(UID, files.range, epoch, files, one.name)
        if state is not None:
            with state:
                assert one.update(state) == 2


def test_what_a_role_waits_for_is_done_with_the_priority_of_whoever_has_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities: SimpleQueue[int] = SimpleQueue()
    closed = threading.Event()

    def from_files(*given: Any) -> OpenedState:
        priorities.put(os.getpriority(os.PRIO_PROCESS, 0))
        assert closed.wait(PATIENCE)
        priorities.put(os.getpriority(os.PRIO_PROCESS, 0))
        return opening.from_files(*given)

    monkeypatch.setattr(following, "from_files", from_files)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with standby(tmp_path, Following.OPEN) as one:
        epoch, files = one.cut()
        one.follower.follow(Follow(epoch, {UID: (files,)}))
        assert priorities.get(timeout=PATIENCE) > usual
        one.follower.close()
        closed.set()
        one.follower.wait()
        assert priorities.get(timeout=PATIENCE) == usual or not may_hurry()


@contextmanager
def hanging(call: str) -> Iterator[threading.Event]:
    """Calls of this name hang in every local store until the end of this; the event says that one does."""
    usual, hangs, over = getattr(LocalStore, call), threading.Event(), threading.Event()

    def hang(store: LocalStore, *given: Any) -> Any:
        hangs.set()
        assert over.wait(PATIENCE)
        return usual(store, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, call, hang)
        try:
            yield hangs
        finally:
            over.set()


def test_whoever_waits_for_a_state_that_a_store_holds_up_is_told_that_there_is_none(tmp_path: Path) -> None:
    taken: SimpleQueue[KeyedState | None] = SimpleQueue()
    with standby(tmp_path, Following.OPEN, IMPATIENT) as one:
        epoch, files = one.cut()
        with hanging("download") as hangs:
            one.follower.follow(Follow(epoch, {UID: (files,)}))
            assert hangs.wait(PATIENCE)
            one.follower.close()
            wanted = UID, files.range, epoch, files, one.name
            threading.Thread(target=lambda: taken.put(one.cache.take(*wanted)), daemon=True).start()
            assert taken.get(timeout=SOON) is None
            one.follower.wait()


def test_an_upload_that_hangs_is_given_up_also_of_a_state_that_was_followed(tmp_path: Path) -> None:
    woken = threading.Event()
    with standby(tmp_path, Following.OPEN, IMPATIENT) as one:
        one.follower._wake = woken.set
        epoch, files = one.cut()
        one.told(epoch, files)
        one.follower.close()
        state = one.cache.take(UID, files.range, epoch, files, one.name)
        assert state is not None
        with state, hanging("upload"):
            one.update(state)
            state.cut(Epoch(Generation(2), 9))
            while not (news := state.poll()):
                assert woken.wait(SOON)
                woken.clear()
    assert isinstance(news[0], NotDurable)
    assert "there was no answer in 0.2" in news[0].reason


def may_hurry() -> bool:
    """Whether this process may give a thread back the priority that it gave up."""
    allowed = []

    def give_up_and_take_back() -> None:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            allowed.append(True)

    thread = threading.Thread(target=give_up_and_take_back)
    thread.start()
    thread.join()
    return bool(allowed)


def test_a_state_that_comes_when_nobody_waits_any_more_is_closed(tmp_path: Path) -> None:
    with standby(tmp_path, Following.OPEN) as one:
        epoch, files = one.cut()
        one.told(epoch, files)
        one.follower.close()
        state = one.cache.take(UID, files.range, epoch, files, one.name)
        assert state is not None
        one.cache.expect(UID, files.range)
        one.cache.discard_all()
        one.cache.arrived(UID, files.range, state)
        one.cache.close()
        with pytest.raises(ValueError, match="was closed"):
            state.poll()


def test_files_are_kept_until_the_role_is_opened_and_not_longer(tmp_path: Path) -> None:
    with standby(tmp_path, Following.FILES) as one:
        _, files = one.cut()
        one.told(Epoch(Generation(1), 1), files)
        links = tmp_path / "here" / UID / "0" / LINKS
        one.follower.close()
        assert len(list(links.iterdir())) == len(files.files)
        one.follower.wait()
        assert list(links.iterdir()) == []


def test_a_program_that_cannot_be_loaded_here_is_a_problem(tmp_path: Path) -> None:
    answers: SimpleQueue[Followed] = SimpleQueue()
    stand_by = StandBy(JobId("job"), Following.FILES, b"?", 1, HostOptions(), str(tmp_path), str(tmp_path / "here"))
    follower = Follower(stand_by, StateCache(), lambda: None, answers.put)
    epoch = Epoch(Generation(1), 1)
    follower.follow(Follow(epoch, {}))
    said = answers.get(timeout=PATIENCE)
    assert (said.heard, said.has) == (epoch, None)
    assert said.problem
    follower.close()
    follower.wait()
