"""Lives of a job whose state is cut again and again: each one a process that goes on from the newest snapshot.

Invariant: what a life does to its state follows from the number of the epoch and the generation alone, so what
a snapshot must hold can be computed without looking at any state; and no two lives do the same.

A process that has imported everything forks one child per life, as imports take longer than most lives. It reads
orders from its standard input, one a line, and its children say on its standard output what they have come to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, NoReturn
from unittest.mock import patch

import pyarrow as pa

from statebackend import fail_points
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import key_group_of, owner_of, range_of
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots import consolidation
from statebackend.snapshots.consolidation import Policy
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import ListState, MapState, ValueState
from statebackend.stores.local_store import LocalStore
from statebackend.tables.values.aggregations import Count, Sum

GROUPS: Final = 12
TABLE: Final = AggregateTable({"cents": int}, visits=Count(), cents=Sum("cents"))
OPERATORS: Final = {
    "all kinds": Operator(
        "visitors",
        key=str,
        states={
            "points": ValueState(int, default=0),
            "notes": ListState(int),
            "pages": MapState(str, int),
            "spent": TABLE,
        },
        max_parallelism=GROUPS,
    ),
    "a table": Operator("visitors", key=str, states={"spent": TABLE}, max_parallelism=GROUPS),
}
"""A cut of nothing but a table may hold all that there is, and then is a base."""

KEYS: Final = tuple(f"visitor-{number}" for number in range(250))
GROUP_OF: Final = {key: key_group_of(KeyType.of(str).hash(key), GROUPS) for key in KEYS}
PAGES: Final = ("home", "shop", "help")

BORN, READY, COMPLETED, CLOSED, ENDED = "born", "ready", "completed", "closed", "ended"
"""What is said of a life, besides the fail points that it comes to and its `PHASES`."""

OPENING, CHECKING, UPDATING, WAITING, COMPLETING, CLEANING = (
    "opening", "checking", "updating", "waiting", "completing", "cleaning",
)  # fmt: skip
PHASES: Final = (OPENING, CHECKING, UPDATING, WAITING, COMPLETING, CLEANING)
"""What the thread that owns the state begins to do."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a life is to be like. It goes on until it is killed, unless it is the last."""

    store: str
    local: str
    operator: str
    snapshot: str
    """The epoch of the newest complete snapshot, as others see it; empty if there is none."""
    parallelism: int
    space_amplification: float = 1.1
    memory: int = 8 << 20
    kill_at: str = ""
    """The fail point at which it kills itself, when it comes there for the time `kill_when`."""
    kill_when: int = 0
    last: bool = False


# --- what is done to state, and what it must hold then ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One thing done to one state of one key."""

    state: str
    action: str
    key: str
    part: str
    number: int


_ACTIONS: Final = (
    ("points", "add"), ("points", "add"), ("points", "clear"), ("notes", "add"), ("notes", "add"), ("notes", "clear"),
    ("pages", "put"), ("pages", "put"), ("pages", "remove"), ("pages", "clear"),
    ("spent", "add"), ("spent", "add"), ("spent", "remove"),
)  # fmt: skip


_ALL_CHANGE: Final = 0.4
"""In so many epochs all keys of the table change, which are then cut in another form."""


def changes_of(epoch: Epoch) -> list[Change]:
    """What happens between the epoch before and this one, in order; additions to the table precede removals."""
    random = Random(str(epoch))
    if random.random() < _ALL_CHANGE:
        return [Change("spent", "add", key, "", random.randrange(1 << 20)) for key in KEYS]
    changes = []
    for _ in range(random.choice((10, 60, 120))):
        state, action = random.choice(_ACTIONS)
        changes.append(Change(state, action, random.choice(KEYS), random.choice(PAGES), random.randrange(1 << 20)))
    return sorted(changes, key=lambda change: change.state == "spent" and change.action == "remove")


class Content:
    """All state of all keys, as dictionaries."""

    def __init__(self) -> None:
        self.points: dict[str, int] = {}
        self.notes: dict[str, list[int]] = {}
        self.pages: dict[str, dict[str, int]] = {}
        self.spent: dict[str, tuple[int, int]] = {}

    def apply(self, changes: list[Change]) -> None:
        """Do what a life does to its state."""
        for change in changes:
            key, number = change.key, change.number
            match change.state, change.action:
                case "points", "add":
                    self.points[key] = self.points.get(key, 0) + number
                case "notes", "add":
                    self.notes.setdefault(key, []).append(number)
                case "pages", "put":
                    self.pages.setdefault(key, {})[change.part] = number
                case "pages", "remove":
                    self.pages.get(key, {}).pop(change.part, None)
                case "spent", "add":
                    visits, cents = self.spent.get(key, (0, 0))
                    self.spent[key] = visits + 1, cents + number
                case state, _:
                    getattr(self, state).pop(key, None)

    def of(self, key: str) -> dict[str, object]:
        """What a key has in each state."""
        return {
            "points": self.points.get(key, 0),
            "notes": self.notes.get(key, []),
            "pages": self.pages.get(key, {}),
            "spent": self.spent.get(key),
        }


class History:
    """What complete snapshots must hold. A number that was complete once is never given to another epoch."""

    def __init__(self) -> None:
        self.content = Content()
        self._number = 0

    def advance(self, snapshot: Epoch) -> None:
        """Since the last call one life has completed something, if any: the one that made this snapshot."""
        for number in range(self._number + 1, snapshot.number + 1):
            self.content.apply(changes_of(Epoch(snapshot.generation, number)))
        self._number = snapshot.number


# --- a life -----------------------------------------------------------------------------------------------------------


def say(what: str, detail: object = "") -> None:
    """One line in one write, so that lines of several threads and processes stay whole."""
    os.write(1, f"{what}\t{detail}\n".encode())


class Life:
    """One run of the job, all its partitions in this process."""

    def __init__(self, order: Order, history: History, stack: ExitStack) -> None:
        self._order = order
        self._operator = OPERATORS[order.operator]
        self._history = history
        self._store = LocalStore(Path(order.store))
        self._folder = SnapshotFolder(self._store, self._operator.uid)
        self._generation = self._folder.begin()
        say(OPENING)
        snapshot = self._folder.latest()
        found = "" if snapshot is None else str(snapshot.epoch)
        assert found == order.snapshot, f"the newest snapshot is {found!r}, not {order.snapshot!r}"
        self._states: list[KeyedState] = []
        for partition in range(order.parallelism):
            groups = range_of(Partition(partition), order.parallelism, GROUPS)
            files = FileSet(groups) if snapshot is None else snapshot.file_set(groups)
            self._states.append(stack.enter_context(self._opened(Partition(partition), files)))

    def _opened(self, partition: Partition, files: FileSet) -> KeyedState:
        names = SnapshotFolder.names(self._generation, partition, Attempt(0))
        options = Options(memory=self._order.memory, policy=Policy(self._order.space_amplification))
        return KeyedState(self._operator, Path(self._order.local) / str(partition), self._store, names, files, options)

    def run(self) -> None:
        """See that the state is that of the snapshot, and go on from there."""
        say(CHECKING)
        self._check()
        say(READY, len(self._states))
        if self._order.last:
            self._complete_and_prune(self._cut())
            return
        for number in count(1):
            epoch = self._cut()
            if number % 4:  # else the next epoch has what this one has changed
                self._complete(epoch)
            if number % 3 == 0:
                say(CLEANING)
                self._folder.clean()

    def _check(self) -> None:
        found: dict[str, dict[str, object]] = {}
        for state in self._states:
            found |= _found(state, [key for key in KEYS if self._owner(key) is state], self._operator)
        content = self._history.content
        expected = {key: {name: content.of(key)[name] for name in self._operator.states} for key in KEYS}
        wrong = [f"{key} has {found[key]}, not {expected[key]}" for key in KEYS if found[key] != expected[key]]
        assert not wrong, f"{len(wrong)} keys of {self._order.snapshot} are wrong: {'; '.join(wrong[:5])}"

    def _owner(self, key: str) -> KeyedState:
        return self._states[owner_of(GROUP_OF[key], len(self._states), GROUPS)]

    def _cut(self) -> Epoch:
        say(UPDATING)
        epoch = self._folder.next_epoch(self._generation)
        changes = changes_of(epoch)
        for state in self._states:
            _change(state, [change for change in changes if self._owner(change.key) is state], self._operator)
        for state in self._states:
            state.cut(epoch)
        return epoch

    def _complete_and_prune(self, epoch: Epoch) -> None:
        pruned = threading.Semaphore(0)
        with fail_points.at(fail_points.LINKS_PRUNED, lambda: pruned.release()):
            self._complete(epoch)
            for _ in self._states:
                assert pruned.acquire(timeout=60), "nobody has pruned the local links"

    def _complete(self, epoch: Epoch) -> None:
        say(WAITING)
        parts = {Partition(partition): _durable(state, epoch) for partition, state in enumerate(self._states)}
        say(COMPLETING)
        self._folder.complete(epoch, parts)
        background = [state.statistics().background for state in self._states]
        rewritten = sum(one.bases for one in background), sum(one.merges for one in background)
        say(COMPLETED, f"{epoch} {rewritten[0]} {rewritten[1]}")
        assert not any(one.trouble for one in background), background
        for state in self._states:
            state.completed(epoch)


def _found(state: KeyedState, keys: list[str], operator: Operator) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    rows = state["spent"].read(state.keys(pa.array(keys))).to_pylist()
    for key, row in zip(keys, rows, strict=True):
        one = found[key] = {"spent": None if row["visits"] is None else (row["visits"], row["cents"])}
        if "points" in operator.states:
            state.set_key(key)
            one |= {"points": state["points"].get(), "notes": state["notes"].get()}
            one["pages"] = dict(state["pages"].items())
    return found


def _change(state: KeyedState, changes: list[Change], operator: Operator) -> None:
    for change in changes:
        if change.state == "spent" or change.state not in operator.states:
            continue
        state.set_key(change.key)
        one = state[change.state]
        match change.state, change.action:
            case "points", "add":
                one.set(one.get() + change.number)
            case "notes", "add":
                one.add(change.number)
            case "pages", "put":
                one.put(change.part, change.number)
            case "pages", "remove":
                one.remove(change.part)
            case _:
                one.clear()
    added = [change for change in changes if (change.state, change.action) == ("spent", "add")]
    removed = [change.key for change in changes if (change.state, change.action) == ("spent", "remove")]
    if added:
        keys = state.keys(pa.array([change.key for change in added]))
        state["spent"].update(keys, {"cents": pa.array([change.number for change in added])})
    if removed:
        state["spent"].remove(state.keys(pa.array(removed)))


def _durable(state: KeyedState, epoch: Epoch) -> FileSet:
    while True:
        for news in state.poll(timeout=60):
            match news:
                case Durable(known, files) if known == epoch:
                    return files
                case NotDurable(known, reason):
                    raise AssertionError(f"epoch {known} is not durable: {reason}")
                case _:
                    pass


# --- processes --------------------------------------------------------------------------------------------------------


def live(order: Order, history: History) -> NoReturn:
    """Be that life, in a process of its own."""
    try:
        with ExitStack() as stack:
            if not order.last:
                # Thresholds are lowered, as they are made for far larger states.
                stack.enter_context(patch.object(consolidation, "SMALLEST_SLICE", 2 << 10))
                stack.enter_context(patch.object(consolidation, "_FEWEST_DELTAS", 12))
                for point in fail_points.POINTS:
                    stack.enter_context(fail_points.at(point, _hook(point, order)))
            Life(order, history, stack).run()
        say(CLOSED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _hook(point: str, order: Order) -> Callable[[], None]:
    times = count(1)

    def come_to_it() -> None:
        say(point)
        if point == order.kill_at and next(times) == order.kill_when:
            os.kill(os.getpid(), signal.SIGKILL)

    return come_to_it


def main() -> None:
    histories = defaultdict[str, History](History)
    for line in sys.stdin:
        order = Order(**json.loads(line))
        history = histories[order.store]
        if order.snapshot:
            history.advance(Epoch.parse(order.snapshot))
        child = os.fork()
        if not child:
            live(order, history)
        say(BORN, child)
        _, status = os.waitpid(child, 0)
        say(ENDED, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
