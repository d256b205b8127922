"""The stages of a partition at markers that admit another member: all of them together, though epochs overlap."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.watermarks import Watermarks
from snapshot.host.partition.cut_stages import CutStages
from snapshot.host.protocol.stage_now import InputsNow, StageNow
from statebackend.ids import Epoch, Generation, Uid

STAGES = (Uid("source"), Uid("counts"), Uid("totals"))
FIRST, SECOND = (Epoch(Generation(1), number) for number in (1, 2))


def at(clock: int) -> StageNow:
    inputs = InputsNow(Watermarks(()), (), {})
    return StageNow(inputs, {}, None, had_ended=False, time=0, clock=clock, source=None, ended=False, ending=False)


def test_what_stages_have_cut_for_a_newer_epoch_is_kept_when_an_older_one_has_all() -> None:
    cuts = CutStages(2)
    source, counts, _ = STAGES
    assert cuts.add(FIRST, source, at(1)) is None
    assert cuts.add(SECOND, source, at(2)) is None
    assert cuts.add(FIRST, counts, at(1)) is not None
    found = cuts.add(SECOND, counts, two := at(2))
    assert found is not None
    assert (set(found), found[source].clock, found[counts]) == ({source, counts}, 2, two)


@given(st.permutations([uid for uid in STAGES for _ in range(3)]))
def test_whatever_the_order_of_stages_each_epoch_has_all_of_them_once(order: Sequence[Uid]) -> None:
    cuts, numbers, complete = CutStages(len(STAGES)), dict.fromkeys(STAGES, 0), list[Epoch]()
    for uid in order:
        numbers[uid] += 1
        epoch = Epoch(Generation(1), numbers[uid])
        found = cuts.add(epoch, uid, at(numbers[uid]))
        if found is not None:
            assert {stage.clock for stage in found.values()} == {epoch.number}
            complete.append(epoch)
    assert complete == [Epoch(Generation(1), number) for number in (1, 2, 3)]


def test_nothing_is_left_of_an_epoch_that_no_member_waits_for() -> None:
    cuts = CutStages(2)
    cuts.add(FIRST, STAGES[0], at(1))
    cuts.forget()
    assert cuts.add(FIRST, STAGES[1], at(1)) is None
