"""The stored blocks of a key group: which of them count, in which order, and when they are too many for memory."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

from statebackend import entries
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import canonical_column
from statebackend.keys.types import KeyType
from statebackend.tables.format import stored_blocks
from statebackend.tables.format.blocks import Block, DamagedBlock, arrow_keys, encode
from statebackend.tables.format.stored_blocks import StoredBlocks
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.spec import Layout
from tests.rows_in_a_dict import RowsInADict

TEXT = KeyType.of(str)
LAYOUT = Layout("clicks", {"n.count": Accumulator.of(np.int64)}, TEXT, KeyGroupRange(KeyGroup(0), KeyGroup(4)), 4)


def group_of(key: bytes) -> int:
    return int(canonical_column([key], TEXT).groups(LAYOUT.max_parallelism)[0])


IN_GROUP = [key for key in (b"%d" % n for n in range(100)) if group_of(key) == 2]


class Stored:
    """Blocks of one group, as cuts and early writes put them there."""

    def __init__(self) -> None:
        self.store = RowsInADict()
        self.blocks = StoredBlocks(LAYOUT, self.store)

    def put(self, epoch: int, namespace: bytes, counts: dict[bytes, int], whole: bool = False, group: int = 2) -> None:
        keys = arrow_keys(canonical_column(list(counts), TEXT))
        block = Block(keys, {"n.count": np.array(list(counts.values()), dtype=np.int64)}, whole=whole)
        self.store.put(entries.block(group, LAYOUT.state, namespace, epoch), encode(block))

    def few(self, most: int) -> dict[bytes, list[tuple[bytes, int]]] | None:
        found = self.blocks.few(2, most)
        if found is None:
            return None
        return {
            namespace: [
                row
                for block in some
                for row in zip(block.keys.to_pylist(), block.columns["n.count"].tolist(), strict=True)
            ]
            for namespace, some in found.items()
            if some
        }


@pytest.fixture(params=[1, 700, 1 << 20], ids=["one by one", "some at once", "all at once"])
def stored(request: pytest.FixtureRequest) -> Iterator[Stored]:
    with patch.object(stored_blocks, "_DECODED_TOGETHER", request.param):
        yield Stored()


def test_a_whole_block_is_all_that_there_is_of_its_namespace(stored: Stored) -> None:
    a, b, c = IN_GROUP[:3]
    for namespace in (b"", b"other"):
        stored.put(1, namespace, {a: 1, b: 1})
        stored.put(2, namespace, {c: 2})
    stored.put(3, b"", {a: 3}, whole=True)
    stored.put(4, b"", {b: 4})
    assert stored.few(10) == {b"": [(a, 3), (b, 4)], b"other": [(a, 1), (b, 1), (c, 2)]}


def test_what_does_not_count_any_more_takes_no_room(stored: Stored) -> None:
    for epoch in range(1, 6):
        stored.put(epoch, b"", dict.fromkeys(IN_GROUP[:4], epoch), whole=True)
    assert stored.few(8) == {b"": [(key, 5) for key in IN_GROUP[:4]]}
    assert stored.few(3) is None


def test_a_block_of_another_group_is_named_though_others_are_right(stored: Stored) -> None:
    for epoch in range(1, 4):
        stored.put(epoch, b"", {IN_GROUP[0]: epoch})
    foreign = next(key for key in (b"%d" % n for n in range(100)) if key not in IN_GROUP)
    stored.put(4, b"", {foreign: 4})
    with pytest.raises(DamagedBlock, match="key group 2, epoch 4"):
        stored.few(10)


def test_a_block_with_other_columns_is_named_though_others_are_right(stored: Stored) -> None:
    stored.put(1, b"", {IN_GROUP[0]: 1})
    keys = arrow_keys(canonical_column(IN_GROUP[:1], TEXT))
    other = Block(keys, {"n.count": np.array([1.5])})
    for epoch in (2, 3):
        stored.store.put(entries.block(2, LAYOUT.state, b"", epoch), encode(other))
    with pytest.raises(DamagedBlock, match=r"float64.*epoch 2"):
        stored.few(10)


def test_rows_that_do_not_count_any_more_do_not_make_those_that_do_seem_large() -> None:
    stored = Stored()
    groups: list[list[bytes]] = [[], [], [], []]
    for key in (b"%d" % n for n in range(4000)):
        groups[group_of(key)].append(key)
    for epoch in range(1, 50):
        stored.put(epoch, b"", dict.fromkeys(groups[0][:20], epoch), whole=True, group=0)
    for group in (1, 2, 3):
        stored.put(1, b"", dict.fromkeys(groups[group][:20], 1), group=group)
    read, found = stored.blocks.first(np.arange(4), enough=30, most=1000)
    assert read == 2
    assert sum(len(block.keys) for block in found[b""]) == 40


def stored_under(group: int, epoch: int, key: bytes, count: int) -> tuple[bytes, bytes]:
    keys = arrow_keys(canonical_column([key], TEXT))
    block = Block(keys, {"n.count": np.array([count], dtype=np.int64)})
    return entries.block(group, LAYOUT.state, b"", epoch), encode(block)


def test_blocks_of_several_groups_are_decoded_in_their_order_and_each_is_checked_against_its_own(
    stored: Stored,
) -> None:
    a, b = IN_GROUP[:2]
    elsewhere = next(key for key in (b"%d" % n for n in range(100)) if group_of(key) == 1)
    some = [stored_under(2, 1, a, 1), stored_under(2, 2, a, 2), stored_under(1, 1, elsewhere, 3)]
    rows = [row for _, block in stored.blocks.together({b"": some}) for row in block.columns["n.count"].tolist()]
    assert rows == [1, 2, 3]
    with pytest.raises(DamagedBlock, match="key group 1, epoch 7"):
        list(stored.blocks.together({b"": [*some, stored_under(1, 7, b, 4)]}))
