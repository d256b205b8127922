"""Two states that do the same: the shadow adopts the files of the primary, and can take its role at any time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Final, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from statebackend.files import FileKind, FileSet
from statebackend.ids import Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import decode_keys
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.states.aggregates import AggregateTable
from statebackend.tables.values.aggregations import Count
from statebackend.testing.faulty_store import FaultyStore
from statebackend.testing.replicated_state import check_replicated_state


@pytest.mark.parametrize("backends", [("rocksdb",), ("heap",), ("heap", "rocksdb")], ids="-".join)
def test_shadows_and_primaries_are_what_dictionaries_say(
    backends: tuple[Literal["rocksdb", "heap"], ...], search_factor: int
) -> None:
    how_far = settings(max_examples=6 * search_factor, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    check_replicated_state(*(Options(backend=backend) for backend in backends), how_far=how_far)


# --- one by one -------------------------------------------------------------------------------------------------------

COUNTS: Final = Operator("counts", str, {"counts": AggregateTable(rows=Count())}, max_parallelism=4)
KEYS: Final = [f"a key of some length, number {number}" for number in range(400)]

Kind = Literal["heap", "rocksdb"]


class Pair:
    """A primary and a shadow, which count the same keys."""

    def __init__(self, folder: Path, backend: Kind) -> None:
        self._folder, self._numbers, self._options = folder, count(), Options(backend=backend)
        self.store = FaultyStore(token_hex(8))
        self.primary, self.shadow = self.opened("a"), self.opened("b")
        self.shadow.become_shadow()

    def opened(self, name: str, files: FileSet | None = None) -> KeyedState:
        def path() -> str:
            return f"shared/{name}-{next(self._numbers)}.sst"

        return KeyedState(COUNTS, self._folder / name, self.store, path, files, self._options)

    def count(self, keys: Sequence[str] = KEYS) -> None:
        for state in (self.primary, self.shadow):
            count_in(state, keys)

    def cut(self, number: int) -> FileSet:
        """Cut in both; what the primary reports."""
        self.shadow.cut(epoch(number))
        return self.primary.snapshot(epoch(number))

    def complete(self, number: int, files: FileSet) -> None:
        for state in (self.primary, self.shadow):
            state.completed(epoch(number), files)

    def switch(self) -> None:
        self.primary, self.shadow = self.shadow, self.primary
        self.shadow.become_shadow()
        self.primary.become_primary()

    def restored(self, files: FileSet) -> dict[object, int]:
        with self.opened(f"again-{next(self._numbers)}", files) as state:
            return counts_of(state)

    def close(self) -> None:
        self.store.go_on()
        self.primary.close()
        self.shadow.close()
        self.store.clear()


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def count_in(state: KeyedState, keys: Sequence[str]) -> None:
    state["counts"].update(state.keys(pa.array(keys, pa.string())), {})


def counts_of(state: KeyedState) -> dict[object, int]:
    found = state["counts"].keys_and_results()
    keys = decode_keys(found.keys, state.key_type).to_pylist()
    return dict(zip(keys, found.results["rows"].to_pylist(), strict=True))


def settle(state: KeyedState, pending: int = 0) -> None:
    """Wait until no more cuts than that are without a place in the backend and in a file set."""
    deadline = time.monotonic() + 30
    while state.statistics().background.epochs_pending > pending:
        assert time.monotonic() < deadline, "a cut has found no place for 30 s"
        assert state.poll(0.01) == []


@pytest.fixture(params=["heap", "rocksdb"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, request.param)
    yield made
    made.close()


def paths(files: FileSet) -> set[str]:
    return {file.path for file in files.files}


def test_a_shadow_uploads_nothing_and_says_nothing(pair: Pair) -> None:
    pair.count()
    files = pair.cut(1)
    pair.complete(1, files)
    settle(pair.shadow)
    assert {info.path for info in pair.store.list()} == paths(files)
    assert pair.shadow.statistics().background.uploaded_bytes == 0


def test_a_new_primary_goes_on_from_the_files_of_the_former_one(pair: Pair) -> None:
    pair.count()
    first = pair.cut(1)
    pair.complete(1, first)
    settle(pair.shadow)
    pair.switch()
    pair.count(KEYS[:10])
    second = pair.cut(2)
    assert paths(first) < paths(second)
    assert pair.restored(second) == {key: 2 if key in KEYS[:10] else 1 for key in KEYS}


def all_change_from_the_first_epoch_on(pair: Pair) -> None:
    """Let the primary write accumulators that refer to the keys of its first cut, and a shadow join there.

    That shadow has kept no keys, and would refer to those of its own next cut.
    """
    pair.count()
    first = pair.cut(1)
    pair.complete(1, first)
    pair.shadow.close()
    pair.shadow = pair.opened("joined", first)
    pair.shadow.become_shadow()
    pair.count()


def test_a_new_primary_refers_to_no_keys_of_a_cut_for_which_it_has_adopted_the_files_of_another(pair: Pair) -> None:
    all_change_from_the_first_epoch_on(pair)
    second = pair.cut(2)
    assert [file.kind for file in second.files] == [FileKind.BASE, FileKind.DELTA]
    pair.complete(2, second)
    settle(pair.shadow)
    pair.switch()
    for number in range(3, 6):
        pair.count()
        files = pair.cut(number)
        assert pair.restored(files) == dict.fromkeys(KEYS, number)
        pair.complete(number, files)
    assert [file.kind for file in files.files] == [FileKind.BASE, FileKind.DELTA]


def test_what_a_shadow_has_cut_refers_to_no_cut_of_its_own_that_is_adopted_later(pair: Pair) -> None:
    all_change_from_the_first_epoch_on(pair)
    second = pair.cut(2)
    pair.count()
    pair.cut(3)
    pair.complete(2, second)
    settle(pair.shadow, pending=1)
    pair.switch()
    pair.count(KEYS[:1])
    assert pair.restored(pair.cut(4)) == {key: 4 if key == KEYS[0] else 3 for key in KEYS}


def test_what_a_new_primary_cuts_refers_to_no_cut_whose_adoption_it_awaits(pair: Pair) -> None:
    all_change_from_the_first_epoch_on(pair)
    second = pair.primary.snapshot(epoch(2))
    pair.complete(2, second)
    pair.switch()
    pair.primary.cut(epoch(2))
    pair.count()
    pair.primary.cut(epoch(3))
    settle(pair.shadow)
    pair.count(KEYS[:1])
    assert pair.restored(pair.primary.snapshot(epoch(4))) == {key: 4 if key == KEYS[0] else 3 for key in KEYS}


def test_what_a_shadow_has_cut_since_the_newest_complete_epoch_is_in_its_first_set_as_a_primary(pair: Pair) -> None:
    pair.count(KEYS[:1])
    pair.complete(1, pair.cut(1))
    pair.count(KEYS[1:2])
    pair.shadow.cut(epoch(2))  # abandoned, as the primary dies
    pair.count(KEYS[2:3])
    pair.switch()
    assert pair.restored(pair.cut(3)) == dict.fromkeys(KEYS[:3], 1)


def test_an_epoch_that_is_complete_before_the_shadow_has_cut_it_waits_for_the_cut(pair: Pair) -> None:
    pair.count()
    count_in(pair.primary, KEYS[:1])
    files = pair.primary.snapshot(epoch(1))
    pair.complete(1, files)
    count_in(pair.shadow, KEYS[:1])
    pair.shadow.cut(epoch(1))
    settle(pair.shadow)
    pair.count(KEYS[:1])
    pair.switch()
    pair.primary.completed(epoch(1), files)
    second = pair.cut(2)
    assert paths(files) < paths(second)
    assert pair.restored(second) == {key: 3 if key == KEYS[0] else 1 for key in KEYS}


def test_a_shadow_goes_back_in_place_to_the_files_of_the_primary(pair: Pair) -> None:
    pair.count()
    files = pair.cut(1)
    pair.complete(1, files)
    settle(pair.shadow)
    pair.count()
    pair.shadow.cut(epoch(2))
    assert pair.shadow.rewind(epoch(1), files, lambda: "shared/rewound.sst")
    assert counts_of(pair.shadow) == dict.fromkeys(KEYS, 1)
    pair.shadow.become_primary()
    count_in(pair.shadow, KEYS)
    assert pair.restored(pair.shadow.snapshot(epoch(3))) == dict.fromkeys(KEYS, 2)


def test_a_primary_that_becomes_a_shadow_reports_nothing_that_it_was_at(pair: Pair) -> None:
    pair.store.stall()
    pair.count()
    pair.primary.cut(epoch(1))
    pair.shadow.cut(epoch(1))
    pair.switch()
    pair.store.go_on()
    files = pair.cut(2)
    pair.complete(2, files)
    settle(pair.shadow)
    assert pair.restored(files) == dict.fromkeys(KEYS, 1)
