"""When it is said that no epoch is completed any more, and when a job ends for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from recovery.driver.report.overdue import Late, Overdue
from recovery.driver.report.reporting import Reporting
from recovery.driver.settings.options import Options
from recovery.events import AnyEvent, EpochAbandoned, EpochTriggered, PartitionLost
from recovery.schemes.acks import Acks
from snapshot.ids import Member
from statebackend.ids import Epoch, Generation, Partition


def overdue(give_up_after: float | None = 100.0) -> Overdue:
    watch = Overdue(every=1.0, report_after=10.0, give_up_after=give_up_after)
    watch.triggered(0.0)
    return watch


def test_nothing_is_said_before_the_first_epoch_was_begun() -> None:
    assert Overdue(1.0, 10.0, 100.0).look(1e9) is None


def test_epochs_that_do_not_come_are_reported_and_again_when_the_time_has_doubled() -> None:
    watch = overdue()
    assert watch.look(10.9) is None
    assert watch.look(11.0) == Late(11.0, 0, "", None)
    assert watch.look(20.9) is None
    assert watch.look(21.0) == Late(21.0, 0, "", None)


def test_a_complete_epoch_begins_the_time_anew() -> None:
    watch = overdue()
    watch.abandoned("no space")
    watch.completed(99.0)
    assert watch.look(109.0) is None
    assert watch.look(1000.0) == Late(901.0, 0, "", None)


def test_a_job_is_given_up_when_epochs_were_tried_for_so_long_and_all_abandoned() -> None:
    watch = overdue()
    for now in range(1, 101):
        watch.abandoned("no space")
        late = watch.look(float(now))
        assert late is None or not late.gives_up
    late = watch.look(101.0)
    assert late == Late(101.0, 100, "no space", 0.0)
    assert late.gives_up


def test_a_report_says_when_the_job_will_end() -> None:
    watch = overdue()
    watch.abandoned("no space")
    assert watch.look(11.0) == Late(11.0, 1, "no space", 90.0)


def test_a_job_is_not_given_up_while_no_epoch_was_abandoned_or_no_attempt_runs() -> None:
    slow, recovering, patient = overdue(), overdue(), overdue(give_up_after=None)
    assert not any(late.gives_up for late in map(slow.look, (200.0, 500.0)) if late)
    recovering.abandoned("no space")
    recovering.attempt_over()
    assert recovering.look(200.0) == Late(200.0, 1, "no space", None)
    recovering.triggered(300.0)
    assert recovering.look(400.0) is not None
    late = recovering.look(401.0)
    assert late is not None
    assert late.gives_up
    patient.abandoned("no space")
    assert patient.look(1e6) == Late(1e6, 1, "no space", None)


def test_a_job_is_not_given_up_while_a_partition_of_it_restarts_alone() -> None:
    """No epoch is begun before it is back, so none fails."""
    clock, ignored, epoch = [0.0], lambda _=None: None, Epoch(Generation(1), 1)
    settings: Any = SimpleNamespace(job="restarting", parallelism=2, scheme=Acks(), options=Options())
    aside: Any = SimpleNamespace(add=ignored, make_room=ignored)
    reporting = Reporting(settings, aside, aside, lambda: clock[0])

    def gives_up_after(*events: AnyEvent) -> bool:
        for event in events:
            reporting.event(event)
        clock[0] += 1e6
        late = reporting.overdue.look(clock[0])
        return late is not None and late.gives_up

    triggered = EpochTriggered(at=0.0, epoch=epoch, mode="aligned", savepoint=False)
    abandoned = EpochAbandoned(at=0.0, epoch=epoch, reason="timeout", detail="")
    lost = PartitionLost(at=0.0, member=Member(Partition(1)), reason="it is lost")
    assert not gives_up_after(triggered, abandoned, lost)
    assert gives_up_after(triggered)
