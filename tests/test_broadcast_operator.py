"""A control stream configures a keyed one: the same in all partitions, once in every cut, checked when it is back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.broadcast import (
    Broadcast,
    BroadcastMismatch,
    BroadcastProcess,
    BroadcastReadOnly,
    BroadcastStates,
    KeyedBroadcastProcess,
)
from snapshot.operators.keyed_function import NoKeyHere, ProcessContext
from snapshot.operators.operator import Input
from snapshot.testing.operators import BroadcastDiffers, OperatorHarness
from statebackend.ids import Uid
from statebackend.states.codecs import Codec, Pickled
from statebackend.states.declarations import NotOpen, ValueState
from statebackend.states.row_form import WrongValueType

SPENT = pa.schema([("user", pa.string()), ("country", pa.string()), ("amount", pa.int64())])
LIMIT = pa.schema([("country", pa.string()), ("limit", pa.int64())])
ALERT = pa.schema([("user", pa.string()), ("total", pa.int64())])
INPUTS = (Input(SPENT, ("user",), True), Input(LIMIT, (), False))


class Alerts(KeyedBroadcastProcess):
    """Users who have spent more than the limit of the country; a limit below 0 is taken back."""

    limits = Broadcast(str, int)
    total = ValueState(int, default=0)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount)
        if self.total.get() > self.limits.get(event.country, 10):
            ctx.emit((event.user, self.total.get()))

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
        assert (ctx.key, ctx.timestamp) == (None, None)
        if event.limit < 0:
            self.limits.remove(event.country)
        else:
            self.limits.put(event.country, event.limit)


OPERATOR = BroadcastProcess(Alerts(), INPUTS, ALERT)

Step = tuple[Literal[0], str, str, int] | tuple[Literal[1], str, int]

countries = st.sampled_from(["de", "fr", "is"])
payments: st.SearchStrategy[Step] = st.builds(
    lambda user, country, amount: (0, user, country, amount), st.sampled_from("abcd"), countries, st.integers(0, 9)
)
limits: st.SearchStrategy[Step] = st.builds(lambda country, limit: (1, country, limit), countries, st.integers(-5, 30))
steps = st.lists(payments | limits, max_size=12)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.tuples(steps, st.integers(1, 3)), min_size=1, max_size=3))
def test_what_control_rows_set_counts_for_all_keys_over_cuts_and_restores(lives: list[tuple[list[Step], int]]) -> None:
    known: dict[str, int] = {}
    totals: dict[str, int] = {}
    expected, found, snapshot = [], [], None
    with TemporaryDirectory() as scratch:
        for life, parallelism in lives:
            with OperatorHarness(OPERATOR, Path(scratch), parallelism=parallelism, snapshot=snapshot) as harness:
                for step in life:
                    harness.rows([step[1:]], [5] if step[0] == 0 else None, input=step[0])
                    if step[0] == 1:
                        known |= {step[1]: step[2]}
                        known = {country: limit for country, limit in known.items() if limit >= 0}
                        continue
                    _, user, country, amount = step
                    totals[user] = totals.get(user, 0) + amount
                    if totals[user] > known.get(country, 10):
                        expected.append((user, totals[user]))
                found += harness.emitted()
                snapshot = harness.cut()
    assert sorted(found) == sorted(expected)


@given(st.lists(st.tuples(st.integers(), st.text(max_size=3)), unique_by=lambda entry: entry[0]), st.randoms())
def test_equal_maps_have_equal_bytes_and_order_whatever_was_put_when(
    entries: list[tuple[int, str]], random: Any
) -> None:
    declared: dict[str, Broadcast[Any, Any]] = {"m": Broadcast("int64", str), "n": Broadcast(str, tuple[int, float])}
    entries = [(key % 2**62, value) for key, value in entries]
    first = opened(declared)
    for key, value in entries:
        first.maps["m"].put(key, "before")
        first.maps["m"].put(key, value)
    contents = dict(first.maps["m"])
    order = list(contents)
    random.shuffle(order)
    second = opened(dict(reversed(declared.items())))
    second.maps["m"].put(-1, "gone")
    for key in order:
        second.maps["m"].put(key, contents[key])
    second.maps["m"].remove(-1)
    assert first.to_bytes() == second.to_bytes()
    third = opened(declared, first.to_bytes())
    assert list(third.maps["m"].items()) == list(contents.items()) == sorted(contents.items())
    assert third.to_bytes() == first.to_bytes()


def opened(declared: Mapping[str, Broadcast[Any, Any]], restored: bytes | None = None) -> BroadcastStates:
    """States that may be written."""
    states = BroadcastStates(Uid("alerts"), declared, restored)
    states.gate.writable = True
    return states


def test_the_bytes_of_a_snapshot_stay_readable() -> None:
    golden = (
        b'{"format":1,"states":{"limits":{"entries":[["6465","0700000000000000"]],"keys":"str",'
        b'"values":{"name":"int","version":1}}}}'
    )
    states = opened({"limits": Broadcast(str, int), "new": Broadcast(int, int)}, golden)
    assert dict(states.maps["limits"]) == {"de": 7}
    assert dict(states.maps["new"]) == {}
    assert opened({"limits": Broadcast(str, int)}, golden).to_bytes() == golden


class Versioned(Codec[int]):
    """Ten times a number, since version 2."""

    name = "tens"
    immutable = True

    def __init__(self, version: int, oldest: int = 1) -> None:
        self.version, self.oldest = version, oldest

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)

    def migrate(self, data: bytes, version: int) -> int:
        return 10 * int(data)


def test_values_of_an_older_version_are_migrated() -> None:
    old = opened({"m": Broadcast(str, Versioned(1))})
    old.maps["m"].put("a", 3)
    assert dict(opened({"m": Broadcast(str, Versioned(2))}, old.to_bytes()).maps["m"]) == {"a": 30}


def some() -> bytes:
    states = opened({"m": Broadcast(str, Versioned(1))})
    states.maps["m"].put("a", 3)
    return states.to_bytes()


@pytest.mark.parametrize(
    ("declared", "data", "said"),
    [
        (
            {"m": Broadcast(str, int)},
            some(),
            "'m': it was declared as a map of str to tens, and is now one of str to int",
        ),
        ({"m": Broadcast(int, Versioned(1))}, some(), "a map of str to tens, and is now one of int to tens"),
        (
            {"m": Broadcast(str, Versioned(3, 2))},
            some(),
            "written by version 1 of tens, and the program reads.* 2 to 3",
        ),
        ({}, some(), "broadcast state 'm', which the program does not declare"),
        ({"m": Broadcast(str, Versioned(1))}, some()[:-3], "are no broadcast state"),
        ({"m": Broadcast(str, Versioned(1))}, some().replace(b'"33"', b'"zz"'), "are no broadcast state"),
        ({"m": Broadcast(str, Versioned(1))}, some().replace(b'"33"', b'"78"'), "are no broadcast state"),
        ({"m": Broadcast(str, Versioned(1))}, json.dumps({"format": 2}).encode(), "has format 2, .* reads format 1"),
        ({"m": Broadcast(str, Versioned(1))}, b"[]", "are no broadcast state"),
    ],
)
def test_state_that_does_not_fit_is_refused_with_its_name(declared: Any, data: bytes, said: str) -> None:
    with pytest.raises(BroadcastMismatch, match=f"^alerts: .*{said}"):
        BroadcastStates(Uid("alerts"), declared, data)


def test_a_value_that_could_change_is_kept_as_it_was_put() -> None:
    states = opened({"m": Broadcast(str, Pickled())})
    value = [1]
    states.maps["m"].put("a", value)
    value.append(2)
    states.maps["m"]["a"].append(3)
    assert states.maps["m"].get("a") == [1]
    assert states.maps["m"].get("b") is None


def test_a_map_is_read_as_any_mapping_and_refuses_what_is_not_of_its_types() -> None:
    limits = opened({"m": Broadcast(float, int)}).maps["m"]
    limits.put(1.5, 1)
    limits.put(-2.0, 2)
    assert (list(limits.items()), len(limits), 1.5 in limits, 1 in limits) == ([(-2.0, 2), (1.5, 1)], 2, True, False)
    with pytest.raises(KeyError):
        limits[7.0]
    for key, value in (("x", 1), (1.0, "x"), (float("nan"), 1)):
        with pytest.raises(WrongValueType, match="alerts: state 'm' is declared as"):
            limits.put(key, value)
    limits.clear()
    assert len(limits) == 0


class Misused(Alerts):
    """Does with itself what it is told to, for whichever row."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.what(self, ctx)

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
        self.what(self, ctx)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        self.what(self, ctx)


@pytest.mark.parametrize(
    "change", [lambda me: me.limits.put("de", 1), lambda me: me.limits.remove("de"), lambda me: me.limits.clear()]
)
def test_rows_and_timers_of_a_key_cannot_change_what_all_share(tmp_path: Path, change: Any) -> None:
    def what(me: Misused, ctx: ProcessContext) -> None:
        if ctx.key is not None and ctx.firing is None:
            ctx.timer(3)
        change(me)

    with OperatorHarness(BroadcastProcess(Misused(what), INPUTS, ALERT), tmp_path) as harness:
        harness.rows([("de", 1)], input=1)
        with pytest.raises(BroadcastReadOnly, match="'limits' can be changed in on_broadcast alone"):
            harness.rows([("a", "de", 1)], [1])
        with pytest.raises(BroadcastReadOnly):
            harness.watermark(3)


@pytest.mark.parametrize(
    "use", [lambda me, ctx: me.total.get(), lambda me, ctx: ctx.timer(4), lambda me, ctx: ctx.processing_timer(4)]
)
def test_a_control_row_has_no_key_whose_state_or_timers_it_could_use(tmp_path: Path, use: Any) -> None:
    with OperatorHarness(BroadcastProcess(Misused(use), INPUTS, ALERT), tmp_path) as harness:
        harness.rows([("a", "de", 1)], [1])
        with pytest.raises(NoKeyHere) as caught:
            harness.rows([("de", 1)], input=1)
        assert caught.value.__notes__ == ["in broadcast(Misused), for the row Row(country='de', limit=1)"]


def test_after_control_rows_keys_have_their_state_and_timers_again(tmp_path: Path) -> None:
    def what(me: Misused, ctx: ProcessContext) -> None:
        ctx.emit((ctx.key, ctx.timestamp))
        if ctx.key is not None and ctx.firing is None:
            me.total.set(1)
            ctx.timer(3)

    with OperatorHarness(BroadcastProcess(Misused(what), INPUTS, ALERT), tmp_path, parallelism=2) as harness:
        harness.watermark(2)
        harness.rows([("de", 1)], input=1)
        harness.rows([("a", "de", 1)], [4])
        harness.watermark(3)
        assert sorted(zip(harness.emitted(), harness.emitted_times(), strict=True), key=repr) == [
            (("a", 3), 3), (("a", 4), 4), ((None, None), 2), ((None, None), 2),
        ]  # fmt: skip


def test_what_control_rows_without_event_times_emit_has_that_of_the_watermark(tmp_path: Path) -> None:
    class Audited(Alerts):
        def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
            ctx.emit((event.country, event.limit))
            ctx.emit_to("audit", [event.country])
            ctx.emit_to("audit", [None])

    sides = {"audit": pa.schema([("country", pa.string())])}
    with OperatorHarness(BroadcastProcess(Audited(), INPUTS, ALERT, sides), tmp_path) as harness:
        harness.now = 1_000
        harness.rows([("de", 1)], input=1)
        assert harness.emitted_times() == [1_000]
        assert harness.emitted_times("audit") == [1_000, 1_000]
        harness.clear()
        for time in (2, 3):
            harness.watermark(time)
            harness.rows([("de", 1)], input=1)
        assert harness.emitted_times() == [2, 3]
        assert harness.emitted("audit") == [("de",), (None,)] * 2
        assert harness.emitted_times("audit") == [2, 2, 3, 3]


def test_partitions_that_disagree_are_found_at_the_cut(tmp_path: Path) -> None:
    class Forgetful(Alerts):
        def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
            self.limits.put("calls", id(self))

    with OperatorHarness(BroadcastProcess(Forgetful(), INPUTS, ALERT), tmp_path, parallelism=2) as harness:
        harness.rows([("de", 1)], input=1)
        with pytest.raises(BroadcastDiffers, match="2 different broadcast states"):
            harness.cut()


def test_what_can_be_seen_to_be_wrong_before_it_runs_is_found() -> None:
    class Twice(Alerts):
        def states(self) -> Mapping[str, Any]:
            return {"limits": ValueState(int)}

    assert OPERATOR.check() == []
    assert (OPERATOR.label, OPERATOR.timed, set(OPERATOR.states)) == ("broadcast(Alerts)", True, {"total"})
    assert BroadcastProcess(Twice(), (INPUTS[0], Input(LIMIT, ("country",), False)), ALERT).check() == [
        "the control stream is divided by keys; every partition must get the whole of it",
        "'limits' is declared as keyed state and as broadcast state",
    ]
    assert isinstance(Alerts.limits, Broadcast)
    with pytest.raises(NotOpen):
        Alerts().limits.get("de")
