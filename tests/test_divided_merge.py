"""Blocks of a large key group become a few small ones: what was said last counts, and little is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from statebackend.backends.scratch_file import ScratchFile
from statebackend.states import base_entries
from statebackend.states.base_entries import merge_divided
from statebackend.tables.format import blocks
from statebackend.tables.format.blocks import decode, encode
from tests.test_blocks import PLACE, TEXT, Rows, block, rows_of, some_rows


def merged(written: list[tuple[Rows, bool]], together: int) -> Rows:
    payloads = [encode(block(rows, whole)) for rows, whole in written]
    with patch.object(base_entries, "_TOGETHER", together):
        found = [decode(payload, PLACE) for payload in merge_divided(payloads, PLACE, TEXT, ScratchFile)]
    assert all(part.deleted is None and not part.whole for part in found)
    return [row for part in found for row in rows_of(part)]


@given(written=st.lists(st.tuples(some_rows, st.booleans()), max_size=6), together=st.sampled_from([1, 600, 2_000]))
def test_what_is_divided_says_of_each_key_what_was_said_last(written: list[tuple[Rows, bool]], together: int) -> None:
    assert sorted(merged(written, together), key=repr) == sorted(merged(written, 1 << 30), key=repr)


def test_of_a_large_group_little_is_merged_at_a_time() -> None:
    written: list[tuple[Rows, bool]] = [
        ([(b"%d" % key, epoch) for key in range(epoch, 60_000, 2)], False) for epoch in range(6)
    ]
    at_once: list[int] = []

    def watched(payloads: Sequence[bytes], place: str) -> Iterator[bytes]:
        at_once.append(sum(map(len, payloads)))
        return blocks.merge(payloads, place)

    with patch.object(base_entries, "merge", watched):
        found = merged(written, 100_000)
    assert dict(found) == {key: n for rows, _ in written for key, n in rows}
    assert len(found) == 60_000
    assert sum(at_once) > 1_000_000
    assert max(at_once) <= 200_000
