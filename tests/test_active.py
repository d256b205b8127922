"""The scheme Active as a user gives it: what it takes, what it refuses, and that output in rounds is that of before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery import Active, Passive
from snapshot import EOF, Collection, Kafka, Program, Stream, ToDriver
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions
from snapshot.host.protocol.wiring import InRounds
from snapshot.program.plan import Plan
from statebackend.durations import NotADuration
from tests.program_parts import clicks
from tests.shop_job import SALES, sale, start, totals


def test_a_tick_is_a_duration_of_a_millisecond_at_least() -> None:
    assert Active(tick="20ms").wiring(1_000) == InRounds(20)
    with pytest.raises(NotADuration, match="tick"):
        Active(tick="soon")
    with pytest.raises(ValueError, match="tick is 0; it must be at least 1ms"):
        Active(tick=0)


@pytest.mark.parametrize("replicas", [0, 4])
def test_a_number_of_replicas_that_there_cannot_be_is_refused(replicas: int) -> None:
    with pytest.raises(ValueError, match=f"replicas is {replicas}; it can be 1"):
        Active(replicas)


def test_losses_are_those_of_the_fallback() -> None:
    scheme = Active(fallback=Passive(standbys=2, following="open", spread=False, poisoned_after=7))
    assert scheme.processes(3) == 5
    assert (scheme.standbys, scheme.ready.value, scheme.spread, scheme.poisoned_after) == (2, "open", False, 7)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "unaligned"}, "mode is unaligned, and the scheme is Active"),
        ({"mode": MarkerMode.AT_LEAST_ONCE}, "mode is at-least-once, and the scheme is Active"),
        ({"alignment_timeout": "1s"}, "alignment_timeout is set, and the scheme is Active"),
    ],
)
def test_markers_that_overtake_are_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    program = Program.of(Stream.read(Collection([(1,)], {"n": int}), uid="numbers").write(ToDriver(), uid="out"))
    with pytest.raises(ContradictingOptions, match=complaint):
        recovery.run(program, checkpoints=tmp_path / "tree", job="refused", scheme=Active(), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_may_go_on_behind_another_gap_when_it_is_read_again_is_refused_by_name() -> None:
    def read(source: Kafka) -> Plan:
        return Program.of(Stream.read(source, uid="records").write(ToDriver(), uid="out")).plan(16)

    with pytest.raises(ContradictingOptions, match=r"the source records cannot be read .* say on_gap='fail'"):
        Active().check(CoordinatorOptions(), read(Kafka("localhost:9092", "topic", on_gap="skip")))
    Active().check(CoordinatorOptions(), read(Kafka("localhost:9092", "topic")))
    Active().check(CoordinatorOptions(), clicks().write(ToDriver(), uid="out").plan(16))


def test_a_tree_goes_from_one_scheme_to_the_other_and_back(tmp_path: Path) -> None:
    """Each start goes on from the savepoint of the one before, to the next end."""
    some, sales = 60, [sale(number) for number in range(240)]
    items: list[Any] = []
    for at in range(0, len(sales), some):
        items += [*sales[at : at + some], EOF()]
    table = Stream.read(Collection(items, SALES), uid="sales")
    program = table.key_by("item").sum("cents", uid="totals").write(ToDriver(), uid="sums")
    rows: list[dict[str, Any]] = []
    for scheme in (Passive(), Active(), Passive(), Active()):
        run = start(tmp_path, program, scheme=scheme)
        found = run.rows("sums")
        rows += [next(found) for _ in range(some)]
        run.stop(savepoint=True, timeout=60)
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["item"]] = max(newest.get(row["item"], 0), row["cents"])
    assert newest == totals(len(sales))
