"""Two keyed streams, one state: whatever order their rows come in, and wherever it is cut."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.function_operator import ConnectedProcess, KeyedCoProcess
from snapshot.operators.keyed_function import ProcessContext
from snapshot.operators.operator import Input
from snapshot.testing.operators import OperatorHarness
from statebackend.states.declarations import ListState, ValueState

ORDERS = pa.schema([("number", pa.int64()), ("amount", pa.int64())])
CLIENTS = pa.schema([("name", pa.string()), ("id", pa.int64())])
NAMED = pa.schema([("name", pa.string()), ("amount", pa.int64())])
INPUTS = (Input(ORDERS, ("number",), True), Input(CLIENTS, ("id",), True))


class Naming(KeyedCoProcess):
    """Orders wait for the name of their client."""

    name = ValueState(str)
    waiting = ListState(int)

    def on_first(self, order: Any, ctx: ProcessContext) -> None:
        name = self.name.get()
        if name is None:
            self.waiting.add(order.amount)
            ctx.timer(100)
        else:
            ctx.emit((name, order.amount))

    def on_second(self, client: Any, ctx: ProcessContext) -> None:
        self.name.set(client.name)
        for amount in self.waiting.get():
            ctx.emit((client.name, amount))
        self.waiting.clear()

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        for amount in self.waiting.get():
            ctx.emit((None, amount))
        self.waiting.clear()


OPERATOR = ConnectedProcess(Naming(), INPUTS, NAMED)

Step = tuple[Literal[0], int, int] | tuple[Literal[1], str, int]

ids = st.integers(1, 4)
orders: st.SearchStrategy[Step] = st.builds(lambda number, amount: (0, number, amount), ids, st.integers(0, 99))
clients: st.SearchStrategy[Step] = st.builds(lambda name, number: (1, name, number), st.sampled_from("xyz"), ids)
steps = st.lists(orders | clients, max_size=12)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.tuples(steps, st.integers(1, 3)), min_size=1, max_size=3))
def test_both_streams_share_the_state_of_a_key_over_cuts_and_restores(lives: list[tuple[list[Step], int]]) -> None:
    found: list[tuple[object, ...]] = []
    snapshot = None
    with TemporaryDirectory() as scratch:
        for at, (life, parallelism) in enumerate(lives):
            with OperatorHarness(OPERATOR, Path(scratch), parallelism=parallelism, snapshot=snapshot) as harness:
                for step in life:
                    harness.rows([step[1:]], [7], input=step[0])
                if at == len(lives) - 1:
                    harness.watermark(100)
                found += harness.emitted()
                snapshot = harness.cut()
    assert sorted(found, key=repr) == sorted(expected([step for life, _ in lives for step in life]), key=repr)


def expected(steps: list[Step]) -> list[tuple[object, ...]]:
    """Every order once, with the name that its client had then, or was given first after it."""
    names: dict[int, str] = {}
    waiting: dict[int, list[int]] = {}
    made: list[tuple[object, ...]] = []
    for step in steps:
        if step[0] == 0:
            _, number, amount = step
            if number in names:
                made.append((names[number], amount))
            else:
                waiting.setdefault(number, []).append(amount)
        else:
            _, name, number = step
            names[number] = name
            made += [(name, amount) for amount in waiting.pop(number, [])]
    return made + [(None, amount) for amounts in waiting.values() for amount in amounts]


def test_keys_of_different_types_and_times_of_one_input_alone_are_found_before_it_runs() -> None:
    assert OPERATOR.check() == []
    assert OPERATOR.label == "connected(Naming)"
    texts = ConnectedProcess(Naming(), (INPUTS[0], Input(CLIENTS, ("name",), False)), NAMED)
    assert texts.check() == [
        "one of its inputs has event times, and the other has none",
        "the keys of its inputs are of different types, int64 (number) and string (name): cast one of them",
    ]
    assert ConnectedProcess(Naming(), (INPUTS[0], Input(CLIENTS, (), True)), NAMED).check() == [
        "the second input has no key"
    ]
    odd = Input(pa.schema([("a b", pa.int64())]), ("a b",), True)
    assert [problem[:40] for problem in ConnectedProcess(Naming(), (INPUTS[0], odd), NAMED).check()] == [
        "input 2: the column 'a b' cannot be an a"
    ]


def test_both_methods_are_needed() -> None:
    class Half(KeyedCoProcess):
        def on_first(self, event: Any, ctx: ProcessContext) -> None:
            raise AssertionError

    assert ConnectedProcess(Half(), INPUTS, NAMED).check() == ["Half has no method on_second(self, event, ctx)"]


def test_an_exception_says_which_row_of_which_key(tmp_path: Path) -> None:
    class Failing(Naming):
        def on_second(self, client: Any, ctx: ProcessContext) -> None:
            raise KeyError(client.name)

    with OperatorHarness(ConnectedProcess(Failing(), INPUTS, NAMED), tmp_path) as harness:
        with pytest.raises(KeyError) as caught:
            harness.rows([("x", 3)], [1], input=1)
        assert caught.value.__notes__ == ["in connected(Failing), for the key 3 and the row Row(name='x', id=3)"]
