"""Accumulators without their keys: they are read with the keys that an earlier cut has kept, whatever comes between."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import entries
from statebackend.entries import state_id
from statebackend.keys.columns import canonical_column
from statebackend.tables.format.blocks import (
    CLEAR,
    BlockError,
    DamagedBlock,
    NewerBlock,
    arrow_keys,
    combined,
    decode,
    encode,
)
from statebackend.tables.format.values_blocks import KeysEncoder, ValuesEncoder, resolved, settled
from tests.test_blocks import TEXT, Rows, block, rows_of

STATE = state_id("clicks")
NAMESPACE = b"\x01"
KEYS = [b"%c" % letter for letter in range(ord("a"), ord("h"))]
Stored = dict[bytes, bytes]


def kept(epoch: int, counts: Mapping[bytes, int]) -> Stored:
    """What a base of all there is says, in a form to which others can refer."""
    keys = arrow_keys(canonical_column(list(counts), TEXT))
    name = entries.kept_keys(3, STATE, NAMESPACE, epoch)
    values = ValuesEncoder(columns(list(counts.values())), epoch, epoch).encode(0, None)
    return {name: KeysEncoder(keys, epoch).encode(0, len(keys)), of_base(): values}


def referring(epoch: int, keys_of: int, counts: Sequence[int], others: Rows = ()) -> Stored:  # type: ignore[assignment]
    """What a cut says that refers to the keys of another."""
    more = encode(block(list(others))) if others else b""
    return {of_delta(): ValuesEncoder(columns(counts), keys_of, epoch).encode(0, None, more)}


def changes(epoch: int, rows: Rows, *, whole: bool = False) -> Stored:
    """What a cut says of some keys."""
    return {entries.block(3, STATE, NAMESPACE, epoch): encode(block(rows, whole))}


def columns(counts: Sequence[int]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"n.count": np.array(counts, dtype=np.int64)}


def of_base() -> bytes:
    return entries.values(3, STATE, NAMESPACE, of_base=True)


def of_delta() -> bytes:
    return entries.values(3, STATE, NAMESPACE)


def read(stored: Stored) -> dict[bytes | None, int | None]:
    """What all of it says together."""
    found = [decode(payload, name.hex()) for name, payload in resolved(sorted(stored.items()), "clicks")]
    rows = rows_of(combined(found, "here"))
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_values_are_read_with_the_keys_that_they_refer_to_and_with_their_own() -> None:
    stored = kept(4, {b"a": 1, b"b": 2}) | referring(5, 4, [10, 20], [(b"c", 30)])
    assert read(stored) == {b"a": 10, b"b": 20, b"c": 30}


def test_what_is_older_than_values_does_not_count_and_what_is_younger_does() -> None:
    stored = kept(4, {b"a": 1, b"b": 2}) | changes(5, [(b"x", 1), (b"a", 9)]) | referring(6, 4, [10, 20])
    assert read(stored | changes(7, [(b"b", None), (b"c", 3)])) == {b"a": 10, b"c": 3}


def test_what_was_written_early_for_the_cut_after_the_values_is_younger() -> None:
    stored = kept(4, {b"a": 1, b"b": 2}) | referring(5, 4, [10, 20])
    early = entries.early_block(3, STATE, NAMESPACE, 5, 0)
    assert read(stored | {early: encode(block([(b"b", 21)]))}) == {b"a": 10, b"b": 21}


def test_values_of_a_base_are_not_hidden_by_older_ones_that_a_merge_has_brought_again() -> None:
    late = kept(4, {b"a": 1}) | {of_base(): ValuesEncoder(columns([7]), 4, 7).encode(0, None)}
    assert read(late | referring(6, 4, [6]) | changes(7, [(b"a", 6)])) == {b"a": 7}
    assert read(late | referring(8, 4, [8])) == {b"a": 8}


def test_a_whole_block_after_values_is_all_that_there_is() -> None:
    stored = kept(4, {b"a": 1, b"b": 2}) | referring(5, 4, [10, 20])
    assert read(stored | changes(6, [(b"c", 3)], whole=True)) == {b"c": 3}
    assert settled(sorted((stored | changes(6, [(b"c", 3)], whole=True)).items()), 6, "clicks") is None


def test_a_base_keeps_keys_that_whole_blocks_after_the_values_speak_of() -> None:
    stored = kept(4, {b"a": 1, b"b": 2}) | referring(5, 4, [10, 20], [(b"x", 9)])
    stored |= changes(6, [(b"c", 3)], whole=True) | changes(7, [(b"c", 4), (b"b", 5), (b"a", 6)], whole=True)
    base = settled(sorted((stored | changes(8, [(b"c", None), (b"d", 7), (b"a", 8)])).items()), 8, "clicks")
    assert base is not None
    assert read(dict(base)) == {b"a": 8, b"b": 5, b"d": 7}
    assert read(dict(base) | referring(9, 4, [1, 2])) == {b"a": 1, b"b": 2}
    assert settled(sorted((stored | {clear(8): encode(CLEAR)}).items()), 8, "clicks") is None


def clear(epoch: int) -> bytes:
    return entries.block(3, STATE, NAMESPACE, epoch)


def test_namespaces_do_not_mix() -> None:
    other = {entries.block(3, STATE, b"\x02", 5): encode(block([(b"z", 5)]))}
    before = {entries.block(3, STATE, b"", 9): encode(block([(b"y", 9)]))}
    stored = before | kept(4, {b"a": 1}) | referring(6, 4, [2]) | other
    found = [(entries.parse_block(name), rows_of(decode(payload, ""))) for name, payload in resolved(
        sorted(stored.items()), "clicks"
    )]  # fmt: skip
    assert found == [((b"", 9), [(b"y", 9)]), ((NAMESPACE, 6), [(b"a", 2)]), ((b"\x02", 5), [(b"z", 5)])]


def test_keys_that_are_stored_elsewhere_are_looked_for() -> None:
    elsewhere = sorted(kept(4, {b"a": 1, b"b": 2}).items())
    file = changes(5, [(b"a", 9), (b"x", 9)]) | referring(6, 4, [10, 20], [(b"c", 3)]) | changes(7, [(b"b", 21)])

    def find(start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return [one for one in elsewhere if start <= one[0] < end]

    found = [decode(payload, "") for _, payload in resolved(sorted(file.items()), "clicks", find)]
    assert [(rows_of(one), one.whole) for one in found] == [
        ([(b"a", 10), (b"b", 20), (b"c", 3)], True),
        ([(b"b", 21)], False),
    ]


class Chain:
    """A group in which cuts follow on each other, beside a dictionary."""

    def __init__(self) -> None:
        self.epoch = 1
        self.counts: dict[bytes, int] = dict.fromkeys(KEYS[:4], 1)
        self.order: list[bytes] | None = list(self.counts)
        """The kept keys, as long as all have been there."""
        self.keys_of = 1
        self.stored = kept(1, self.counts)

    def change(self, rows: Rows) -> None:
        self.epoch += 1
        for key, count in rows:
            assert key is not None
            if count is None:
                self.counts.pop(key, None)
                self.order = None if self.order is None or key in self.order else self.order
            else:
                self.counts[key] = count
        self.stored |= changes(self.epoch, rows)

    def rewrite(self, number: int) -> None:
        """All accumulators change, in a cut that is not about all there is: another namespace stays as it was."""
        self.epoch += 1
        self.counts = {key: number + at for at, key in enumerate(self.counts)}
        if self.counts:
            self.stored |= changes(self.epoch, list(self.counts.items()), whole=True)

    def refer(self, number: int) -> None:
        """Or keep keys anew, if that cannot be."""
        self.epoch += 1
        self.counts = {key: number + at for at, key in enumerate(self.counts)}
        if self.order is None:
            self.order, self.keys_of = list(self.counts), self.epoch
            self.stored = kept(self.epoch, self.counts)
            return
        others: Rows = [(key, count) for key, count in self.counts.items() if key not in self.order]
        self.stored |= referring(self.epoch, self.keys_of, [self.counts[key] for key in self.order], others)


def rebased(before: Chain) -> Stored:
    """What there is after a base of the newest epoch."""
    run = sorted(before.stored.items())
    found = settled(run, before.epoch, "clicks")
    if found is not None:
        assert [name for name, _ in found] == [entries.kept_keys(3, STATE, NAMESPACE, before.keys_of), of_base()]
        return dict(found)
    one = combined([decode(payload, "") for _, payload in resolved(run, "clicks")], "")
    base = entries.block(3, STATE, NAMESPACE, before.epoch, of_base=True)
    return {base: encode(one)} if len(one.keys) else {}


some_keys = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=3,
                     unique_by=lambda row: row[0])  # fmt: skip
cuts = st.lists(st.one_of(some_keys, st.integers(10, 90), st.integers(-90, -10)), max_size=6)
"""Some keys change; or all, a cut of all there is if the number is positive."""


@given(early=cuts, late=cuts, on_time=st.booleans())
def test_a_base_at_any_cut_says_the_same_and_whatever_follows_it_can_be_read(
    early: list[Rows | int], late: list[Rows | int], on_time: bool
) -> None:
    chain = Chain()

    def go_on(some: list[Rows | int]) -> Stored:
        """What these cuts add; all that there is, if they were about all."""
        before, keys_of = dict(chain.stored), chain.keys_of
        for cut in some:
            if not isinstance(cut, int):
                chain.change(cut)
            elif cut > 0:
                chain.refer(cut)
            else:
                chain.rewrite(cut)
            assert read(chain.stored) == chain.counts
        if chain.keys_of != keys_of:
            return chain.stored
        return {name: payload for name, payload in chain.stored.items() if before.get(name) != payload}

    go_on(early)
    base, at_base, keys_of = rebased(chain), dict(chain.counts), chain.keys_of
    assert read(base) == at_base
    if on_time:
        chain.stored = base
        go_on(late)
        assert read(chain.stored) == chain.counts
        return
    more = go_on(late)
    # The base comes late, and what older deltas say is there again: but for values whose keys the base has not kept.
    of_bases = {name for name in chain.stored if entries.are_kept_keys(name) or name == of_base()}
    again = {name: payload for name, payload in chain.stored.items() if name not in of_bases}
    if not any(map(entries.are_kept_keys, base)):
        again.pop(of_delta(), None)
    if chain.keys_of == keys_of:
        assert read(base | more) == chain.counts
        assert read(again | base | more) == chain.counts


def test_values_without_the_keys_that_they_refer_to_are_refused_with_where_they_are() -> None:
    with pytest.raises(DamagedBlock, match=r"epoch 5 refer to keys of epoch 4.*'clicks', key group 3, namespace 01"):
        read(referring(5, 4, [1]))
    with pytest.raises(DamagedBlock, match=r"epoch 5 refer to keys of epoch 4"):
        read(kept(3, {b"a": 1}) | referring(5, 4, [1]))


def test_values_that_are_not_as_many_as_their_keys_are_refused() -> None:
    with pytest.raises(DamagedBlock, match="not as many as the 2 keys of epoch 4"):
        read(kept(4, {b"a": 1, b"b": 2}) | referring(5, 4, [1]))


def test_keys_without_any_values_are_refused_as_they_say_nothing() -> None:
    stored = kept(4, {b"a": 1})
    del stored[of_base()]
    with pytest.raises(DamagedBlock, match="keys have no accumulators"):
        read(stored)


@pytest.mark.parametrize("which", [0, 1])
def test_a_newer_format_is_refused_and_not_called_damaged(which: int) -> None:
    stored = kept(4, {b"a": 1})
    name = sorted(stored)[which]
    with pa.ipc.open_stream(stored[name]) as stream:
        batch = stream.read_next_batch()
    newer = batch.replace_schema_metadata({**batch.schema.metadata, b"epochcut.block": b"3"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, newer.schema) as writer:
        writer.write_batch(newer)
    with pytest.raises(NewerBlock, match="format 3, and this version reads up to 2"):
        read(stored | {name: sink.getvalue().to_pybytes()})


@given(data=st.data())
def test_damage_is_read_or_refused_with_a_named_error(data: st.DataObject) -> None:
    stored = kept(4, {b"a": 1, b"bb": 2}) | referring(5, 4, [3, 4], [(b"c", 5)])
    name = data.draw(st.sampled_from(sorted(stored)))
    payload = bytearray(stored[name])
    for bit in data.draw(st.lists(st.integers(0, len(payload) * 8 - 1), max_size=3)):
        payload[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload))))
    stored[name] = bytes(payload[:cut])
    with contextlib.suppress(BlockError):
        list(resolved(sorted(stored.items()), "clicks"))
    with contextlib.suppress(BlockError):
        settled(sorted(stored.items()), 6, "clicks")
