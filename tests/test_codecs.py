"""Values become bytes and come back equal and of the same types; what does not fit is refused."""

from __future__ import annotations

import pickle
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.states.codec_choice import NoCodec, codec_of
from statebackend.states.codecs import Codec, IntCodec, Migrated, NotEncodable, Pickled, StrCodec

TEXTS = st.text(st.characters(exclude_categories=[]))
LEAVES = {
    "int": (int, st.integers()),
    "float": (float, st.floats()),
    "bool": (bool, st.booleans()),
    "str": (str, TEXTS),
    "bytes": (bytes, st.binary()),
    "none": (None, st.none()),
    "date": (date, st.dates()),
    "datetime": (datetime, st.datetimes(timezones=st.none() | st.just(UTC))),
    "optional": (int | None, st.none() | st.integers()),
    "pair": (tuple[int, float], st.tuples(st.integers(), st.floats())),
    "numbers": (tuple[int, bool], st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())),
    "empty": (tuple[()], st.just(())),
    "nested": (
        tuple[int, tuple[str, float | None], bytes],
        st.tuples(st.integers(), st.tuples(TEXTS, st.none() | st.floats()), st.binary()),
    ),
    "named int64": ("int64", st.integers(-(1 << 63), (1 << 63) - 1)),
    "named uint8": ("uint8", st.integers(0, 255)),
    "float32": (pa.float32(), st.floats(width=32)),
    "milliseconds": (pa.timestamp("ms"), st.datetimes().map(lambda at: at.replace(microsecond=0, fold=0))),
    "instants": (pa.timestamp("us", "Europe/Berlin"), st.datetimes(timezones=st.just(UTC))),
}


def same(left: object, right: object) -> bool:
    """Equal and of the same types, through and through; NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right) or (left != left and right != right)
    if isinstance(left, datetime) and isinstance(right, datetime):
        return (left, left.tzinfo) == (right, right.tzinfo) and (left.tzinfo is not None or left.fold == right.fold)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("name", LEAVES)
@given(data=st.data())
def test_a_value_comes_back_as_it_was_accepted_and_that_is_as_it_was_given(name: str, data: st.DataObject) -> None:
    declared, values = LEAVES[name]
    codec: Codec[object] = codec_of(declared)
    value = data.draw(values)
    accepted = codec.accept(value)
    assert same(accepted, value)
    assert same(codec.decode(codec.encode(accepted)), accepted)
    assert codec.immutable
    if codec.packed is not None and len(codec.encode(accepted)) == struct.calcsize(codec.packed):
        assert codec.encode(accepted) == struct.pack(f"<{codec.packed}", accepted)


WRONG: list[tuple[object, object]] = [
    (int, True), (int, 1.0), (int, "1"), (int, None), (float, 1), (float, True), (bool, 1), (str, b"a"), (bytes, "a"),
    (None, 0), (date, datetime(2020, 1, 1)), (datetime, date(2020, 1, 1)), (int | None, "a"), (tuple[int, str], (1,)),
    (tuple[int, str], [1, "a"]), (tuple[int, str], (True, "a")), (tuple[int, str], (1, "a", 2)), ("int8", 128),
    ("uint64", -1), ("int64", 1 << 63), ("int64", True), ("float32", 1e300),
    (pa.timestamp("s"), datetime(2020, 1, 1, 0, 0, 0, 1)),
    (pa.timestamp("s"), datetime(2020, 1, 1, tzinfo=UTC)), (pa.timestamp("s", "UTC"), datetime(2020, 1, 1)),
    (pa.timestamp("ns"), datetime(9999, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "value"), WRONG, ids=str)
def test_a_value_of_another_type_is_not_encodable(declared: object, value: object) -> None:
    codec: Codec[object] = codec_of(declared)  # type: ignore[arg-type]
    with pytest.raises(NotEncodable):
        codec.accept(value)


@pytest.mark.parametrize(
    "declared", [list[int], dict, object, tuple[int, ...], int | str, "nonsense", pa.list_(pa.int8())]
)
def test_a_type_without_a_codec_is_refused_and_never_pickled(declared: object) -> None:
    with pytest.raises(NoCodec):
        codec_of(declared)  # type: ignore[arg-type]


def test_an_instant_comes_back_in_utc_and_a_repeated_hour_stays_apart() -> None:
    codec: Codec[datetime] = codec_of(datetime)
    berlin = ZoneInfo("Europe/Berlin")
    twice = [datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    kept = [codec.accept(moment) for moment in twice]
    assert kept[1] - kept[0] == timedelta(hours=1)
    assert {moment.tzinfo for moment in kept} == {UTC}
    west = datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5)))
    assert codec.decode(codec.encode(codec.accept(west))) == west


POINT = pa.struct([
    ("x", pa.int32()), ("label", pa.string()), ("y", pa.float64()), ("inner", pa.struct([("flag", pa.bool_())])),
])  # fmt: skip


@given(
    st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    st.none() | TEXTS,
    st.none() | st.floats(),
    st.none() | st.tuples(st.none() | st.booleans()),
)
def test_a_struct_comes_back_whichever_of_its_fields_are_null(
    x: int | None, label: str | None, y: float | None, inner: tuple[bool | None] | None
) -> None:
    fields = (x, label, y, inner)
    codec: Codec[object] = codec_of(POINT)
    kept = codec.accept(fields)
    assert same(codec.decode(codec.encode(kept)), kept)
    assert same(kept, fields)
    assert same(codec.accept({"x": x, "label": label, "y": y, "inner": inner}), fields)


def test_a_struct_is_given_as_a_dict_or_a_tuple_and_read_by_the_names_of_its_fields() -> None:
    codec: Codec[object] = codec_of(POINT)
    kept = codec.accept({"x": 1, "inner": {"flag": True}})
    assert kept == (1, None, None, (True,))
    assert getattr(kept, "x") == 1  # noqa: B009
    with pytest.raises(NotEncodable, match="no field z"):
        codec.accept({"z": 1})
    with pytest.raises(NotEncodable, match="field x: expected int, got str"):
        codec.accept({"x": "1"})


@pytest.mark.parametrize("declared", [tuple[str, int], int | None, POINT, float, date, datetime, bool], ids=str)
@given(st.binary(max_size=40))
def test_damaged_bytes_are_an_error_or_another_value_and_never_anything_else(declared: object, data: bytes) -> None:
    codec: Codec[object] = codec_of(declared)  # type: ignore[arg-type]
    try:
        value = codec.decode(data)
    except Exception:
        return
    assert same(codec.decode(codec.encode(value)), value)


def test_whatever_pickle_takes_is_kept_if_that_is_declared() -> None:
    codec = Pickled[list[int]]()
    assert codec.decode(codec.encode([1, 2])) == [1, 2]
    assert not codec.immutable
    with pytest.raises(NotEncodable, match="pickle cannot encode a function"):
        codec.accept(lambda: None)


def test_values_of_a_former_codec_are_converted_through_any_number_of_steps() -> None:
    once = Migrated(StrCodec(), IntCodec(), str)
    assert (once.name, once.version, once.oldest, once.replaces) == ("str", 2, 1, frozenset({"int"}))
    twice = Migrated(codec_of(tuple[str, int]), once, lambda text: (text, len(text)))
    assert (twice.version, twice.oldest, twice.replaces) == (3, 1, frozenset({"int", "str"}))
    assert twice.migrate(IntCodec().encode(42), 1) == ("42", 2)
    assert twice.migrate(once.encode("abc"), 2) == ("abc", 3)
    assert twice.decode(twice.encode(("a", 1))) == ("a", 1)


def test_a_conversion_to_another_type_than_the_declared_one_is_refused() -> None:
    wrong: Codec[str] = Migrated(StrCodec(), IntCodec(), lambda number: number)  # type: ignore[arg-type, return-value]
    with pytest.raises(NotEncodable):
        wrong.migrate(IntCodec().encode(1), 1)


class TwoVersions(Codec[int]):
    name = "two"
    version = 2

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)


def test_a_codec_with_versions_of_its_own_cannot_hide_inside_another_value() -> None:
    with pytest.raises(ValueError, match="two has versions"):
        codec_of((int, TwoVersions()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two has versions of its own"):
        Migrated(TwoVersions(), IntCodec(), int)


@pytest.mark.parametrize("declared", [*(declared for declared, _ in LEAVES.values()), pa.struct([("a", pa.int64())])])
def test_a_codec_travels_with_the_program_that_declares_it(declared: type[object]) -> None:
    codec: Codec[object] = codec_of(declared)
    arrived = pickle.loads(pickle.dumps(codec))
    assert (arrived.name, arrived.immutable, arrived.exact) == (codec.name, codec.immutable, codec.exact)
