"""All keyed state of an operator in one partition, as one thing to cut: rows, cached values, tables.

Invariant: a cut has everything that was written before it and nothing that was written after it, whichever
state it is in. What it costs goes with what has changed; of a table it is a copy of all accumulators at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from typing import Final

from statebackend.backends.backend import Backend
from statebackend.backends.overlay import Overlay
from statebackend.backends.row_store import FrozenRows, Room, RowStore
from statebackend.backends.scratch_file import NewFile
from statebackend.entries import StateId, parse_head
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.cuttable import Frozen
from statebackend.states.base_entries import base_entries
from statebackend.states.declarations import Declaration, Place
from statebackend.states.key_context import NO_WATERMARK, KeyContext
from statebackend.states.list_state import ListHandle
from statebackend.states.map_state import MapHandle
from statebackend.states.schema import Schema, StateKind
from statebackend.states.timer_state import TimerState
from statebackend.states.value_state import CachedState
from statebackend.states.write_back import FrozenValues
from statebackend.tables.memory.frozen import FrozenTable
from statebackend.tables.memory.kept_keys import OTHERS
from statebackend.tables.table import Table

_TYPICAL_ENTRY: Final = 100
"""The assumed size of a value in a file, to tell small files from large ones."""

_FOR_ROWS: Final = 6
_FOR_STATES: Final = 2
"""Parts of the memory: for rows that wait for their cut to be in the backend, and for all that states keep. The rest is
for what is on its way into a file: values and keys, encoded."""


@dataclass(frozen=True, slots=True)
class FrozenContents:
    """The changes between two cuts, in all states together."""

    rows: FrozenRows
    values: tuple[FrozenValues, ...]
    tables: tuple[FrozenTable, ...]
    only_tables: bool
    """True if nothing else is declared, or was before."""
    epoch_number: int
    refers: bool = False
    """True if keys are left out that former cuts have kept."""
    lasting: float = 1.0
    """See `Frozen.lasting`."""

    @property
    def is_all(self) -> bool:
        """True if this is not only what changed. See `Frozen.is_all`."""
        return self._covers and not self.refers

    @property
    def renews(self) -> bool:
        """True if this is all there is but for kept keys. See `Frozen.renews`."""
        return self._covers and self.refers

    @property
    def _covers(self) -> bool:
        return self.only_tables and self.rows.is_empty and all(table.covers for table in self.tables)

    @property
    def size(self) -> int:
        """Estimate how many bytes it will be in a file."""
        blocks = sum(table.size for table in self.tables)
        return self.rows.written_bytes + blocks + _TYPICAL_ENTRY * sum(map(len, self.values))

    def entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield all entries, sorted by name. For a thread in the background."""
        rows = self.rows.in_order([values.entries() for values in self.values])
        # A block's name is never that of a row.
        return merge(rows, *(table.in_order() for table in self.tables)) if self.tables else rows

    def written(self) -> None:
        """Let tables give back their memory. Rows and values stay, as they are looked up until the backend has them."""
        for table in self.tables:
            table.written()

    def clear(self) -> None:
        """Give back the memory, after the release. For a thread in the background."""
        self.rows.clear()
        for values in self.values:
            values.clear()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The writes that are not wanted any more."""

    parts: Sequence[FrozenRows | FrozenValues]

    def clear(self) -> None:
        """Give back the memory. For a thread in the background."""
        for part in self.parts:
            part.clear()


class Contents:
    """The states of one operator in one partition, by name. For one thread, but for `settled`."""

    def __init__(
        self,
        declared: Mapping[str, Declaration[object]],
        schema: Schema,
        context: KeyContext,
        backend: Backend,
        overlay: Overlay,
        memory: int,
        tables_memory: int,
        new_file: NewFile,
        most_values: float = 0.5,
    ) -> None:
        """Open all of them. What memory has no room for is in the overlay and in new files.

        They share so many bytes of it; of the memory of tables each has its part in all states that keep something.
        Accumulators are stored without their keys if they are at most that part of both.
        """
        self._context = context
        self._schema = schema
        self._new_file = new_file
        self.rows = RowStore(backend, Room(memory // _FOR_ROWS, overlay))
        kept = sum(spec.kind in _IN_MEMORY for spec in schema.states)
        share, table_share = memory // _FOR_STATES // max(kept, 1), tables_memory // max(kept, 1)
        self.states = {
            spec.name: declared[spec.name].open(
                Place(spec, context, self.rows, table_share if spec.kind is StateKind.TABLE else share, new_file)
            )
            for spec in schema.states
        }
        self._cached = [state for state in self.states.values() if isinstance(state, CachedState)]
        self._timers = [state for state in self.states.values() if isinstance(state, TimerState)]
        self._parted = [state for state in self.states.values() if isinstance(state, ListHandle | MapHandle)]
        self._tables = [state for state in self.states.values() if isinstance(state, Table)]
        self._only_tables = len(self._tables) == len(schema.states) > 0 and not schema.dropped
        self._table_names = {spec.id: spec.name for spec in schema.states if spec.kind is StateKind.TABLE}
        self._expiring = {spec.id: spec.expires for spec in schema.states if spec.expires is not None}
        self._times = {context.restored_epoch: (NO_WATERMARK, NO_WATERMARK)}
        self._most_values = most_values
        self._kept_at: list[int] | None = None
        """The number of losses of each table when the last cut of all its content kept its keys."""

    def freeze(self, epoch_number: int, *, alone: bool = False) -> FrozenContents:
        """Cut, and return what was written since the last cut. See `Cuttable.freeze`."""
        if alone:
            self._kept_at = None
        self._times[epoch_number] = (self._context.watermark, self._context.processing_time)
        for parted in self._parted:
            parted.cut()
        values = tuple(state.freeze() for state in self._cached)
        tables = tuple(table.freeze(epoch_number) for table in self._tables)
        frozen = FrozenContents(self.rows.freeze(), values, tables, self._only_tables, epoch_number)
        if not frozen.is_all or not self._refers(tables):
            return frozen
        lasting = sum(table.lasting_size for table in tables) / max(sum(table.size for table in tables), 1)
        return replace(frozen, refers=True, lasting=lasting)

    def _refers(self, tables: Sequence[FrozenTable]) -> bool:
        """Refer to the keys that the last cut of all state has kept, or else keep this cut's own; True if it refers.

        It refers unless a key or a namespace is gone since, or many keys have come: what it replaces is all there was
        but for the kept keys.
        """
        losses = [table.losses for table in self._tables]
        keys, kept = sum(table.keys for table in tables), sum(table.keys_kept for table in tables)
        if kept and losses == self._kept_at and OTHERS * (keys - kept) <= keys:
            for frozen in tables:
                frozen.refer()
            return True
        for table, frozen in zip(self._tables, tables, strict=True):
            table.keep_keys(frozen, self._most_values)
        self._kept_at = losses
        return False

    def release(self, frozen: Frozen) -> None:
        """Forget what the backend has. See `Cuttable.release`."""
        assert isinstance(frozen, FrozenContents)
        self.rows.release(frozen.rows)
        for state, values in zip(self._cached, frozen.values, strict=True):
            state.release(values)
        # No base will be of an earlier epoch than what the backend has.
        for earlier in [known for known in self._times if known < frozen.epoch_number]:
            del self._times[earlier]

    def completed(self, epoch_number: int) -> None:
        """Forget what only a rewind to a cut before that of this epoch would need."""
        for table in self._tables:
            table.completed(epoch_number)

    def rewind(self, epoch_number: int, since: Sequence[FrozenContents]) -> GivenUp | None:
        """Go back to what was cut for this epoch, or opened; `since` are all later cuts, none of which was released.

        The caller clears what is returned. None if it cannot be done: then these states may not be used any more.
        """
        if not all(table.rewind(epoch_number) for table in self._tables):
            return None
        given_up: list[FrozenRows | FrozenValues] = [self.rows.rewind([frozen.rows for frozen in since])]
        for place, state in enumerate(self._cached):
            given_up.append(state.rewind([frozen.values[place] for frozen in since]))
        for timers in self._timers:
            timers.forget()
        for parted in self._parted:
            parted.rewind(len(since))
        self._context.begin()
        return GivenUp(given_up)

    def forget(self) -> None:
        """Forget what is known of the rows: they have changed."""
        for state in chain(self._timers, self._parted):
            state.forget()

    def load(self, go_on: Callable[[], bool]) -> None:
        """Bring tables into memory, as far as there is room."""
        for table in self._tables:
            table.load(go_on)

    def read_ahead(self) -> None:
        """Read what there is room for, so that keys are found in it, and `load_more` finds it read."""
        for table in self._tables:
            table.read_ahead()

    def load_more(self) -> bool:
        """Bring some of what was read ahead into memory; True if there is more."""
        return any(table.load_more() for table in self._tables)

    def unload(self, groups: Sequence[KeyGroupRange]) -> None:
        """Drop from memory what is stored of these groups: it has changed."""
        for table in self._tables:
            table.unload(groups)

    def bring_up_to_date(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what these newer blocks say, which are sorted by name and stored as well."""
        tables = {spec.id: self.states[spec.name] for spec in self._schema.states if spec.kind is StateKind.TABLE}
        of_tables: dict[StateId, list[tuple[bytes, bytes]]] = {}
        for name, payload in blocks:
            of_tables.setdefault(parse_head(name)[1], []).append((name, payload))
        for state, some in of_tables.items():
            table = tables.get(state)
            if isinstance(table, Table):
                table.bring_up_to_date(some)

    def take_over(self, other: Contents) -> None:
        """Take from another one, to which nothing was written, what it has in memory of the same state."""
        for table, before in zip(self._tables, other._tables, strict=True):
            table.take_over(before)

    @property
    def has_tables(self) -> bool:
        """True if something may be in memory that was never asked for."""
        return bool(self._tables)

    @property
    def expires(self) -> bool:
        """True if what is stored becomes less as time goes by."""
        return bool(self._expiring)

    def settled(self, live: Iterator[tuple[bytes, bytes]], epoch_number: int) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries of a base of this epoch. See `Cuttable.settled`."""
        event, processing = self._times.get(epoch_number, (NO_WATERMARK, NO_WATERMARK))
        times = {state: event if kind == "event" else processing for state, kind in self._expiring.items()}
        return base_entries(live, epoch_number, self._table_names, times, self._context.key_type, self._new_file)

    def pending_bytes(self) -> int:
        """Return about how much memory holds what no backend has yet, without that of tables."""
        return self.rows.pending_bytes + sum(state.pending_bytes() for state in self._cached)

    def memory_bytes(self) -> int:
        """Return about how much memory the states occupy, without the backend's."""
        values = sum(state.memory_bytes() for state in chain(self._cached, self._parted))
        tables = sum(table.memory_bytes() for table in self._tables)
        return values + tables + self.rows.pending_bytes


_IN_MEMORY: Final = frozenset(StateKind) - {StateKind.TIMERS}
