"""Random numbers of keys: each key has a sequence of its own, which nothing else changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from snapshot.operators.function_operator import KeyedProcess
from snapshot.operators.keyed_function import NoKeyHere, ProcessContext, WithoutRandom
from snapshot.operators.operator import Input
from snapshot.testing.operators import OperatorHarness
from statebackend.columns import schema_of
from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.random_state import KeyedRandom, RandomState, SeedIsFixed

COLUMNS = {"user": str, "how": str}
DRAWS = ("random", "gauss", "bits", "shuffled", "chosen")


def drawn(random: Any, how: str) -> str:
    match how:
        case "random":
            return repr(random.random())
        case "gauss":
            return repr(random.gauss(0, 1))
        case "bits":
            return repr(random.getrandbits(100))
        case "shuffled":
            cards = list(range(5))
            random.shuffle(cards)
            return repr(cards)
        case _:
            return repr(random.choice("abc") + random.sample("defghi", 3)[0])


class Draws(KeyedProcess):
    output: ClassVar[dict[str, Any]] = {"user": str, "drawn": str}
    chance = RandomState()

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, drawn(ctx.random, event.how)))


given_rows = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(DRAWS)), max_size=12)


@settings(max_examples=settings().max_examples // 4)
@given(given_rows, given_rows, st.integers(1, 3))
def test_the_draws_of_a_key_follow_from_its_own_rows_wherever_these_are_cut(
    before: list[tuple[str, str]], after: list[tuple[str, str]], parallelism: int
) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with OperatorHarness(Draws, folder, columns=COLUMNS, key="user", parallelism=2) as harness:
            harness.rows(before)
            found, snapshot = harness.emitted(), harness.cut()
        with OperatorHarness(
            Draws, folder, columns=COLUMNS, key="user", parallelism=parallelism, snapshot=snapshot
        ) as harness:
            harness.rows(after)
            found = [*found, *harness.emitted()]
        for user in "abcd":
            alone = [row for row in (*before, *after) if row[0] == user]
            with OperatorHarness(Draws, folder, columns=COLUMNS, key="user") as harness:
                harness.rows(alone)
                assert harness.emitted() == [row for row in found if row[0] == user]


@pytest.fixture
def dice(tmp_path: Path) -> Any:
    with KeyedState.open(Operator("dice", key=str, states={"chance": RandomState()}), str(tmp_path)) as state:
        state.set_key("ann")
        yield state


def test_the_numbers_of_a_key_stay_those_that_they_have_always_been(dice: Any) -> None:
    numbers: KeyedRandom = dice["chance"].random
    assert [numbers.getrandbits(64), numbers.getrandbits(3), numbers.random()] == GOLDEN
    dice.set_key("bob")
    assert numbers.getrandbits(64) != GOLDEN[0]
    dice.set_key("ann")
    dice["chance"].clear()
    assert numbers.getrandbits(64) == GOLDEN[0]


GOLDEN = [6241600841660411673, 7, 0.018482771666550546]


def test_they_are_evenly_spread(dice: Any) -> None:
    numbers: KeyedRandom = dice["chance"].random
    sides = Counter(numbers.randint(1, 6) for _ in range(6_000))
    assert set(sides) == set(range(1, 7))
    assert all(850 < count < 1150 for count in sides.values())
    means = [sum(numbers.random() for _ in range(1_000)) / 1_000 for _ in range(3)]
    assert all(0.46 < mean < 0.54 for mean in means)
    assert {numbers.getrandbits(bits).bit_length() <= bits for bits in range(200)} == {True}
    assert max(numbers.getrandbits(130) for _ in range(50)).bit_length() > 125
    firsts = set()
    for key in range(1_000):
        dice.set_key(f"key-{key}")
        firsts.add(numbers.getrandbits(64))
    assert len(firsts) == 1_000


def test_a_seed_of_ones_own_is_refused(dice: Any) -> None:
    numbers: KeyedRandom = dice["chance"].random
    with pytest.raises(SeedIsFixed, match="dice: random numbers of a key are seeded by the key"):
        numbers.seed(1)
    with pytest.raises(SeedIsFixed):
        numbers.setstate(())
    with pytest.raises(SeedIsFixed):
        numbers.getstate()
    with pytest.raises(ValueError, match="0 bits or more, not -1"):
        numbers.getrandbits(-1)


class Undeclared(Draws):
    chance = None  # type: ignore[assignment]


def test_a_function_that_draws_has_to_declare_it(tmp_path: Path) -> None:
    with (
        OperatorHarness(Undeclared, tmp_path, columns=COLUMNS, key="user") as harness,
        pytest.raises(WithoutRandom, match=r"process\(Undeclared\): ctx.random.random .* `chance = RandomState\(\)`"),
    ):
        harness.rows([("a", "random")])


class DrawsForAll(KeyedBroadcastProcess):
    chance = RandomState()

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, drawn(ctx.random, event.how)))

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
        ctx.random.random()


def test_where_there_is_no_key_there_are_no_numbers_and_later_there_are(tmp_path: Path) -> None:
    schema = schema_of(COLUMNS)
    inputs = (Input(schema, ("user",), False), Input(schema, (), False))
    operator = BroadcastProcess(DrawsForAll(), inputs, schema_of(Draws.output))
    with OperatorHarness(operator, tmp_path) as harness:
        harness.rows([("a", "random")])
        with pytest.raises(NoKeyHere, match="no key here whose numbers these would be"):
            harness.rows([("a", "random")], input=1)
