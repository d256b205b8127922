"""The journal's writer, reader and compactor step by step: the interleavings worth reading one by one."""

from __future__ import annotations

import pytest

from snapshot.journal.compaction import Compacted, JournalCompactor, plan_compaction
from snapshot.journal.entries import (
    Body,
    Claimed,
    Completed,
    DamagedJournal,
    Entry,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
)
from snapshot.journal.entry_json import encode_entry, encode_summary
from snapshot.journal.machine import Reason, apply
from snapshot.journal.reader import JournalRead, JournalReader
from snapshot.journal.requests import (
    AlreadyThere,
    Created,
    CreateEntry,
    CreateSummary,
    Deleted,
    DeleteEntry,
    DeleteSummary,
    EntryRead,
    FloorRead,
    JournalListed,
    ListJournal,
    OutcomeUnknown,
    ReadEntry,
    ReadFloor,
    ReadSummary,
    SummaryRead,
    UnexpectedEvent,
)
from snapshot.journal.state import EMPTY, JournalState
from snapshot.journal.writer import BadProposal, Fenced, Forgotten, JournalWriter, Refused, Won
from statebackend.ids import Epoch, Generation

G1, G2 = Generation(1), Generation(2)
ONE, TWO, THREE = (Epoch(G1, number) for number in (1, 2, 3))
MINE = Nonce("mine")


def complete(epoch: Epoch) -> Completed:
    return Completed(epoch, f"epochs/{epoch}-x/manifest.json", "sha256:00", has_committables=False)


def entry(number: int, body: Body, nonce: str | None = None) -> Entry:
    return Entry(number, Nonce(nonce or f"n{number}"), body)


def fold(*bodies: Body) -> JournalState:
    state = EMPTY
    for body in bodies:
        state = apply(state, entry(state.number + 1, body))
    return state


START = fold(Claimed(G1, "driver-1"), complete(ONE), complete(TWO))
MY_THREE = entry(4, complete(THREE), "mine")
PIN = Pinned(PinId("p"), ONE, Pinner.READER)
REMOVE_ONE = Removed(G1, (ONE,), (), (f"epochs/{ONE}-x/manifest.json",))


def proposing(body: Body, state: JournalState = START) -> JournalWriter:
    """A writer whose create at the next number is under way."""
    writer = JournalWriter(state)
    expected = Entry(state.number + 1, MINE, body)
    assert writer.propose(MINE, body) == CreateEntry(expected.number, encode_entry(expected))
    return writer


# --- the writer


def test_a_create_counts_only_when_the_floor_is_below_it() -> None:
    writer = proposing(complete(THREE))
    assert writer.handle(Created()) == ReadFloor()
    assert writer.handle(FloorRead(3)) == Won(MY_THREE)
    assert writer.state == apply(START, MY_THREE)


@pytest.mark.parametrize("answer", [OutcomeUnknown(), AlreadyThere()])
def test_an_entry_with_our_own_nonce_is_our_success(answer: OutcomeUnknown | AlreadyThere) -> None:
    writer = proposing(complete(THREE))
    assert writer.handle(answer) == ReadEntry(4)
    assert writer.handle(EntryRead(encode_entry(MY_THREE))) == ReadFloor()
    assert writer.handle(FloorRead(0)) == Won(MY_THREE)


def test_what_is_unknown_and_not_there_is_created_again_at_the_same_number_with_the_same_nonce() -> None:
    writer = proposing(complete(THREE))
    writer.handle(OutcomeUnknown())
    assert writer.handle(EntryRead(None)) == ReadFloor()
    assert writer.handle(FloorRead(0)) == CreateEntry(4, encode_entry(MY_THREE))


def test_who_collides_with_a_newer_claim_is_fenced() -> None:
    writer = proposing(complete(THREE))
    writer.handle(AlreadyThere())
    writer.handle(EntryRead(encode_entry(entry(4, Claimed(G2, "driver-2")))))
    assert writer.handle(FloorRead(0)) == Fenced(G2)


def test_who_collides_with_anything_else_tries_the_next_number() -> None:
    writer = proposing(complete(THREE))
    writer.handle(AlreadyThere())
    writer.handle(EntryRead(encode_entry(entry(4, PIN))))
    assert writer.handle(FloorRead(0)) == CreateEntry(5, encode_entry(entry(5, complete(THREE), "mine")))


def test_a_removal_that_a_pin_has_beaten_is_refused_once_the_journal_is_read_to_its_end() -> None:
    writer = proposing(REMOVE_ONE)
    writer.handle(AlreadyThere())
    writer.handle(EntryRead(encode_entry(entry(4, PIN))))
    assert writer.handle(FloorRead(0)) == ReadEntry(5)
    assert writer.handle(EntryRead(None)) == ReadFloor()
    outcome = writer.handle(FloorRead(0))
    assert isinstance(outcome, Refused)
    assert outcome.refusal.reason is Reason.PINNED


def test_a_paused_driver_that_creates_a_compacted_number_is_not_taken_in() -> None:
    writer = proposing(complete(THREE))
    others = apply(apply(START, entry(4, PIN)), entry(5, Claimed(G2, "driver-2")))
    assert writer.handle(Created()) == ReadFloor()
    assert writer.handle(FloorRead(5)) == ReadSummary(5)
    assert writer.handle(SummaryRead(encode_summary(others))) == Fenced(G2)


def test_what_was_compacted_after_it_counted_is_found_in_the_summary() -> None:
    writer = proposing(complete(THREE))
    others = apply(apply(START, MY_THREE), entry(5, Claimed(G2, "driver-2")))
    writer.handle(OutcomeUnknown())
    writer.handle(EntryRead(None))
    assert writer.handle(FloorRead(5)) == ReadSummary(5)
    assert writer.handle(SummaryRead(None)) == ReadFloor(), "a summary may be superseded meanwhile"
    writer.handle(FloorRead(5))
    assert writer.handle(SummaryRead(encode_summary(others))) == Won(MY_THREE)


def test_a_void_claim_fences_nobody() -> None:
    writer = proposing(complete(THREE))
    writer.handle(AlreadyThere())
    writer.handle(EntryRead(encode_entry(entry(4, Claimed(G2, "late")))))
    summary = apply(START, entry(4, PIN))
    writer.handle(FloorRead(4))
    step = writer.handle(SummaryRead(encode_summary(summary)))
    assert step == CreateEntry(5, encode_entry(entry(5, complete(THREE), "mine")))


def test_a_writer_whose_entry_a_summary_has_forgotten_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshot.journal.machine.NONCES_KEPT", 1)
    writer = proposing(complete(THREE))
    others = apply(apply(START, MY_THREE), entry(5, PIN))
    writer.handle(OutcomeUnknown())
    writer.handle(EntryRead(None))
    writer.handle(FloorRead(5))
    assert writer.handle(SummaryRead(encode_summary(others))) == Forgotten(4)


def test_an_entry_that_may_not_stand_where_it_counts_is_damage() -> None:
    writer = proposing(complete(THREE))
    writer.handle(AlreadyThere())
    writer.handle(EntryRead(encode_entry(entry(4, complete(ONE)))))
    with pytest.raises(DamagedJournal, match="journal entry 4"):
        writer.handle(FloorRead(0))


def test_a_fenced_writer_is_told_so_without_asking_the_store() -> None:
    state = apply(START, entry(4, Claimed(G2, "driver-2")))
    assert JournalWriter(state).propose(MINE, complete(THREE)) == Fenced(G2)


def test_one_proposal_at_a_time_and_every_nonce_once() -> None:
    writer = proposing(complete(THREE))
    with pytest.raises(BadProposal, match="under way"):
        writer.propose(Nonce("other"), PIN)
    with pytest.raises(BadProposal, match="nonce n2 was used for entry 2"):
        JournalWriter(START).propose(Nonce("n2"), PIN)


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(UnexpectedEvent, match="creating journal entry 4"):
        proposing(complete(THREE)).handle(FloorRead(0))
    with pytest.raises(UnexpectedEvent):
        JournalReader().handle(FloorRead(0))
    with pytest.raises(UnexpectedEvent):
        JournalCompactor(START, 0).handle(Created())


# --- the reader


def reading_to(end: int) -> JournalReader:
    """A reader that has read the entries of `START` up to `end` and asks what comes next."""
    reader = JournalReader()
    assert reader.start() == ReadFloor()
    bodies: list[Body] = [Claimed(G1, "driver-1"), complete(ONE), complete(TWO)]
    assert reader.handle(FloorRead(0)) == ReadEntry(1)
    for number, body in enumerate(bodies[:end], 1):
        assert reader.handle(EntryRead(encode_entry(entry(number, body)))) == ReadEntry(number + 1)
    return reader


def test_an_empty_journal_is_read_as_such() -> None:
    reader = reading_to(0)
    assert reader.handle(EntryRead(None)) == ReadFloor()
    assert reader.handle(FloorRead(0)) == JournalRead(EMPTY)


def test_a_reader_begins_at_the_floor_and_reads_to_the_end() -> None:
    reader = JournalReader()
    reader.start()
    assert reader.handle(FloorRead(3)) == ReadSummary(3)
    assert reader.handle(SummaryRead(None)) == ReadFloor()
    reader.handle(FloorRead(3))
    assert reader.handle(SummaryRead(encode_summary(START))) == ReadEntry(4)
    reader.handle(EntryRead(encode_entry(entry(4, PIN))))
    reader.handle(EntryRead(None))
    assert reader.handle(FloorRead(3)) == JournalRead(apply(START, entry(4, PIN)))


def test_a_reader_that_a_compaction_overtakes_goes_on_from_its_summary() -> None:
    reader = reading_to(1)
    reader.handle(EntryRead(None))
    assert reader.handle(FloorRead(3)) == ReadSummary(3)
    assert reader.handle(SummaryRead(encode_summary(START))) == ReadEntry(4)
    reader.handle(EntryRead(None))
    assert reader.handle(FloorRead(3)) == JournalRead(START)


def test_a_void_entry_that_a_reader_came_across_does_not_count_though_the_read_went_beyond_it() -> None:
    reader = reading_to(2)
    reader.handle(EntryRead(encode_entry(entry(3, Claimed(G2, "late")))))
    reader.handle(EntryRead(encode_entry(entry(4, PIN))))
    reader.handle(EntryRead(None))
    assert reader.handle(FloorRead(3)) == ReadSummary(3)
    assert reader.handle(SummaryRead(encode_summary(START))) == JournalRead(apply(START, entry(4, PIN)))


def test_a_damaged_entry_is_named_unless_it_is_void() -> None:
    reader = reading_to(2)
    reader.handle(EntryRead(b"{"))
    reader.handle(EntryRead(None))
    with pytest.raises(DamagedJournal, match=r"journal/0000000003\.json is damaged"):
        reader.handle(FloorRead(0))
    reader = reading_to(2)
    reader.handle(EntryRead(b"{"))
    reader.handle(EntryRead(None))
    reader.handle(FloorRead(3))
    assert reader.handle(SummaryRead(encode_summary(START))) == JournalRead(START)


# --- compaction


def listed(entries: range, *floors: int) -> JournalListed:
    return JournalListed(frozenset(entries), frozenset(floors))


def test_the_summary_is_surely_there_before_the_first_deletion() -> None:
    compactor = JournalCompactor(START, carried_out=0)
    assert compactor.start() == ListJournal()
    summary = CreateSummary(3, encode_summary(START))
    assert compactor.handle(listed(range(1, 5))) == summary
    assert compactor.handle(OutcomeUnknown()) == summary
    assert compactor.handle(AlreadyThere()) == DeleteEntry(1)
    assert compactor.handle(Deleted()) == DeleteEntry(2)
    assert compactor.handle(Deleted()) == DeleteEntry(3)
    assert compactor.handle(Deleted()) == Compacted()


def test_a_summary_waits_for_removals_that_are_not_carried_out() -> None:
    state = apply(START, entry(4, REMOVE_ONE))
    assert plan_compaction(state, 3, listed(range(1, 5))).summary is None
    assert plan_compaction(state, 4, listed(range(1, 5))).summary == CreateSummary(4, encode_summary(state))


def test_a_late_compactor_writes_nothing_and_deletes_what_a_newer_summary_has_superseded() -> None:
    plan = plan_compaction(START, 0, listed(range(2, 9), 2, 4, 5, 7))
    assert plan.summary is None
    assert plan.deletions == (*map(DeleteEntry, range(2, 8)), DeleteSummary(2), DeleteSummary(4))


def test_the_newest_two_summaries_stay() -> None:
    assert plan_compaction(START, 0, listed(range(0), 2)).deletions == ()
    assert plan_compaction(START, 0, listed(range(0), 1, 2)).deletions == (DeleteSummary(1),)


def test_each_reader_reads_and_each_compactor_compacts_once() -> None:
    with pytest.raises(UnexpectedEvent, match="twice"):
        reading_to(0).start()
    compactor = JournalCompactor(START, 0)
    compactor.start()
    with pytest.raises(UnexpectedEvent, match="twice"):
        compactor.start()
