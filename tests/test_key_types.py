"""Declared key types: which keys they hold, their canonical bytes, and hashes that stay as they are for ever."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import struct
from decimal import Decimal
from enum import IntEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.keys.columns import canonical_column
from statebackend.keys.hashing import hash_bytes, hash_word
from statebackend.keys.structs import StructKey
from statebackend.keys.types import BinaryKey, BrokenKey, IntegerKey, KeyType, UndeclarableKeyType, WrongKeyType
from tests.key_strategies import key_types, keys_of

GOLDEN = Path(__file__).parent / "golden" / "key_hashes.json"


def golden() -> list[dict[str, str | None]]:
    cases: list[dict[str, str | None]] = json.loads(GOLDEN.read_text())
    return cases


@pytest.mark.parametrize("case", golden(), ids=lambda case: f"{case['type']}-{str(case['canonical'])[:20]}")
def test_the_hash_of_a_key_is_the_one_it_always_had(case: dict[str, str | None]) -> None:
    key_type = KeyType.parse(str(case["type"]))
    canonical = None if case["canonical"] is None else bytes.fromhex(case["canonical"])
    key = key_type.decode(canonical)
    assert case["key"] == repr(key)
    assert key_type.encode(key) == canonical
    assert f"{key_type.hash_of(canonical):016x}" == case["hash"]
    assert f"{key_type.hash(key):016x}" == case["hash"]


def test_the_golden_hashes_cover_every_type_and_length() -> None:
    types = {str(case["type"]).split("[")[0].split("<")[0].split("(")[0] for case in golden()}
    assert types == {
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
        *("bool", "string", "binary", "date", "timestamp", "decimal", "null", "struct"),
    }
    binaries = [case["canonical"] for case in golden() if case["type"] == "binary"]
    assert {len(bytes.fromhex(part)) for part in binaries if part is not None} >= set(range(18))


def test_the_hash_is_the_one_that_is_written_down() -> None:
    """The formula, once more, on a key of two words."""
    size, every = 11, (1 << 64) - 1
    c1, c2, c3 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    h = (5 * c1 + size * c3) % (1 << 64)
    for word in struct.unpack("<2Q", b"eleven long" + bytes(5)):
        h = ((h ^ word) * c1) & every
        h ^= h >> 32
    h ^= h >> 30
    h = (h * c2) & every
    h ^= h >> 27
    h = (h * c3) & every
    h ^= h >> 31
    assert KeyType.of(str).hash("eleven long") == h


@pytest.mark.parametrize("size", [119, 120, 127, 128, 129, 135, 136, 137, 5000])
def test_a_long_key_is_hashed_alone_as_in_a_column(size: int) -> None:
    keys = [bytes(index % 256 for index in range(size)), b"short"]
    assert KeyType.of(bytes).hash(keys[0]) == int(canonical_column([keys[0]] * 30 + keys, KeyType.of(bytes)).hashes[30])


@given(st.integers(0, 2**64 - 1), st.integers(1, 12))
def test_a_word_is_hashed_as_its_bytes_are(word: int, tag: int) -> None:
    assert hash_word(tag, word) == hash_bytes(tag, word.to_bytes(8, "little"))


def same(left: object, right: object) -> bool:
    """Equality of keys of one type, said once more: all NaNs are one key."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


@given(st.data())
def test_a_key_comes_back_from_its_canonical_bytes(data: st.DataObject) -> None:
    key_type = data.draw(key_types)
    key = data.draw(keys_of(key_type))
    canonical = key_type.encode(key)
    assert (canonical is None) == (key is None)
    decoded = key_type.decode(canonical)
    assert same(decoded, key)
    assert key_type.encode(decoded) == canonical
    assert key_type.hash(key) == key_type.hash_of(canonical)
    if canonical is not None and key_type.width is not None:
        assert len(canonical) == key_type.width


@given(st.data())
def test_two_keys_are_the_same_exactly_if_their_bytes_are(data: st.DataObject) -> None:
    key_type = data.draw(key_types)
    left, right = data.draw(keys_of(key_type)), data.draw(keys_of(key_type))
    assert (key_type.encode(left) == key_type.encode(right)) == same(left, right)


@given(key_types)
def test_a_type_is_found_by_its_name(key_type: KeyType) -> None:
    assert KeyType.parse(key_type.name) == key_type
    assert KeyType.of(key_type) == key_type
    assert hash(KeyType.parse(key_type.name)) == hash(key_type)


@given(key_types)
def test_a_type_travels_between_processes(key_type: KeyType) -> None:
    assert pickle.loads(pickle.dumps(key_type)) == key_type


@given(key_types, key_types)
def test_types_are_equal_exactly_if_their_names_are(left: KeyType, right: KeyType) -> None:
    assert (left == right) == (left.name == right.name)


DECLARED = [
    (int, "int64"),
    (float, "float64"),
    (str, "string"),
    (bytes, "binary"),
    (bool, "bool"),
    (dt.date, "date"),
    (type(None), "null"),
    ((str, (int, pa.int8())), "struct<string, struct<int64, int8>>"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.large_binary(), "binary"),
    (pa.binary_view(), "binary"),
    (pa.binary(16), "binary[16]"),
    (pa.date64(), "date"),
    (pa.float16(), "float16"),
    (pa.timestamp("ms"), "timestamp[ms]"),
    (pa.timestamp("ns", "Europe/Berlin"), "timestamp[ns, UTC]"),
    (pa.decimal32(5, 2), "decimal(5, 2)"),
    (pa.decimal128(38, -2), "decimal(38, -2)"),
    (pa.decimal256(38, 2), "decimal(38, 2)"),
    (pa.decimal256(76, 2), "decimal(76, 2)"),
    (pa.dictionary(pa.int8(), pa.large_string()), "string"),
    (pa.struct([("a, \"b\"", pa.int8()), ("ü>", pa.string())]), 'struct<"a, \\"b\\"": int8, "\\u00fc>": string>'),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "name"), DECLARED, ids=lambda part: str(part))
def test_a_type_is_declared_in_several_ways(declared: object, name: str) -> None:
    key_type = KeyType.of(declared)
    assert key_type.name == name
    assert KeyType.of(key_type.arrow).width == key_type.width


@pytest.mark.parametrize(
    "declared",
    [
        *(list, dt.datetime, Decimal, "int64", None, 5, (), (list,), pa.list_(pa.int8()), pa.struct([])),
        *(pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.struct([("a", pa.list_(pa.int8()))]), pa.time32("s")),
        *(pa.binary(0), pa.map_(pa.int8(), pa.int8()), pa.uuid(), pa.run_end_encoded(pa.int32(), pa.int8())),
        pa.duration("s"),
    ],
    ids=str,
)
def test_what_cannot_be_a_key_is_not_declared(declared: object) -> None:
    with pytest.raises(UndeclarableKeyType):
        KeyType.of(declared)


@pytest.mark.parametrize(
    "name",
    [
        *("", "int", "int64 ", " int64", "int128", "binary[0]", "binary[-1]", "binary[05]", "timestamp[h]"),
        *("decimal(5,2)", "decimal(0, 0)", "decimal(77, 0)", "timestamp[us, Europe/Berlin]"),
        *("struct<>", "struct<int64", "struct<int64,int8>", "struct<int64>>", 'struct<"a: int8>', 'struct<"a"int8>'),
        *('struct<"a"::int8>', 'struct<"a": int8, int8>', 'struct<"a": int8, "a": int8>'),
        *("struct<" * 17 + "int8" + ">" * 17, "struct<" * 5000, 'struct<"\\ud800": int8>', f"binary[{2**31}]"),
        *(f"decimal(5, {2**31})", "decimal(5, 99999999999)", "binary[" + "9" * 5000 + "]"),
    ],
)
def test_a_name_of_no_type_is_refused(name: str) -> None:
    with pytest.raises(UndeclarableKeyType):
        KeyType.parse(name)


class Colour(IntEnum):
    RED = 3


class FinerThanMicroseconds(dt.datetime):
    """What pandas calls a Timestamp."""

    nanosecond = 7


EPOCH = dt.datetime(1970, 1, 1)
UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


HELD = [
    (int, Colour.RED, 3),
    (int, np.int8(-3), -3),
    (int, np.uint64(2**63 - 1), 2**63 - 1),
    (pa.uint64(), np.uint64(2**64 - 1), 2**64 - 1),
    (float, np.float64(0.5), 0.5),
    (float, np.float16(0.5), 0.5),
    (pa.float16(), np.float32(0.5), 0.5),
    (pa.float32(), math.inf, math.inf),
    (float, -0.0, 0.0),
    (float, -math.nan, math.nan),
    (float, struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0], math.nan),
    (bool, np.bool_(True), True),
    (str, np.str_("a"), "a"),
    (bytes, np.bytes_(b"a"), b"a"),
    (dt.date, np.datetime64("1969-12-31"), dt.date(1969, 12, 31)),
    (dt.date, np.datetime64("1969-12"), dt.date(1969, 12, 1)),
    (dt.date, np.datetime64(24, "h"), dt.date(1970, 1, 2)),
    (pa.timestamp("s"), np.datetime64("1970-01-01T00:00:01.000"), EPOCH + dt.timedelta(seconds=1)),
    (pa.timestamp("ns", "UTC"), np.datetime64(7, "ns"), np.datetime64(7, "ns")),
    (pa.timestamp("ns"), FinerThanMicroseconds(1970, 1, 1), np.datetime64(7, "ns")),
    (pa.timestamp("s"), np.datetime64(2**62, "s"), np.datetime64(2**62, "s")),
    (pa.timestamp("s", "UTC"), dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), UTC_EPOCH),
    (pa.decimal128(3, 1), Decimal("1.500"), Decimal("1.5")),
    (pa.decimal128(3, 1), Decimal("-0"), Decimal("0.0")),
    (pa.decimal128(3, 1), Decimal("0E+999999"), Decimal("0.0")),
    (pa.decimal128(3, -2), Decimal("12300"), Decimal("123E+2")),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), {"b": "x", "a": 1}, (1, "x")),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), (1, "x"), (1, "x")),
]


@pytest.mark.parametrize(("declared", "key", "same_key"), HELD, ids=lambda part: repr(part)[:40])
def test_a_key_given_otherwise_but_exactly_is_the_same_key(declared: object, key: object, same_key: object) -> None:
    key_type = KeyType.of(declared)
    assert key_type.encode(key) == key_type.encode(same_key)
    assert key_type.hash(key) == key_type.hash(same_key)
    assert same(key_type.decode(key_type.encode(key)), same_key)


REFUSED = [
    *(
        (int, key)
        for key in (1.0, True, np.bool_(True), np.timedelta64(1, "s"), np.float64(1), "1", b"1", 2**63, 10**5000)
    ),
    *((pa.uint64(), key) for key in (-1, 2**64, np.int8(-1))),
    *((pa.int8(), key) for key in (128, -129)),
    *((pa.uint8(), key) for key in (256, -1)),
    *((float, key) for key in (1, True, np.int64(1), "1", Decimal(1), np.longdouble(1))),
    *((pa.float32(), key) for key in (0.1, 1e300)),
    *((pa.float16(), key) for key in (1.0001, 70000.0)),
    *((bool, key) for key in (0, 1, np.int8(1), "True")),
    *((str, key) for key in (b"a", 1, "\ud800")),
    *((bytes, key) for key in ("a", bytearray(b"a"), memoryview(b"a"))),
    *((pa.binary(2), key) for key in (b"", b"a", b"abc")),
    *((dt.date, key) for key in (EPOCH, 0, "1970-01-01", np.datetime64(1, "h"), np.datetime64("NaT", "D"))),
    *((pa.timestamp("us"), key) for key in (UTC_EPOCH, dt.date(1970, 1, 1), 0, 0.0, np.datetime64(1, "ns"))),
    (pa.timestamp("us"), FinerThanMicroseconds(1970, 1, 1)),
    (pa.timestamp("us", "UTC"), EPOCH),
    (pa.timestamp("ms"), EPOCH + dt.timedelta(microseconds=1)),
    (pa.timestamp("ns"), dt.datetime(2300, 1, 1)),
    *(
        (pa.decimal128(3, 1), key)
        for key in (Decimal("1.55"), Decimal(100), Decimal("NaN"), Decimal("Infinity"), 1, 1.0)
    ),
    *((pa.decimal128(3, 1), key) for key in (Decimal("1E-999999"), Decimal("1E+999999"))),
    *((pa.null(), key) for key in (0, "")),
    *(((str, int), key) for key in (("a",), ("a", 1, 2), ["a", 1], ("a", 1.0), (1, "a"), "ab", {"f0": "a", "f1": 1})),
    *((pa.struct([("a", pa.int8())]), key) for key in ({}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1.0})),
]


@pytest.mark.parametrize(("declared", "key"), REFUSED, ids=lambda part: str(type(part).__name__))
def test_a_key_that_the_type_does_not_hold_is_refused(declared: object, key: object) -> None:
    key_type = KeyType.of(declared)
    for use in (key_type.encode, key_type.hash):
        with pytest.raises(WrongKeyType) as refused:
            use(key)
        assert refused.value.declared == key_type
        assert f"declared as {key_type.name} was given as" in str(refused.value)
        assert type(key).__name__ in refused.value.given


def test_one_and_one_point_zero_and_true_are_different_keys() -> None:
    hashes = {KeyType.of(declared).hash(key) for declared, key in ((int, 1), (float, 1.0), (bool, True), (str, "1"))}
    assert len(hashes) == 4


def test_kinds_of_keys_with_equal_bytes_have_different_hashes() -> None:
    zeros = [int, pa.uint64(), float, bytes, str, dt.date, pa.timestamp("s"), pa.timestamp("s", "UTC"), (str,)]
    assert len({KeyType.of(declared).hash_of(bytes(8)) for declared in zeros}) == len(zeros)
    assert len({KeyType.of(declared).hash_of(None) for declared in zeros}) == len(zeros)


def test_a_key_keeps_its_hash_when_its_type_is_widened() -> None:
    assert len({IntegerKey(bits, True).hash(-5) for bits in (8, 16, 32, 64)}) == 1
    assert len({KeyType.of(declared).hash(0.5) for declared in (pa.float16(), pa.float32(), pa.float64())}) == 1
    assert BinaryKey(3).hash(b"abc") == BinaryKey().hash(b"abc")


def test_zeros_behind_a_key_make_another_key_with_another_hash() -> None:
    assert len({KeyType.of(bytes).hash(bytes(length)) for length in range(100)}) == 100


def test_the_message_says_which_field_was_given_wrongly() -> None:
    with pytest.raises(
        WrongKeyType, match=r"struct<string, int64> was given as tuple \('a', 1.0\): .*int64.*float 1.0"
    ):
        KeyType.of((str, int)).encode(("a", 1.0))


def test_the_message_does_not_repeat_a_long_key() -> None:
    with pytest.raises(WrongKeyType) as refused:
        KeyType.of(int).encode("a" * 10_000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("declared", "canonical"),
    [
        *((int, b"1234567"), (bool, b""), (str, b"\xff"), (pa.null(), b""), (pa.binary(2), b"a")),
        *(((int,), b""), ((int,), b"\x09" + bytes(9)), ((int,), b"\x08" + bytes(7)), ((str,), b"\x02\xff")),
        (pa.decimal128(5, 1), b""),
    ],
)
def test_bytes_of_no_key_are_noticed(declared: object, canonical: bytes) -> None:
    key_type = KeyType.of(declared)
    with pytest.raises(BrokenKey) as broken:
        key_type.decode(canonical)
    assert key_type.name in str(broken.value)


def test_a_struct_without_names_is_not_one_with_the_names_that_arrow_gives_it() -> None:
    unnamed = KeyType.of((str, int))
    assert isinstance(unnamed, StructKey)
    assert KeyType.of(unnamed.arrow) != unnamed


def test_sixteen_structs_may_be_one_in_the_other_and_no_more() -> None:
    name = "struct<" * 16 + "int8" + ">" * 16
    assert KeyType.parse(name).name == name
    deep: object = pa.int8()
    for _ in range(17):
        deep = (deep,)
    with pytest.raises(UndeclarableKeyType, match="more than 16 structs"):
        KeyType.of(deep)
