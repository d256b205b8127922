"""Prepared output that a dead job left: committed or aborted without starting the job."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recovery.command.sinks import listed_in_words
from recovery.driver.settings.program_fit import ProgramDoesNotFit, compare
from recovery.offline import fail_points
from recovery.offline.epoch_choice import choose
from recovery.offline.stopped_job import take_over
from recovery.savepoints.sinks import NotCommitted, abort_output, commit_output, list_output
from snapshot import Program, Stream, ToDriver, ToFiles
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.journal.entries import Committed
from snapshot.program.problems import InvalidProgram
from snapshot.program.sink import CommitAnswer, SinkContext, SinkWriter
from snapshot.tree.manifest import CommitPayload
from statebackend.fail_points import at
from statebackend.ids import Incarnation, Uid
from tests.jobs.running_job import RunningJob
from tests.program_parts import Nowhere
from tests.stopped_trees import OUT, ROWS, Stopped, add_output, kill_one, stop_one


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def rows(stopped: Stopped) -> set[object]:
    return {row["row"] for row in RunningJob(stopped.settings).output()} - {-1}


# --- a real sink


@pytest.mark.timeout(180)
def test_what_a_killed_job_left_is_listed_and_committed_and_the_job_goes_on_exactly(tmp_path: Path) -> None:
    stopped = kill_one(tmp_path)
    listed = list_output(stopped.tree)
    assert listed.epoch == stopped.tree.record().epoch
    newest = {one.transaction for one in listed.output if one.sealed_in == listed.epoch}
    assert newest
    assert not any(one.committed for one in listed.output)
    before = rows(stopped)
    dry = commit_output(stopped.tree, stopped.program(), dry_run=True)
    assert (dry.output, dry.done) == (listed.output, False)
    assert rows(stopped) == before
    [place] = {place for one in listed.output for place in one.places}
    assert all(line.endswith(f", for {place}") for line in listed_in_words(listed).splitlines()[1:])
    moved = with_sink(stopped, ToFiles(str(tmp_path / "moved")))
    with pytest.raises(NotCommitted, match=rf"are for {place}, .*accept_places=\['{place}'\]"):
        commit_output(stopped.tree, moved)
    assert rows(stopped) == before
    done = commit_output(stopped.tree, moved, accept_places=[place])
    assert [one.transaction for one in done.committed] == [one.transaction for one in listed.output]
    assert not newest & {one.transaction for one in done.committed if one.before}
    assert rows(stopped) > before
    assert not stopped.tree.record().awaits_commit
    assert all(one.committed for one in list_output(stopped.tree).output)
    assert not commit_output(stopped.tree, stopped.program()).done
    assert stopped.finish().exact


@pytest.mark.timeout(180)
def test_what_is_given_up_is_lost_and_nothing_else_is(tmp_path: Path) -> None:
    stopped = kill_one(tmp_path)
    before = rows(stopped)
    kept = abort_output(stopped.tree, stopped.program())
    assert kept.made is None
    assert {one.transaction for one in kept.kept} == {one.transaction for one in list_output(stopped.tree).output}
    done = abort_output(stopped.tree, stopped.program(), accept_loss=True)
    assert done.given_up == kept.kept
    assert stopped.tree.record().epoch == done.made
    assert not list_output(stopped.tree).output
    assert not [record for record in stopped.tree.state.usable if record.awaits_commit]
    stopped.finish()
    lost = set(range(ROWS)) - rows(stopped)
    assert lost, "the output that was given up"
    assert not lost & before


# --- sinks that answer as they are told


@dataclass(frozen=True)
class Answering(Nowhere):
    """A target that gives these answers, one after the other, the last one for ever."""

    answers: list[CommitAnswer | Exception] = field(default_factory=list)
    recovered: list[tuple[Incarnation, frozenset[TransactionId]]] = field(default_factory=list)

    def open(self, context: SinkContext) -> SinkWriter:
        return _Writer(self)  # type: ignore[return-value]  # it only commits

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        self.recovered.append((older_than, frozenset(named)))


class _Writer:
    def __init__(self, sink: Answering) -> None:
        self._sink = sink

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        answers = self._sink.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def with_sink(stopped: Stopped, sink: Nowhere | ToDriver | ToFiles, uid: str = OUT) -> Program:
    (output,) = stopped.program().outputs
    return Stream(output.input).write(sink, uid=uid)


COMMITTED = CommitAnswer(CommitOutcome.COMMITTED)
LATER = CommitAnswer(CommitOutcome.RETRY_LATER, "the table is locked")


def test_a_target_that_puts_it_off_or_says_nothing_is_asked_again(stopped: Stopped) -> None:
    add_output(stopped)
    sink = Answering(answers=[LATER, OSError("connection reset"), CommitAnswer(CommitOutcome.ALREADY_COMMITTED)])
    slept: list[float] = []
    done = commit_output(stopped.tree, with_sink(stopped, sink), sleep=slept.append)
    assert [one.before for one in done.committed] == [True]
    assert slept == [0.05, 0.1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CommitAnswer(CommitOutcome.FAILED, "no such table"), "is refused for good: no such table"),
        (LATER, r"was put off for \d+ s: the table is locked; try again later"),
        (OSError("connection reset"), "OSError: connection reset; try again later"),
    ],
)
def test_what_is_not_committed_stays_to_be_committed(
    stopped: Stopped, answer: CommitAnswer | Exception, said: str
) -> None:
    epoch = add_output(stopped)
    with pytest.raises(NotCommitted, match=said):
        commit_output(stopped.tree, with_sink(stopped, Answering(answers=[answer])), sleep=lambda _: None)
    assert stopped.tree.record().epoch == epoch
    assert stopped.tree.record().awaits_commit
    commit_output(stopped.tree, with_sink(stopped, Answering(answers=[COMMITTED])))
    assert not stopped.tree.record().awaits_commit


def test_an_abort_names_what_the_newest_epoch_carries_unless_its_loss_is_accepted(stopped: Stopped) -> None:
    add_output(stopped)
    (pending,) = list_output(stopped.tree).output
    sink = Answering()
    program = with_sink(stopped, sink)
    dry = abort_output(stopped.tree, program, accept_loss=True, dry_run=True)
    assert [one.transaction for one in dry.given_up] == [pending.transaction]
    assert sink.recovered == []
    abort_output(stopped.tree, program)
    abort_output(stopped.tree, program, accept_loss=True)
    first, second = sink.recovered
    assert list(first[1]) == [pending.transaction]
    assert not second[1]
    assert first[0].generation < second[0].generation == stopped.tree.state.generation


@pytest.mark.parametrize("accept_loss", [True, False])
def test_an_abort_that_was_interrupted_has_given_the_output_up_for_good_when_it_is_done_again(
    stopped: Stopped, accept_loss: bool
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    given_up = add_output(stopped)
    sink = Answering()
    program = with_sink(stopped, sink)
    with at(fail_points.NEW_EPOCH_ENTERED, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        abort_output(stopped.tree, program, accept_loss=True)
    assert [record.epoch for record in stopped.tree.state.usable if record.awaits_commit] == [given_up]
    done = abort_output(stopped.tree, program, accept_loss=accept_loss)
    assert (done.given_up, done.kept) == ((), ())
    assert not [record for record in stopped.tree.state.usable if record.awaits_commit]
    assert [named for _, named in sink.recovered] == [frozenset()]


def test_what_a_sink_holds_back_is_not_committed_and_stays_with_the_job(stopped: Stopped) -> None:
    epoch = add_output(stopped, held=True)
    sink = Answering(answers=[RuntimeError("nobody is to ask")])
    [one] = list_output(stopped.tree).output
    assert (one.held, one.committed) == (True, False)
    assert "but for what its sink holds back" in listed_in_words(list_output(stopped.tree))
    assert not commit_output(stopped.tree, with_sink(stopped, sink)).done
    job = take_over(stopped.tree, "test")
    job.propose(Committed(job.generation, epoch))
    chosen = choose(stopped.tree)
    assert not chosen.found.record.awaits_commit
    kept = [one for operator in chosen.manifest.operators for part in operator.subtasks for one in part.committables]
    assert [one.payload.held for one in kept] == [True]
    other = with_sink(stopped, sink, "other").plan(stopped.tree.birth.max_parallelism)
    assert compare(other, chosen.manifest, unsettled=False).lost == (f"{OUT}, with output that is not committed yet",)
    done = abort_output(stopped.tree, with_sink(stopped, sink), accept_loss=True)
    assert [one.held for one in done.given_up] == [True]
    assert not list_output(stopped.tree).output


def test_a_program_without_the_sink_and_a_target_that_is_away_are_refused(stopped: Stopped) -> None:
    add_output(stopped)
    number = stopped.tree.state.number
    with pytest.raises(ProgramDoesNotFit, match=r"has output of out, and the program has no such sink, but other"):
        commit_output(stopped.tree, with_sink(stopped, Nowhere(), "other"))
    with pytest.raises(ProgramDoesNotFit):
        abort_output(stopped.tree, with_sink(stopped, Nowhere(), "other"), accept_loss=True)
    with pytest.raises(InvalidProgram, match="nobody answers"):
        commit_output(stopped.tree, with_sink(stopped, Nowhere(amiss=["nobody answers"])))
    assert stopped.tree.state.number == number
