"""Keys of a table on the local disk against a dictionary: with pages and merges that are tiny, and equal hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.backends.scratch_file import ScratchFile
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn, canonical_column
from statebackend.keys.types import KeyType
from statebackend.tables.disk import cold_keys, cold_run
from statebackend.tables.disk.cold_keys import ColdKeys
from statebackend.tables.format.blocks import Block, arrow_keys
from statebackend.tables.values.accumulators import Accumulator, Column
from statebackend.tables.values.spec import Layout

TEXT = KeyType.of(str)
COLUMNS = {"n": Accumulator.of(np.int64), "text": Accumulator.of(str), "raw": Accumulator.of(bytes)}
LAYOUT = Layout("clicks", COLUMNS, TEXT, KeyGroupRange(KeyGroup(0), KeyGroup(1)), 1)
KEYS: tuple[bytes | None, ...] = (None, b"", *(bytes([97 + at]) * (at % 5 + 1) for at in range(20)))
NAMESPACES = (b"", b"window")

keys_of_a_batch = st.lists(st.sampled_from(KEYS), max_size=12, unique=True)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "forget", "drop"]), st.sampled_from(NAMESPACES), keys_of_a_batch),
    max_size=30,
)


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    """So that a few keys make many pages, runs and merges."""
    with (
        patch.multiple(cold_run, _PAGE=2, _MERGED_AT_ONCE=4, _READ_AT_ONCE=3, _LARGE=20),
        patch.multiple(cold_keys, _SMALLEST=2, _ALIKE=3, _TOO_MANY=6),
    ):
        yield


def column(keys: list[bytes | None], hashes: int) -> KeyColumn:
    """The keys with so many different hashes."""
    found = canonical_column(keys, TEXT)
    few = found.hashes % np.uint64(hashes) * np.uint64(2**63 // hashes)
    return KeyColumn(found.data, found.offsets, few, found.width, found.null)


def values(number: int, keys: list[bytes | None]) -> Mapping[str, Column]:
    numbers = [100 * number + at for at in range(len(keys))]
    texts = np.array([text_of(one) for one in numbers], dtype=object)
    return {
        "n": np.array(numbers, dtype=np.int64),
        "text": texts,
        "raw": np.array([one.encode() for one in texts], dtype=object),
    }


def text_of(number: int) -> str:
    return f"\u00e9{number}\0" * (number % 3)


@pytest.mark.parametrize("hashes", [1, 3, 1 << 40])
@given(given_steps=steps)
def test_a_key_is_what_was_said_of_it_last(
    given_steps: list[tuple[str, bytes, list[bytes | None]]], hashes: int
) -> None:
    cold = ColdKeys(LAYOUT, ScratchFile)
    model: dict[tuple[bytes, bytes | None], int] = {}
    for number, (step, namespace, keys) in enumerate(given_steps):
        if step == "put":
            cold.put(namespace, [(column(keys, hashes), values(number, keys))], len(keys))
            model.update({(namespace, key): 100 * number + at for at, key in enumerate(keys)})
        elif step == "forget":
            cold.forget(namespace, column(keys, hashes))
            model = {at: n for at, n in model.items() if at[0] != namespace or at[1] not in keys}
        else:
            cold.drop(namespace)
            model = {at: n for at, n in model.items() if at[0] != namespace}
        for of in NAMESPACES:
            assert found(cold, of, hashes) == {key: n for (there, key), n in model.items() if there == of}
    assert {namespace for namespace, _ in model} <= cold.namespaces()
    for of in NAMESPACES:
        all_keys, columns = cold.of(of)
        assert dict(zip(listed(all_keys), numbers_in(columns), strict=True)) == found(cold, of, hashes)


def found(cold: ColdKeys, namespace: bytes, hashes: int) -> dict[bytes | None, int]:
    keys = [*KEYS, *KEYS[:3]]
    here = cold.find(namespace, column(keys, hashes), np.arange(len(keys)))
    if here is None:
        return {}
    return {keys[at]: n for at, n in zip(here.which.tolist(), numbers_in(here.columns), strict=True)}


def numbers_in(columns: Mapping[str, Column]) -> list[int]:
    """The numbers, given that texts and bytes are those of the same rows."""
    numbers: list[int] = columns["n"].tolist()
    assert columns["text"].tolist() == list(map(text_of, numbers))
    assert columns["raw"].tolist() == [text_of(one).encode() for one in numbers]
    return numbers


def listed(keys: KeyColumn) -> list[bytes | None]:
    return [keys.key(at) for at in range(len(keys))]


def test_runs_are_merged_as_they_come_so_that_few_have_to_be_asked() -> None:
    files = 0

    def new_file() -> ScratchFile:
        nonlocal files
        files += 1
        return ScratchFile()

    cold = ColdKeys(LAYOUT, new_file)
    for number in range(300):
        keys: list[bytes | None] = [b"%d-%d" % (number, at) for at in range(4)]
        cold.put(b"", [(canonical_column(keys, TEXT), values(number, keys))], len(keys))
    assert files < 2 * 300 * 2
    assert len(cold._runs) < 40
    assert sum(map(len, cold._runs)) == 1_200


def test_of_a_namespace_that_was_dropped_nothing_is_merged() -> None:
    cold = ColdKeys(LAYOUT, ScratchFile)
    keys: list[bytes | None] = [b"a", b"b", b"c"]
    cold.put(b"kept", [(canonical_column(keys, TEXT), values(0, keys))], len(keys))
    for number in range(40):
        cold.put(b"window", [(canonical_column(keys, TEXT), values(number, keys))], len(keys))
        cold.drop(b"window")
        assert cold.namespaces() == {b"kept"}
        assert not cold.groups_of(b"window").any()
    assert sum(map(len, cold._runs)) < 60


def test_groups_are_loaded_from_blocks_of_which_the_younger_are_right() -> None:
    cold = ColdKeys(LAYOUT, ScratchFile)
    loading = cold.loading()
    blocks: list[tuple[list[bytes | None], list[bool]]] = [
        ([b"a", b"b", b"c"], [False, False, False]),
        ([b"b", b"c", b"d"], [False, True, True]),
        ([b"d", b"e"], [False, False]),
    ]
    for number, (keys, deleted) in enumerate(blocks):
        some = canonical_column(keys, TEXT)
        loading.add(b"", some, Block(arrow_keys(some), values(number, keys), np.array(deleted)))
    loading.end_group()
    loading.end()
    everything, columns = cold.of(b"")
    here = dict(zip(listed(everything), numbers_in(columns), strict=True))
    assert here == {b"a": 0, b"b": 100, b"d": 200, b"e": 201}
