"""Sealed records: whatever somebody on the path does to them, nothing comes out that was not said, in its order."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.seals import (
    ForgedRecord,
    OverLongRecord,
    RecordReader,
    RecordWriter,
    Seals,
    UnusableRecord,
)
from tests.connections import FAR, NEAR

bodies = st.lists(st.binary(max_size=40), max_size=6)


def written(said: Iterable[bytes], seals: Seals | None = NEAR) -> list[bytes]:
    writer = RecordWriter(seals)
    return [writer.record(body) for body in said]


def heard(stream: bytes, seals: Seals | None = FAR) -> list[bytes]:
    """What comes out until something is refused."""
    reader, found = RecordReader(seals, 100), list[bytes]()
    try:
        for body in reader.feed(stream):
            found.append(body)
    except UnusableRecord:
        pass
    return found


@given(bodies, st.sampled_from([(NEAR, FAR), (None, None)]), st.data())
def test_records_come_out_as_they_went_in_whatever_the_pieces(
    said: list[bytes], ends: tuple[Seals | None, Seals | None], data: st.DataObject
) -> None:
    stream = b"".join(written(said, ends[0]))
    reader, found = RecordReader(ends[1], 100), list[bytes]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == said
    assert not reader.is_inside


@given(bodies, st.data())
def test_of_records_that_are_left_out_repeated_or_swapped_none_comes_out(
    said: list[bytes], data: st.DataObject
) -> None:
    records = written(said)
    chosen = data.draw(st.lists(st.sampled_from(range(len(records))), max_size=8)) if records else []
    sound = next((at for at, one in enumerate(chosen) if one != at), len(chosen))
    assert heard(b"".join(records[one] for one in chosen)) == said[:sound]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_bytes_that_are_changed_put_in_or_taken_out_let_nothing_through_that_was_not_said(
    said: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(written(said))
    start = data.draw(st.integers(0, len(stream)))
    end = data.draw(st.integers(start, len(stream)))
    found = heard(stream[:start] + data.draw(st.binary(max_size=60)) + stream[end:])
    assert found == said[: len(found)]


@pytest.mark.parametrize("seals", [NEAR, Seals(bytes(32), bytes(32)), None], ids=["sent back", "other keys", "none"])
def test_what_was_sealed_for_another_connection_or_direction_or_not_at_all_is_refused(seals: Seals | None) -> None:
    (record,) = written([b"stop the job"], FAR if seals is NEAR else seals)
    with pytest.raises(ForgedRecord, match=r"message 0 of .* bytes does not carry the connection's seal.*turn on tls"):
        list(RecordReader(FAR, 100).feed(record + bytes(64)))


def test_a_record_is_given_before_the_next_one_is_looked_at() -> None:
    first, second = written([b"one", b"two"])
    found = RecordReader(FAR, 100).feed(first + second[:-1] + b"!")
    assert next(found) == b"one"
    with pytest.raises(ForgedRecord, match="message 1 of 3 bytes"):
        next(found)


def test_a_length_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(OverLongRecord, match="announced a message of 101 bytes; at most 100 are read"):
        list(RecordReader(FAR, 100).feed(written([bytes(101)])[0][:4]))


def test_keys_are_shown_nowhere() -> None:
    assert repr(NEAR) == "Seals()"
