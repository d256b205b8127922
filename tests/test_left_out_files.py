"""Keyed state tells with each durable epoch which files no later one names, and tells it of all files in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.participant import Part
from snapshot.host.partition.epoch_tracker import EpochTracker
from snapshot.host.partition.stage_news import StageCut
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Acknowledgement, FromWorker
from statebackend import fail_points
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.consolidation import Consolidate, Planner, Policy
from statebackend.snapshots.uploads import Durable
from statebackend.states.declarations import ValueState
from statebackend.stores.memory_store import MemoryStore
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_job import KeyedJob
from statebackend.testing.keyed_state import Hasty, Restless

SHOP = Operator("shop", str, {"count": ValueState(int, default=0)}, max_parallelism=8)
KEYS = [str(number) for number in range(24)]


def change(job: KeyedJob, keys: Sequence[str], value: int) -> None:
    [state] = job.states
    for key in keys:
        state.set_key(key)
        state["count"].set(value)


# Each step is an epoch: which keys change before it, what the store does meanwhile, whether it is told as complete.
STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(KEYS), max_size=12, unique=True), st.sampled_from(Fault), st.booleans(), st.booleans()
    ),
    max_size=12,
)


@given(STEPS, st.sampled_from([Hasty(), Restless()]))
@settings(deadline=None, max_examples=40)
def test_no_epoch_names_a_file_that_was_left_out_for_good_and_all_others_are_in_it_or_left_out_in_the_end(
    steps: list[tuple[list[str], Fault, bool, bool]], policy: Policy
) -> None:
    store = FaultyStore(token_hex(8))
    with TemporaryDirectory() as folder:
        job = KeyedJob(SHOP, Path(folder), store)
        try:
            job.start(NO_EPOCH, 1, [Options(backend="heap", policy=policy)], elsewhere=True)
            for number, (keys, fault, hears, completes) in enumerate(steps):
                change(job, keys, number)
                job.cut()
                complete = job.hear(fault) if hears else []  # it raises if an epoch names what was left out
                if complete and completes:
                    job.completed(complete[-1])
            named = job.names_given
            for number in range(40):
                change(job, KEYS[:4], -number)
                job.cut()
                for epoch in job.hear():
                    job.completed(epoch)
                if job.left_out_up_to >= named:
                    return
            raise AssertionError(f"40 epochs later, files after {job.left_out_up_to} may still be named, of {named}")
        finally:
            job.stop()
            store.clear()


def test_while_files_are_rewritten_an_epoch_says_since_when_those_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = iter([[Consolidate(KeyGroupRange.of_all(8))]])
    monkeypatch.setattr(Planner, "changed", lambda _self, _files, _size, _at: next(plans, []))
    with rewriting(tmp_path) as (state, written, go_on):
        first = durable(state, 1)
        assert (first.since, written.wait(60)) == (epoch(1), True)
        assert durable(state, 2).since == epoch(1), "a base may still come that was named before the second cut"
        go_on.set()
        later = [durable(state, number) for number in range(3, 30)]
    assert later[-1].since == later[-1].epoch
    assert [one.since for one in later] == sorted(one.since for one in later)


def test_a_planning_that_fails_is_no_answer_to_the_rewriting_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = iter([[Consolidate(KeyGroupRange.of_all(8))], None])

    def changed(_self: Planner, _files: object, _size: int, _at: Epoch) -> list[Consolidate]:
        plan = next(plans, [])
        if plan is None:
            raise MemoryError("no room for a survey")
        return plan

    monkeypatch.setattr(Planner, "changed", changed)
    with rewriting(tmp_path) as (state, written, go_on):
        durable(state, 1)
        assert written.wait(60)
        assert {durable(state, number).since for number in range(2, 8)} == {epoch(1)}, "the base has not come yet"
        assert "no room for a survey" in (state.statistics().background.trouble or "")
        go_on.set()
        later = [durable(state, number) for number in range(8, 35)]
    assert later[-1].since == later[-1].epoch


@contextmanager
def rewriting(folder: Path) -> Iterator[tuple[KeyedState, Event, Event]]:
    """Give a state, whether a base of it was uploaded, and what lets that be heard."""
    written, go_on = Event(), Event()

    def base() -> None:
        written.set()
        assert go_on.wait(60)

    names = iter(range(1000))
    with (
        fail_points.at(fail_points.BASE_UPLOADED, base),
        KeyedState(SHOP, folder, MemoryStore(token_hex(8)), lambda: f"shared/{next(names)}.sst") as state,
    ):
        yield state, written, go_on


def durable(state: KeyedState, number: int) -> Durable:
    state.set_key("a")
    state["count"].set(number)
    state.cut(epoch(number))
    state.completed(epoch(number - 1))
    while True:
        for news in state.poll(timeout=60):
            assert isinstance(news, Durable)
            return news


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


# --- a partition


COUNT = Uid("count")


class Partly:
    """The epochs of a partition with one keyed operator, whose files the test names."""

    def __init__(self) -> None:
        here = Incarnation(Generation(1), Attempt(1)), Partition(0)
        self.said: list[FromWorker] = []
        self.files = TreeFiles(MemoryStore(token_hex(8)), *here)
        self.tracker = EpochTracker(*here, (COUNT,), None, lambda: self.files.next_number, self.said.append)

    def acknowledged(self, number: int, since: int) -> int:
        """The number from which later epochs name files, as an epoch's acknowledgement says."""
        cut = StageCut(epoch(number), False, (), None, None, {}, 0.0)
        self.tracker.cut(COUNT, cut, {COUNT: frozenset({Part.FILES})})
        files = Durable(epoch(number), FileSet(KeyGroupRange.of_all(8)), epoch(since))
        self.tracker.durable(epoch(number), COUNT, Part.FILES, files)
        said = self.said[-1]
        assert isinstance(said, Acknowledgement)
        return said.named_from


def test_an_acknowledgement_says_which_number_the_next_file_had_when_the_epoch_was_first_heard_of() -> None:
    part = Partly()
    part.tracker.triggered(epoch(1))
    for _ in range(5):
        part.files.state_name()
    part.tracker.triggered(epoch(2))
    part.files.put_channel(b"in flight")
    assert part.acknowledged(1, since=1) == 1
    assert part.acknowledged(2, since=2) == 6
    assert part.acknowledged(3, since=2) == 6, "a rewriting has begun after the second cut"
    assert part.acknowledged(4, since=4) == 7


def test_an_epoch_that_was_heard_of_after_a_later_one_says_nothing() -> None:
    part = Partly()
    part.files.state_name()
    part.tracker.triggered(epoch(2))
    assert part.acknowledged(1, since=1) == 0
    assert part.acknowledged(2, since=2) == 2
