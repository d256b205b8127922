"""Columns of keys: each key has the bytes and the hash that it has by itself, in whatever form its column comes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.keygroups import key_group_of
from statebackend.keys import hashing as key_hash
from statebackend.keys.columns import KeyColumn, canonical_column, canonical_order, decode_keys, key_column
from statebackend.keys.structs import StructKey
from statebackend.keys.types import BrokenKey, KeyType, WrongKeyType
from tests.key_strategies import FORMS, array_of, key_types, keys_of

GOLDEN = Path(__file__).parent / "golden" / "key_hashes.json"


def bytes_in(column: KeyColumn) -> list[bytes | None]:
    return [column.key(index) for index in range(len(column))]


def check_layout(column: KeyColumn) -> None:
    """What `KeyColumn` promises of its arrays."""
    lengths = np.diff(column.offsets)
    assert len(column.offsets) == len(column) + 1
    assert column.offsets.dtype == np.int64
    assert column.data.dtype == np.uint8
    assert column.hashes.dtype == np.uint64
    if column.width is not None:
        assert set(lengths) <= {column.width}
    elif column.null is not None:
        assert not lengths[column.null].any()
    if column.null is not None and column.width is not None:
        rows = column.data[column.offsets[0] : column.offsets[-1]].reshape(len(column), column.width)
        assert not rows[column.null].any()


@given(st.data(), st.sampled_from(sorted(FORMS)))
def test_a_column_in_any_form_has_the_bytes_and_hashes_of_its_keys(data: st.DataObject, form: str) -> None:
    key_type = data.draw(key_types)
    keys = data.draw(st.lists(keys_of(key_type), max_size=12))
    column = key_column(FORMS[form](array_of(keys, key_type)), key_type)
    check_layout(column)
    assert bytes_in(column) == [key_type.encode(key) for key in keys]
    assert column.hashes.tolist() == [key_type.hash(key) for key in keys]


@given(st.data())
def test_keys_come_back_from_their_canonical_bytes_as_a_column(data: st.DataObject) -> None:
    key_type = data.draw(key_types)
    canonical = [key_type.encode(key) for key in data.draw(st.lists(keys_of(key_type), max_size=12))]
    column = canonical_column(canonical, key_type)
    check_layout(column)
    assert bytes_in(column) == canonical
    assert column.hashes.tolist() == [key_type.hash_of(part) for part in canonical]
    array = decode_keys(column, key_type)
    array.validate(full=True)
    assert array.type == key_type.arrow
    assert bytes_in(key_column(array, key_type)) == canonical


def test_the_golden_hashes_are_those_of_columns_too() -> None:
    by_type: dict[str, list[tuple[bytes | None, str]]] = {}
    for case in json.loads(GOLDEN.read_text()):
        canonical = None if case["canonical"] is None else bytes.fromhex(case["canonical"])
        by_type.setdefault(case["type"], []).append((canonical, case["hash"]))
    for name, cases in by_type.items():
        column = canonical_column([canonical for canonical, _ in cases], KeyType.parse(name))
        assert [f"{found:016x}" for found in column.hashes.tolist()] == [expected for _, expected in cases], name


@given(st.lists(st.binary(max_size=70) | st.none(), min_size=26, max_size=60))
def test_many_keys_of_any_lengths_have_the_hashes_that_each_has(keys: list[bytes | None]) -> None:
    key_type = KeyType.of(bytes)
    column = key_column(pa.array([b"behind", *keys], pa.binary())[1:], key_type)
    assert column.hashes.tolist() == [key_type.hash(key) for key in keys]


@pytest.mark.parametrize("length", range(1, 34))
def test_keys_of_one_length_have_a_width_and_the_hashes_that_each_has(length: int) -> None:
    key_type = KeyType.of(bytes)
    keys = [bytes((index * 37 + place * 11) % 256 for place in range(length)) for index in range(40)]
    column = key_column(pa.array([b"x", *keys])[1:], key_type)
    assert column.width == length
    assert column.hashes.tolist() == [key_type.hash(key) for key in keys]


def test_keys_longer_than_those_that_are_sorted_have_the_same_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_hash, "_LONG", 5)
    key_type = KeyType.of(bytes)
    keys = [bytes([index + 1]) * (20 + 7 * (index * 13 % 40)) for index in range(80)]
    assert key_column(pa.array(keys), key_type).hashes.tolist() == [key_type.hash(key) for key in keys]


def test_a_few_long_keys_of_one_length_are_not_passed_over_word_by_word_in_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = 0
    fold = key_hash._fold

    def counted(*arrays: object) -> None:
        nonlocal passes
        passes += 1
        fold(*arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(key_hash, "_fold", counted)
    keys = [bytes([number]) * 50_001 for number in range(12)]
    column = key_column(pa.array(keys), KeyType.of(bytes))
    assert column.hashes.tolist() == [KeyType.of(bytes).hash_of(key) for key in keys]
    assert passes == 0


def test_a_batch_of_several_blocks_has_the_hashes_that_each_key_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_hash, "_BLOCK_BYTES", 1000)
    key_type = KeyType.of(int)
    keys = list(range(-500, 500))
    assert key_column(pa.array(keys), key_type).hashes.tolist() == [key_type.hash(key) for key in keys]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 32768))
def test_the_groups_of_a_column_are_those_of_its_hashes(hashes: list[int], max_parallelism: int) -> None:
    column = KeyColumn(np.zeros(0, np.uint8), np.zeros(len(hashes) + 1, np.int64), np.array(hashes, np.uint64))
    assert column.groups(max_parallelism).tolist() == [key_group_of(found, max_parallelism) for found in hashes]


def with_garbage_below_nulls(array: pa.Array, null: list[bool]) -> pa.Array:
    validity = pa.py_buffer(np.packbits(~np.array(null), bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [validity, *array.buffers()[1:]])


GARBAGE = [
    (pa.array([7, -1, 3, 9]), int),
    (pa.array([1.5, float("nan"), 2.5, -0.0]), float),
    (pa.array([True, True, False, True]), bool),
    (pa.array(["kept", "garbage", "", "more garbage"]), str),
    (pa.array(["kept", "garbage", "", "more garbage"], pa.large_string()), str),
    (pa.array(["kept, and long", "garbage, and long", "", "x"], pa.string_view()), str),
    (pa.array([b"abc", b"xyz", b"def", b"uvw"], pa.binary(3)), pa.binary(3)),
    (pa.array([b"abc", b"xyz", b"def", b"uvw"], pa.binary(3)), bytes),
    (pa.array([86_400_000, 5, 0, -1]).view(pa.date64()), pa.date32()),
    (pa.array([5_000_000, 1, 0, 2**63 - 1]).view(pa.timestamp("us")), pa.timestamp("s")),
    (pa.array([5, 2**62, 0, -(2**63)]).view(pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array([Decimal("1.50"), Decimal("1.55"), Decimal("2.50"), Decimal("99.99")]), pa.decimal128(2, 1)),
]


@pytest.mark.parametrize(("array", "declared"), GARBAGE, ids=lambda part: str(getattr(part, "type", part)))
def test_what_lies_below_nulls_does_not_matter(array: pa.Array, declared: object) -> None:
    key_type = KeyType.of(declared)
    column = key_column(with_garbage_below_nulls(array, [False, True, False, True]), key_type)
    clean = key_column(pa.array([array[0].as_py(), None, array[2].as_py(), None], array.type), key_type)
    check_layout(column)
    assert bytes_in(column) == bytes_in(clean)
    assert [key is None for key in bytes_in(column)] == [False, True, False, True]
    assert column.hashes.tolist() == clean.hashes.tolist()


def test_what_lies_below_a_null_struct_does_not_matter() -> None:
    times = pa.array([5_000_000, 1]).view(pa.timestamp("us"))
    structs = pa.StructArray.from_arrays([times, pa.array(["a", "b"])], names=["t", "s"], mask=pa.array([False, True]))
    key_type = KeyType.of((pa.timestamp("s"), str))
    assert bytes_in(key_column(structs, key_type)) == [key_type.encode((dt.datetime(1970, 1, 1, 0, 0, 5), "a")), None]


def test_the_fields_of_a_struct_may_come_in_any_form() -> None:
    names = pa.array(["behind", "b", None, "a"]).dictionary_encode()
    sizes = pa.array([0, 1, 2, None], pa.int16())
    texts = pa.array(["behind", "long enough to be out of line", None, ""], pa.string_view())
    structs = pa.StructArray.from_arrays(
        [names, sizes, texts, pa.nulls(4)], names=["a", "b", "c", "d"], mask=pa.array([False, False, True, False])
    )
    key_type = KeyType.of((str, int, str, bytes))
    keys = [("b", 1, "long enough to be out of line", None), None, ("a", None, "", None)]
    assert bytes_in(key_column(structs[1:], key_type)) == [key_type.encode(key) for key in keys]


NANS = [
    ("<u2", "<f2", [0x7E00, 0xFE00, 0x7C01, 0xFC01]),
    ("<u4", "<f4", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001]),
    ("<u8", "<f8", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFF0000000000001]),
]


@pytest.mark.parametrize(("words", "floats", "nans"), NANS, ids=["16", "32", "64"])
def test_all_nans_are_one_key_and_both_zeros_are(words: str, floats: str, nans: list[int]) -> None:
    key_type = KeyType.of(float)
    column = key_column(pa.array(np.array(nans, words).view(floats)), key_type)
    assert set(bytes_in(column)) == {key_type.encode(float("nan"))}
    zeros = key_column(pa.array(np.array([0.0, -0.0], floats)), key_type)
    assert bytes_in(zeros) == [bytes(8), bytes(8)]


FITTING = [
    (pa.array([-7], pa.int8()), int, -7),
    (pa.array([200], pa.uint8()), pa.int16(), 200),
    (pa.array([2**32 - 1], pa.uint32()), int, 2**32 - 1),
    (pa.array([2**32 - 1], pa.uint32()), pa.uint64(), 2**32 - 1),
    (pa.array([0.5], pa.float16()), float, 0.5),
    (pa.array([0.1], pa.float32()), float, np.float32(0.1)),
    (pa.array([b"ab"], pa.binary(2)), bytes, b"ab"),
    (pa.array([dt.date(1969, 12, 31)], pa.date64()), dt.date, dt.date(1969, 12, 31)),
    (pa.array([5]).view(pa.timestamp("s")), pa.timestamp("ns"), dt.datetime(1970, 1, 1, 0, 0, 5)),
    (pa.array([-5_000]).view(pa.timestamp("ms")), pa.timestamp("s"), dt.datetime(1969, 12, 31, 23, 59, 55)),
    (
        pa.array([0]).view(pa.timestamp("s", "Asia/Tokyo")),
        pa.timestamp("us", "UTC"),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    ),
    (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(9, 3), Decimal("1.5")),
    (pa.array([Decimal("1.500")], pa.decimal128(9, 3)), pa.decimal128(2, 1), Decimal("1.5")),
    (pa.array([Decimal("-1.5")], pa.decimal256(50, 1)), pa.decimal128(2, 1), Decimal("-1.5")),
    (pa.array([Decimal("-1.5")], pa.decimal32(5, 1)), pa.decimal256(50, 1), Decimal("-1.5")),
    (pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int32()), ("y", pa.large_string())])), (int, str), (1, "a")),
    (pa.nulls(1), str, None),
    (pa.nulls(1), int, None),
    (pa.nulls(1), (int, str), None),
]


@pytest.mark.parametrize(("array", "declared", "key"), FITTING, ids=lambda part: str(getattr(part, "type", part)))
def test_a_column_whose_values_the_declared_type_holds_exactly_is_taken(
    array: pa.Array, declared: object, key: object
) -> None:
    key_type = KeyType.of(declared)
    assert bytes_in(key_column(array, key_type)) == [key_type.encode(key)]


REFUSED = [
    (pa.array([1], pa.int64()), pa.int32()),
    (pa.array([1], pa.uint64()), int),
    (pa.array([1], pa.int8()), pa.uint64()),
    (pa.array([1], pa.uint32()), pa.int32()),
    (pa.array([1]), float),
    (pa.array([1]), bool),
    (pa.array([1]), str),
    (pa.array([1]), dt.date),
    (pa.array([1]), pa.timestamp("us")),
    (pa.array([1]), pa.null()),
    (pa.array([True]), int),
    (pa.array([1.0]), int),
    (pa.array([1.0]), pa.float32()),
    (pa.array(["a"]), bytes),
    (pa.array([b"a"]), str),
    (pa.array([b"a"]), pa.binary(1)),
    (pa.array([b"a"], pa.binary(1)), pa.binary(2)),
    (pa.array([dt.date(2020, 1, 1)]), pa.timestamp("us")),
    (pa.array([dt.datetime(2020, 1, 1)]), dt.date),
    (pa.array([1]).view(pa.date64()), dt.date),
    (pa.array([2**62 // 86_400_000 * 86_400_000]).view(pa.date64()), dt.date),
    (pa.array([1]).view(pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([1]).view(pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([1]).view(pa.timestamp("us")), pa.timestamp("ms")),
    (pa.array([2**61]).view(pa.timestamp("s")), pa.timestamp("ms")),
    (pa.array([-(2**61)]).view(pa.timestamp("s")), pa.timestamp("ms")),
    (pa.array([Decimal("1.55")]), pa.decimal128(5, 1)),
    (pa.array([Decimal("100")]), pa.decimal128(2, 0)),
    (pa.array([1]), pa.decimal128(5, 0)),
    (pa.array([Decimal("1")]), int),
    (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
    (pa.array([{"a": 1}]), (int, int)),
    (pa.array([{"a": 1}]), (str,)),
    (pa.array([{"a": 1}]), int),
    (pa.array([1]), (int,)),
    (pa.array([[1]]), int),
    (pa.array([1]).dictionary_encode(), str),
    (pa.chunked_array([pa.array([1])]), str),
    (pa.array([None], pa.int64()), str),
    (pa.array([], pa.int64()), str),
    (pa.chunked_array([], pa.int64()), str),
]


@pytest.mark.parametrize(("array", "declared"), REFUSED, ids=lambda part: str(getattr(part, "type", part)))
def test_a_column_that_may_hold_what_the_declared_type_does_not_is_refused(array: pa.Array, declared: object) -> None:
    key_type = KeyType.of(declared)
    with pytest.raises(WrongKeyType) as refused:
        key_column(array, key_type)
    assert refused.value.declared == key_type
    assert key_type.name in str(refused.value)
    given = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    assert f"Arrow's {given}:" in str(refused.value)


def test_long_keys_of_one_width_are_not_copied() -> None:
    array = pa.array(["behind the slice", *(f"{number:080}" for number in range(50))])[1:]
    column = key_column(array, KeyType.of(str))
    assert column.width == 80
    assert column.data.ctypes.data == array.buffers()[2].address
    assert column.offsets[0] == len("behind the slice")


def test_integers_are_not_copied() -> None:
    array = pa.array(range(100))[10:]
    column = key_column(array, KeyType.of(int))
    assert column.data.ctypes.data == array.buffers()[1].address + 80


def test_an_empty_column_of_a_fixed_width_has_that_width() -> None:
    empty = pa.array([], pa.int64())
    for array in (empty, pa.chunked_array([], pa.int64()), pa.chunked_array([empty, empty]), pa.array([], pa.null())):
        column = key_column(array, KeyType.of(int))
        assert (len(column), column.width, len(column.offsets)) == (0, 8, 1)
    assert canonical_column([], KeyType.of(int)).width == 8


def test_chunks_of_different_widths_have_none_together() -> None:
    column = key_column(pa.chunked_array([["aa", "bb"], ["ccc"], [None]], pa.string()), KeyType.of(str))
    assert column.width is None
    assert bytes_in(column) == [b"aa", b"bb", b"ccc", None]


PAIR: KeyType = StructKey((KeyType.of(str), KeyType.of(int)))


@pytest.mark.parametrize(
    ("canonical", "key_type"),
    [
        (b"\x05ab", PAIR),
        (b"\x02a", PAIR),
        (b"\x80", PAIR),
        (b"\xff" * 12, PAIR),
        (b"\x02a\x08" + bytes(7), PAIR),
        (b"\x02a\x09" + bytes(8) + b"more", PAIR),
    ],
)
def test_bytes_that_are_no_struct_are_noticed(canonical: bytes, key_type: KeyType) -> None:
    with pytest.raises(BrokenKey, match="struct<string, int64>"):
        key_type.decode(canonical)
    with pytest.raises(BrokenKey, match="int64"):
        decode_keys(canonical_column([canonical, None], key_type), key_type)


def test_a_null_struct_among_structs_of_one_width_is_read_whatever_its_bytes_are() -> None:
    canonical = PAIR.encode(("a", 1))
    assert canonical is not None
    data = np.frombuffer(canonical + bytes(len(canonical)), dtype=np.uint8)
    offsets = np.array([0, 1, 2], dtype=np.int64) * len(canonical)
    keys = KeyColumn(data, offsets, np.zeros(2, np.uint64), len(canonical), np.array([False, True]))
    assert decode_keys(keys, PAIR).to_pylist() == [{"f0": "a", "f1": 1}, None]


def test_bytes_of_another_width_are_noticed() -> None:
    with pytest.raises(BrokenKey, match="not every key of type int64 has 8 bytes"):
        canonical_column([bytes(8), bytes(7)], KeyType.of(int))
    with pytest.raises(BrokenKey, match="int64"):
        decode_keys(canonical_column([b"abc"], KeyType.of(str)), KeyType.of(int))


@given(st.lists(st.none() | st.binary(max_size=3), unique=True), st.randoms(use_true_random=False))
def test_the_canonical_order_of_keys_is_by_hash_and_then_by_bytes_however_they_came(
    keys: list[bytes | None], chance: Random
) -> None:
    hashes = {key: chance.choice([0, 1, 2**32, 2**48 + 7, 2**64 - 1]) for key in keys}
    expected = sorted(keys, key=lambda key: (hashes[key], key is not None, key or b""))
    for _ in range(2):
        chance.shuffle(keys)
        order = canonical_order(
            np.array([hashes[key] for key in keys], dtype=np.uint64), lambda places: [keys[at] for at in places]
        )
        assert [keys[at] for at in order] == expected
