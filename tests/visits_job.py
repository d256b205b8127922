"""The tree of a job that never ran, made of tables: for tests of what is done with state that `shop_job` has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa

from recovery.offline.job_tree import open_tree
from recovery.savepoints.bootstrapping import StateFrom, bootstrap, declared_in
from recovery.savepoints.editing import ChangedBy, edit
from snapshot import Collection, KeyedProcess, ProcessContext, Program, Stream, ToDriver
from snapshot.operators.row_class import Row
from statebackend import KeyedState, ListState, MapState, ValueState
from statebackend.ids import KeyGroup
from statebackend.keygroups import key_group_of
from statebackend.keys.types import KeyType
from statebackend.states.ttl import Ttl

UID: Final = "visits"
LIFE: Final = 1000
RATES: Final = {f"visitor-{number}": number / 8192 for number in range(12)}
_TTL: Final = Ttl(f"{LIFE}ms", "event")


class Visits(KeyedProcess):
    """What is kept of each visitor."""

    output: ClassVar = {"who": str}
    rate = ValueState(float)
    last = ValueState(str, ttl=_TTL)
    pages = ListState(str, ttl=_TTL)
    seen = MapState(str, int, ttl=_TTL)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        ctx.emit((event.who,))


class MoreVisits(Visits):
    """A later version, with one state more."""

    score = ValueState(int)


def program(of: type[Visits] = Visits) -> Program:
    visits = Stream.read(Collection([("visitor-0",)], pa.schema([("who", pa.string())])), uid="source")
    return visits.key_by("who").process(of, uid=UID).write(ToDriver(), uid="out")


def tree_of_visits(folder: Path) -> Path:
    """A tree in which each visitor has a rate, and nothing else, in two partitions."""
    rates = pa.table({"key": list(RATES), "value": list(RATES.values())})
    bootstrap(program(), str(folder / "tree"), [StateFrom(UID, "rate", rates)], name="visits")
    return folder / "tree"


def visit(tree: Path, key: str, change: Callable[[KeyedState], object], of: type[Visits] = Visits) -> None:
    """Let a program change what is kept of a visitor; the other partition's files stay as they are."""

    def changed(state: KeyedState) -> None:
        if group_of(key) in state.groups:
            state.set_key(key)
            change(state)

    edit(open_tree(str(tree)), "newest", [ChangedBy(declared_in(program(of))[UID], changed)])


def group_of(key: str) -> KeyGroup:
    """The key group of a visitor; of the 128, the first half is the first partition's."""
    return key_group_of(KeyType.of(str).hash(key), 128)


def scored(folder: Path) -> tuple[Path, str, str]:
    """A tree that knows the state `score`, but in the first partition's newest file only; a visitor of the first
    partition, who has 5, and one of the second.
    """
    tree = tree_of_visits(folder)
    first, second = (next(key for key in RATES if (group_of(key) < 64) == is_first) for is_first in (True, False))
    visit(tree, first, lambda state: state["score"].set(5), MoreVisits)
    return tree, first, second
