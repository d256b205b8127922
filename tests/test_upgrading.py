"""What a changed program means for the state of a job, and a savepoint in which all values are as it declares them."""

from __future__ import annotations

from pathlib import Path

import pytest

import recovery
from recovery.driver.settings.program_fit import ProgramDoesNotFit
from recovery.offline.reading import EpochReading
from recovery.savepoints.upgrading import Fit, UpgradePlan, migrate, plan_upgrade
from recovery.savepoints.verifying import verify, what_to_verify
from statebackend.states.schema import Schema
from tests.jobs.running_job import RunningJob
from tests.stopped_trees import PATIENCE, Stopped, add_output, stop_one
from tests.upgraded_sequences import InDecimal, NotMigrated, WithoutTotal, program, program_elsewhere


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def fits(plan: UpgradePlan) -> dict[str, Fit]:
    return {f"{one.uid}.{one.state}": one.fit for one in plan.states}


def stored(stopped: Stopped, scratch: Path) -> Schema:
    schema = EpochReading(stopped.tree, stopped.tree.find(), scratch).operator("numbers").schema
    assert schema is not None
    return schema


@pytest.mark.timeout(180)
def test_all_values_are_migrated_once_and_the_job_goes_on_exactly(stopped: Stopped, tmp_path: Path) -> None:
    changed = program(stopped.folder, InDecimal)
    plan = plan_upgrade(stopped.tree, "newest", changed)
    assert plan.fits
    assert fits(plan)["numbers.total"] is Fit.OLDER
    assert fits(plan)["numbers.number"] is Fit.SAME
    assert fits(plan)["numbers.seen"] is Fit.NEW
    before = stopped.tree.record().epoch
    done = migrate(stopped.tree, changed)
    assert done.made == stopped.tree.record().epoch > before
    counts = {one.state: (one.rows, one.migrated) for one in done.states}
    assert counts["total"][0] == counts["total"][1] > 0
    assert counts["number"][0] == counts["total"][0]
    assert counts["number"][1] == 0
    codec = stored(stopped, tmp_path).state("total").codec
    assert codec is not None
    assert (codec.name, codec.oldest, codec.version) == ("decimal", 2, 2)
    assert not verify(stopped.tree, what_to_verify(stopped.tree)).damages
    assert set(fits(plan_upgrade(stopped.tree, "newest", changed)).values()) <= {Fit.SAME, Fit.NEW}
    assert migrate(stopped.tree, changed).made is None
    stopped.settings.gate.touch()
    recovery.run(
        changed, checkpoints=stopped.uri, every="100ms", parallelism=3, local=stopped.folder / "local", progress=False
    ).wait(PATIENCE)
    assert RunningJob(stopped.settings).compare().exact


def test_what_has_not_changed_is_left_as_it_is(stopped: Stopped) -> None:
    number = stopped.tree.state.number
    plan = plan_upgrade(stopped.tree, "newest", stopped.program())
    assert plan.fits
    assert set(fits(plan).values()) == {Fit.SAME}
    assert (plan.added, plan.removed, plan.changed, plan.lost) == ((), (), (), ())
    assert migrate(stopped.tree, stopped.program()).made is None
    assert stopped.tree.state.number == number


def test_a_state_that_is_declared_no_longer_is_dropped_only_if_that_is_said(stopped: Stopped, tmp_path: Path) -> None:
    changed = program(stopped.folder, WithoutTotal)
    plan = plan_upgrade(stopped.tree, "newest", changed)
    assert not plan.fits
    assert fits(plan)["numbers.total"] is Fit.GONE
    with pytest.raises(ProgramDoesNotFit, match="states that are declared no longer: numbers: total"):
        migrate(stopped.tree, changed)
    migrate(stopped.tree, changed, drop_states=True)
    after = stored(stopped, tmp_path)
    assert "total" not in {spec.name for spec in after.states}
    assert after.dropped == ()
    assert plan_upgrade(stopped.tree, "newest", changed).fits


def test_a_codec_that_does_not_read_what_was_written_is_named_with_its_versions(stopped: Stopped) -> None:
    changed = program(stopped.folder, NotMigrated)
    plan = plan_upgrade(stopped.tree, "newest", changed)
    assert not plan.fits
    (unfit,) = (one for one in plan.states if one.fit is Fit.UNFIT)
    assert (unfit.stored, unfit.declared) == (
        "value of int, version 1",
        "value of decimal, version 2, which reads from 1",
    )
    number = stopped.tree.state.number
    with pytest.raises(
        ProgramDoesNotFit, match="numbers: state 'total': its codec was int, and is declared as decimal"
    ):
        migrate(stopped.tree, changed)
    assert stopped.tree.state.number == number


def test_what_is_added_removed_and_lost_is_listed(stopped: Stopped) -> None:
    add_output(stopped)
    plan = plan_upgrade(stopped.tree, "newest", program_elsewhere(stopped.folder))
    assert plan.added == ("others (sink)", "sums (keyed operator)")
    assert plan.removed == ("numbers, with keyed state",)
    assert plan.lost == ("out, with output that is not committed yet",)
    assert not plan.fits
