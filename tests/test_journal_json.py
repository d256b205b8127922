"""The bytes of the journal: read back as written, readable for good, and any damage named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.journal.entries import (
    Body,
    Claimed,
    Closed,
    Committed,
    Completed,
    DamagedJournal,
    Entry,
    NewerJournal,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.entry_json import decode_entry, decode_summary, encode_entry, encode_summary
from snapshot.journal.machine import apply
from snapshot.journal.state import (
    EMPTY,
    NO_OUTPUT,
    EpochRecord,
    EpochState,
    JournalState,
    OutputMade,
    with_assumed_output,
)
from statebackend.ids import Epoch, Generation
from statebackend.snapshots.sealed_json import DamagedDocument, Fields, seal, unseal

GOLDEN = Path(__file__).parent / "golden"
G1, G2 = Generation(1), Generation(2)
ONE, TWO, THREE, FOUR, FIVE = (Epoch(G1, number) for number in (1, 2, 3, 4, 5))


def complete(epoch: Epoch, has_committables: bool) -> Completed:
    return Completed(epoch, f"epochs/{epoch}-5f3a/manifest.json", "sha256:00ff", has_committables)


BODIES: dict[str, Body] = {
    "claimed": Claimed(G1, "tcp://[::1]:4711"),
    "completed": complete(ONE, True),
    "completed-2": complete(TWO, False),
    "completed-3": complete(THREE, True),
    "completed-4": complete(FOUR, True),
    "rewound": Rewound(G1, THREE),
    "committed": Committed(G1, TWO),
    "pinned": Pinned(PinId("reader-7"), TWO, Pinner.READER),
    "pinned-2": Pinned(PinId("savepoint-1"), THREE, Pinner.SAVEPOINT),
    "unpinned": Unpinned(PinId("reader-7")),
    "removed": Removed(G1, (ONE,), ("shared/1-0-1-1.sst",), (f"epochs/{ONE}-5f3a/manifest.json",)),
}
ENTRIES = {name: Entry(number, Nonce(f"nonce-{number}"), body) for number, (name, body) in enumerate(BODIES.items(), 1)}


def whole() -> JournalState:
    state = EMPTY
    for entry in ENTRIES.values():
        state = apply(state, entry)
    return state


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_of_version_1_stay_readable_and_are_written_the_same(name: str) -> None:
    golden = (GOLDEN / f"journal-entry-1-{name}.json").read_bytes()
    entry = ENTRIES[name]
    assert decode_entry(entry.number, golden) == entry
    assert encode_entry(entry) == golden


CLOSED = Entry(12, Nonce("nonce-12"), Closed(G1, "s3://bucket/clicks"))
COPY = replace(whole(), made_elsewhere=OutputMade(3, FIVE, 1))
SUMMARIES = {"whole": whole(), "empty": EMPTY, "closed": apply(whole(), CLOSED), "copy": COPY}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_of_version_2_stay_readable_and_are_written_the_same(name: str) -> None:
    golden, state = (GOLDEN / f"journal-summary-2-{name}.json").read_bytes(), SUMMARIES[name]
    assert decode_summary(state.number, golden) == state.summarised()
    assert encode_summary(state) == golden


@pytest.mark.parametrize("name", ["whole", "empty", "closed"])
def test_summaries_of_version_1_stay_readable_and_what_they_have_forgotten_counts_as_output(name: str) -> None:
    state = SUMMARIES[name]
    read = decode_summary(state.number, (GOLDEN / f"journal-summary-1-{name}.json").read_bytes())
    assert read == replace(state, epochs=with_assumed_output(state.retained), removals=())


def test_a_closed_journal_stays_readable_and_is_written_the_same() -> None:
    golden = (GOLDEN / "journal-entry-1-closed.json").read_bytes()
    assert decode_entry(12, golden) == CLOSED
    assert encode_entry(CLOSED) == golden
    assert SUMMARIES["closed"].moved_to == "s3://bucket/clicks"


def test_an_entry_of_version_2_stays_readable_and_is_written_the_same() -> None:
    entry = Entry(12, Nonce("nonce-12"), replace(complete(FIVE, True), only_carried=True))
    golden = (GOLDEN / "journal-entry-2-carried.json").read_bytes()
    assert decode_entry(12, golden) == entry
    assert encode_entry(entry) == golden


def test_an_epoch_that_nobody_remembers_counts_as_one_with_output_unless_it_was_given_up() -> None:
    def records(*epochs: tuple[int, bool, EpochState]) -> tuple[EpochRecord, ...]:
        found = (complete(Epoch(G1, number), output) for number, output, _ in epochs)
        states = (state for _, _, state in epochs)
        return tuple(
            EpochRecord(one.epoch, one.manifest, one.digest, one.has_committables, NO_OUTPUT, state)
            for one, state in zip(found, states, strict=True)
        )

    committed, given_up = EpochState.COMMITTED, EpochState.GIVEN_UP
    journal = JournalState(
        epochs=with_assumed_output(
            records((6, True, committed), (8, True, given_up), (12, False, committed), (13, True, committed))
        )
    )
    six, _, twelve, thirteen = journal.epochs
    assert journal.output_after(six) == OutputMade(5, thirteen.epoch, 4), "7, 9, 10, 11 and 13"
    assert journal.output_after(twelve) == OutputMade(1, thirteen.epoch)
    assert journal.output_after(thirteen) == NO_OUTPUT
    assert twelve.output == OutputMade(5, twelve.epoch, 4)
    (_, far) = with_assumed_output(records((1, True, committed), (10**30, False, committed)))
    assert far.output.assumed == 10**30 - 2, "so a damaged summary may say"


CLAIM = ENTRIES["claimed"]
DATA = encode_entry(CLAIM)


@given(st.integers(0, len(DATA) - 2), st.integers(1, 255))
def test_one_changed_byte_is_noticed(place: int, change: int) -> None:
    changed = DATA[:place] + bytes([DATA[place] ^ change]) + DATA[place + 1 :]
    with pytest.raises((DamagedJournal, NewerJournal), match=r"journal/0000000001\.json "):
        decode_entry(1, changed)


@given(st.integers(0, len(DATA) - 2))
def test_an_entry_that_is_cut_short_is_noticed(length: int) -> None:
    with pytest.raises(DamagedJournal, match=r"journal/0000000001\.json is damaged"):
        decode_entry(1, DATA[:length])


@given(st.binary(max_size=50))
def test_any_bytes_are_an_entry_or_a_named_error(data: bytes) -> None:
    with pytest.raises(DamagedJournal):
        decode_entry(1, data)


def resealed(**changes: object) -> bytes:
    content = {name: value for name, value in json.loads(DATA).items() if name not in ("version", "checksum")}
    form = str(content.pop("format"))
    return seal(form, 1, {name: value for name, value in {**content, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"number": 2}, "it says that it is entry 2"),
        ({"number": "1"}, "'number' is '1'"),
        ({"number": True}, "'number' is True"),
        ({"number": -1}, "'number' is -1"),
        ({"nonce": 5}, "'nonce' is 5"),
        ({"nonce": ""}, "nonce ''"),
        ({"driver": None}, "'driver' is missing"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"kind": "married"}, "its kind is 'married'"),
        ({"kind": "committed", "by": 1, "epoch": "one"}, "'one' is not an epoch"),
        ({"kind": "pinned", "pin": "p", "epoch": "1-1", "pinner": "nobody"}, "'nobody'"),
        ({"kind": "removed", "by": 1, "epochs": [], "files": ["/etc/passwd"], "manifests": []}, "absolute"),
        ({"kind": "removed", "by": 1, "epochs": [], "files": [1], "manifests": []}, "not a text"),
        ({"kind": "removed", "by": 1, "epochs": {}, "files": [], "manifests": []}, "not a list"),
    ],
)
def test_a_sealed_entry_with_strange_content_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DamagedJournal, match=r"journal/0000000001\.json is damaged") as caught:
        decode_entry(1, resealed(**changes))
    assert says in str(caught.value)


def test_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(NewerJournal, match=r"journal/0000000001\.json was written by a newer program.*version 3"):
        decode_entry(1, seal("epochcut.journal.entry", 3, {"anything": 1}))
    with pytest.raises(NewerJournal, match=r"journal/summary-0000000007\.json"):
        decode_summary(7, seal("epochcut.journal.summary", 3, {}))


def test_a_summary_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(DamagedJournal, match=r"summary-0000000007\.json is damaged: it says that its floor is 0"):
        decode_summary(7, encode_summary(EMPTY))
    with pytest.raises(DamagedJournal, match="not of the format"):
        decode_entry(1, encode_summary(EMPTY))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b"[" * 100_000, "not JSON"),
        (b'"\xff"', "not JSON"),
        (b'{"format":"f","version":0}', "version is 0"),
        (b'{"format":"f","version":true}', "version is True"),
        (b'{"format":"f","version":1}', "checksum"),
    ],
)
def test_a_document_that_is_no_sealed_one_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(DamagedDocument, match=says):
        unseal(data, "f", 1)


def test_fields_are_taken_as_what_they_are_or_not_at_all() -> None:
    with pytest.raises(DamagedDocument, match="not true or false"):
        Fields({"flag": 1}).flag("flag")
    with pytest.raises(DamagedDocument, match="not an object"):
        Fields({"list": [{}, 1]}).objects("list")
    with pytest.raises(DamagedDocument, match="not an object"):
        Fields({"one": [{}]}).fields("one")
