"""Schemas as text, and which of them may follow which."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.entries import state_id
from statebackend.ids import Uid
from statebackend.keys.types import KeyType
from statebackend.states.codecs import Codec, IntCodec, Migrated, StrCodec
from statebackend.states.declarations import Declaration, ListState, MapState, ValueState
from statebackend.states.schema import BrokenSchema, CodecSpec, Schema, StateKind, StateMismatch, StateSpec
from statebackend.states.schema_fit import fitted
from statebackend.states.ttl import Ttl

UID = Uid("count")
SAME_NUMBER = ("plumless", "buckeroo")
"""Two names with the same CRC-32."""


def schema(key: object = str, max_parallelism: int = 128, **states: Declaration[object]) -> Schema:
    return Schema(
        UID, KeyType.of(key), max_parallelism, tuple(declared.spec(name) for name, declared in states.items())
    )


def test_a_schema_comes_back_from_its_text() -> None:
    written = schema(
        (str, int),
        total=ValueState(int),
        words=ListState(str, ttl=Ttl("5ms", time="event")),
        prices=MapState(str, float),
    )
    table = StateSpec("sums", StateKind.TABLE, detail='{"count": {"of": null}}')
    written = replace(written, states=(*written.states, table), dropped=("old",))
    assert Schema.from_json(written.to_json()) == written
    assert Schema.from_json(written.to_json()).to_json() == written.to_json()


def test_the_text_of_a_schema_is_this_for_ever() -> None:
    assert schema(int, total=ValueState(int, ttl=Ttl("1ms"))).to_json() == (
        '{"dropped":[],"format":1,"key_type":"int64","max_parallelism":128,"states":[{"codec":{"name":"int","oldest":1,'
        '"version":1},"detail":null,"expires":"processing","kind":"value","map_keys":null,"name":"total",'
        '"stored_as":"total"}],"uid":"count"}'
    )


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(BrokenSchema):
        Schema.from_json(text)


@given(st.data())
def test_a_schema_of_which_something_is_missing_or_wrong_is_refused(data: st.DataObject) -> None:
    found = json.loads(schema(total=ValueState(int)).to_json())
    part = data.draw(st.sampled_from([found, found["states"][0], found["states"][0]["codec"]]))
    name = data.draw(st.sampled_from(sorted(set(part) - {"map_keys", "expires", "detail", "codec"})))
    if data.draw(st.booleans()):
        del part[name]
    else:
        part[name] = 1.5
    with pytest.raises(BrokenSchema):
        Schema.from_json(json.dumps(found))


@pytest.mark.parametrize("groups", [-1, 0, 32769, 2**64])
def test_a_schema_of_more_key_groups_than_there_are_is_refused(groups: int) -> None:
    text = schema(total=ValueState(int)).to_json().replace('"max_parallelism":128', f'"max_parallelism":{groups}')
    with pytest.raises(BrokenSchema, match=f"maximum parallelism {groups} is out of bounds: 1 to 32768"):
        Schema.from_json(text)
    with pytest.raises(ValueError, match="out of bounds"):
        schema(max_parallelism=groups)


def test_a_newer_format_is_refused_by_its_number() -> None:
    with pytest.raises(BrokenSchema, match="format 2, and this program reads format 1"):
        Schema.from_json(schema().to_json().replace('"format":1', '"format":2'))


def test_two_states_cannot_share_a_name_or_a_number() -> None:
    assert state_id(SAME_NUMBER[0]) == state_id(SAME_NUMBER[1])
    with pytest.raises(StateMismatch, match="choose another name"):
        Schema(UID, KeyType.of(str), 128, tuple(ValueState(int).spec(name) for name in SAME_NUMBER))
    twice = ValueState(int).spec("total")
    with pytest.raises(StateMismatch, match="2 states have this name"):
        Schema(UID, KeyType.of(str), 128, (twice, twice))


def test_the_same_declaration_goes_on() -> None:
    before = schema(total=ValueState(int), words=ListState(str)).begun()
    assert fitted(before, schema(total=ValueState(int), words=ListState(str))) == before


def test_a_new_state_begins_empty_beside_the_others() -> None:
    after = fitted(schema(total=ValueState(int)), schema(words=ListState(str), total=ValueState(int)))
    assert [spec.stored_as for spec in after.states] == ["words", "total"]


WRONG: dict[str, tuple[Schema, Schema]] = {
    "key type was string": (schema(str), schema(int)),
    "maximum parallelism was 128": (schema(), schema(max_parallelism=64)),
    "state 'a': its kind was value, and is declared as list": (schema(a=ValueState(int)), schema(a=ListState(int))),
    "state 'a': its codec was int, and is declared as float": (schema(a=ValueState(int)), schema(a=ValueState(float))),
    "state 'a': its type of map keys was str": (schema(a=MapState(str, int)), schema(a=MapState(int, int))),
    "state 'a': its time in which it expires was none": (
        schema(a=ValueState(int)),
        schema(a=ValueState(int, ttl=Ttl("1ms"))),
    ),
    "state 'a': its time in which it expires was processing": (
        schema(a=ValueState(int, ttl=Ttl("1ms"))), schema(a=ValueState(int, ttl=Ttl("1ms", time="event")))
    ),
    "state 'a': it is in the snapshot and declared no longer": (schema(a=ValueState(int)), schema()),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_was_declared_otherwise_is_refused_by_name(message: str) -> None:
    before, after = WRONG[message]
    with pytest.raises(StateMismatch, match=f"^count: .*{message}"):
        fitted(before, after)


def test_another_operator_is_refused() -> None:
    with pytest.raises(StateMismatch, match="the uid was count, and is declared as sum"):
        fitted(schema(), replace(schema(), uid=Uid("sum")))


def test_another_detail_is_refused_and_the_same_said_otherwise_is_not() -> None:
    def tables(detail: str) -> Schema:
        return Schema(UID, KeyType.of(str), 128, (StateSpec("t", StateKind.TABLE, detail=detail),))

    assert fitted(tables('{"a": 1, "b": 2}'), tables('{"b":2,"a":1}')) == tables('{"a":1,"b":2}')
    with pytest.raises(StateMismatch, match="its detail was"):
        fitted(tables("1"), tables("2"))


def test_a_state_with_a_codec_does_not_become_one_without() -> None:
    with_codec = schema(a=ValueState(int))
    without = replace(with_codec, states=(replace(with_codec.states[0], codec=None),))
    for before, after in ((with_codec, without), (without, with_codec)):
        with pytest.raises(StateMismatch, match="its codec was"):
            fitted(before, after)


def test_a_renamed_state_stays_where_it_is_and_needs_to_be_renamed_only_once() -> None:
    once = fitted(schema(old=ValueState(int)).begun(), schema(new=ValueState(int)), renamed={"old": "new"})
    assert (once.state("new").stored_as, once.state("new").id) == ("old", state_id("old"))
    assert fitted(once, schema(new=ValueState(int))) == once
    twice = fitted(once, schema(newest=ValueState(int)), renamed={"new": "newest"})
    assert twice.state("newest").stored_as == "old"


def test_a_new_state_with_the_former_name_of_a_renamed_one_lies_elsewhere() -> None:
    after = fitted(schema(a=ValueState(int)), schema(a=ValueState(int), b=ValueState(int)), renamed={"a": "b"})
    assert after.state("b").stored_as == "a"
    assert after.state("a").stored_as != "a"


def test_two_states_can_swap_their_names() -> None:
    before = schema(a=ValueState(int), b=ValueState(str))
    after = fitted(before, schema(a=ValueState(str), b=ValueState(int)), renamed={"a": "b", "b": "a"})
    assert {spec.name: spec.stored_as for spec in after.states} == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"x": "c"}, "'x': it shall be renamed to 'c', but is not in the snapshot"),
        ({"a": "x"}, "'x': 'a' shall be renamed to it, but it is not declared"),
        ({"a": "b"}, "'b': 'a' shall be renamed to it, but it is in the snapshot itself"),
        ({"a": "c", "b": "c"}, "'c': more than one state shall become it"),
    ],
)
def test_a_renaming_that_makes_no_sense_is_refused(renamed: dict[str, str], message: str) -> None:
    with pytest.raises(StateMismatch, match=message):
        fitted(
            schema(a=ValueState(int), b=ValueState(int)), schema(b=ValueState(int), c=ValueState(int)), renamed=renamed
        )


def test_a_dropped_state_never_comes_back_under_its_name() -> None:
    gone = fitted(schema(a=ValueState(int)), schema(), allow_dropped=frozenset({"a"}))
    assert gone.dropped == ("a",)
    again = fitted(Schema.from_json(gone.to_json()), schema(a=ValueState(int)))
    assert again.state("a").stored_as == "a#2"
    assert again.dropped == ("a",)
    gone_again = fitted(again, schema(), allow_dropped=frozenset({"a"}))
    assert fitted(gone_again, schema(a=ValueState(str))).state("a").stored_as == "a#3"


class Versioned(Codec[int]):
    name = "versioned"

    def __init__(self, version: int, oldest: int = 1) -> None:
        self.version, self.oldest = version, oldest

    def encode(self, value: int) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> int:
        return len(data)


def versioned(version: int, oldest: int = 1) -> Schema:
    return schema(a=ValueState(Versioned(version, oldest)))


def test_older_versions_are_fine_while_the_codec_reads_them_and_are_remembered() -> None:
    first = versioned(1).begun()
    third = fitted(first, versioned(3))
    assert third.state("a").codec == CodecSpec("versioned", 3, oldest=1)
    with pytest.raises(StateMismatch, match=r"versions 1 to 3 of versioned, .* reads versions 2 to 4"):
        fitted(third, versioned(4, oldest=2))
    with pytest.raises(StateMismatch, match="reads versions 1 to 2"):
        fitted(third, versioned(2))


def test_a_state_that_began_later_has_no_older_versions() -> None:
    assert versioned(3).begun().state("a").codec == CodecSpec("versioned", 3, oldest=3)
    beside = fitted(schema(), versioned(3))
    assert fitted(beside, versioned(4, oldest=2)).state("a").codec == CodecSpec("versioned", 4, oldest=3)


def test_a_codec_that_migrates_another_one_may_follow_it() -> None:
    migrating = schema(a=ValueState(Migrated(StrCodec(), IntCodec(), str)))
    after = fitted(schema(a=ValueState(int)).begun(), migrating)
    assert after.state("a").codec == CodecSpec("str", 2, oldest=1)
    assert fitted(Schema.from_json(after.to_json()), migrating) == after
    with pytest.raises(StateMismatch, match="versions 1 to 2 of str, and the declared str reads versions 1 to 1"):
        fitted(after, schema(a=ValueState(str)))
