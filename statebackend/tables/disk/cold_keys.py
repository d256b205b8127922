"""The keys of a table that memory has no room for: in sorted runs on the local disk, merged a little at every write.

Invariant: of a key's rows the one in the youngest run is right, and what the table has in memory of a key is
younger than all of them. Nothing of it survives the process, and nothing has to: all that was changed is in blocks.

A key that is read stays here, as it is; only if it is changed in memory it is written again. Looking for a key reads
a page of the few runs that may have it. Runs of about the same size become one of the next size, so a row is written
about as often as there are sizes; and each write does its part of that, so none waits for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.backends.scratch_file import NewFile
from statebackend.keys.columns import KeyColumn
from statebackend.tables.disk.cold_run import (
    NULL,
    ColdRows,
    Heads,
    Integers,
    Merge,
    Run,
    RunWriter,
    divided,
    head_type,
    newest,
    places_of,
    with_tails,
)
from statebackend.tables.disk.cold_run import joined as rows_joined
from statebackend.tables.format.blocks import Block, hashed
from statebackend.tables.values.accumulators import OBJECTS, Column, blank
from statebackend.tables.values.spec import Layout

_ALIKE: Final = 8
"""So many runs of about the same size are merged."""

_TOO_MANY: Final = 4 * _ALIKE
"""If there are so many runs side by side, whatever their sizes, they are merged, too."""

_SMALLEST: Final = 1 << 12
"""Runs of fewer rows are all of one size; and so many rows are merged at least when something is written."""

_MERGED_PER_ROW: Final = 2
"""For each row that is written, so many are merged on each level: then a merge is done before the next one is due."""


_UNKNOWN: Final = 1 << 62

_NO_BYTES: Final = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The keys that were found among those asked for, and their accumulators, one for one."""

    which: Integers
    columns: Mapping[str, Column]


class ColdKeys:
    """Keys by namespace, with their accumulators. All calls come from one thread."""

    def __init__(self, layout: Layout, new_file: NewFile) -> None:
        """Begin without keys; the runs lie in files that `new_file` makes."""
        self._layout = layout
        self._new_file = new_file
        fixed = {name: column.dtype for name, column in layout.columns.items() if column.dtype != OBJECTS}
        self._tails = {name: column for name, column in layout.columns.items() if column.dtype == OBJECTS}
        self._type = head_type([(f"of {name}", dtype) for name, dtype in fixed.items()], list(self._tails))
        self._runs: list[Run] = []
        self._merges: list[Merge] = []
        self._numbers = count()
        self._spaces: dict[bytes, int] = {}
        self._groups: dict[bytes, NDArray[np.bool_]] = {}

    @property
    def some(self) -> bool:
        """True if there may be keys."""
        return bool(self._spaces)

    def has(self, namespace: bytes) -> bool:
        """True if there may be keys of this namespace."""
        return namespace in self._spaces

    def namespaces(self) -> set[bytes]:
        """Return the namespaces that may have keys."""
        return set(self._spaces)

    def groups_of(self, namespace: bytes) -> NDArray[np.bool_]:
        """Return in which groups, counted from the first of the partition, a namespace may have keys."""
        return self._groups.get(namespace, self._layout.no_groups())

    def memory_bytes(self) -> int:
        """Return about how much memory it occupies."""
        return sum(run.nbytes for run in self._runs)

    # --- writing ------------------------------------------------------------------------------------------------------

    def put(self, namespace: bytes, parts: Iterable[tuple[KeyColumn, Mapping[str, Column]]], most: int) -> None:
        """Keep these keys, at most so many, each given once; what there was of them counts no more.

        They come in parts, and no hash is less than one in a part before.
        """
        self._write((self._rows(namespace, keys, columns) for keys, columns in parts), most)

    def loading(self) -> Loading:
        """Begin to take what blocks say of key groups of which nothing is here."""
        return Loading(self._rows_of, self._new_run, self._live, self._runs)

    def forget(self, namespace: bytes, keys: KeyColumn) -> None:
        """Forget these keys, by rows that say that they are gone."""
        found = self.find(namespace, keys, np.arange(len(keys)))
        if found is None:
            return
        rows = self._rows(namespace, keys, {})
        rows.heads["gone"] = True
        self._write([rows.chosen(found.which)], len(found.which))

    def drop(self, namespace: bytes) -> None:
        """Forget all keys of a namespace. They leave the disk when their runs are merged, or nothing else is left."""
        self._groups.pop(namespace, None)
        self._spaces.pop(namespace, None)
        if not self._spaces:
            self._runs, self._merges = [], []

    def _rows_of(self, namespace: bytes, keys: KeyColumn, block: Block) -> ColdRows:
        rows = self._rows(namespace, keys, block.columns)
        if block.deleted is not None:
            rows.heads["gone"] = block.deleted
        return rows

    def _rows(self, namespace: bytes, keys: KeyColumn, columns: Mapping[str, Column]) -> ColdRows:
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = next(self._numbers)
            self._groups[namespace] = self._layout.no_groups()
        heads = np.zeros(len(keys), dtype=self._type)
        heads["place"], heads["space"] = places_of(keys.hashes, space), space
        heads["size"] = np.diff(keys.offsets)
        for name, column in columns.items():
            if name not in self._tails:
                heads[f"of {name}"] = column
        self._groups[namespace][self._layout.places(keys.hashes)] = True
        rows = ColdRows(heads, keys.data[keys.offsets[0] : keys.offsets[-1]])
        if keys.null is not None and keys.null.any():
            if keys.width:
                rows = ColdRows(heads, rows.data[np.repeat(~keys.null, keys.width)])
            heads["size"][keys.null] = NULL
        if self._tails and columns:
            tails = {name: list(map(_as_bytes, columns[name].tolist())) for name in self._tails}
            rows = ColdRows(heads, with_tails(heads, rows.keys().to_pylist(), tails))
        return rows

    def _write(self, parts: Iterable[ColdRows], most: int) -> None:
        writer = self._new_run(most)
        for rows in parts:
            writer.append(newest(rows))
        if writer.rows:
            self._runs.append(writer.finish())
            self._merge_some(max(_SMALLEST, _MERGED_PER_ROW * writer.rows))

    def _new_run(self, most: int) -> RunWriter:
        return RunWriter(self._type, self._new_file, most)

    # --- merging ------------------------------------------------------------------------------------------------------

    def _merge_some(self, rows: int) -> None:
        self._begin_merges()
        for merge in list(self._merges):
            left = rows
            while left > 0 and not merge.done:
                left -= merge.step()
            if merge.done:
                self._replace(merge)

    def _replace(self, merge: Merge) -> None:
        merged = merge.writer.finish()
        first = self._runs.index(merge.runs[0])
        self._runs[first : first + len(merge.runs)] = [merged] if len(merged) else []
        self._merges.remove(merge)

    def _begin_merges(self) -> None:
        busy = {id(run) for merge in self._merges for run in merge.runs}
        side_by_side: list[Run] = []
        alike: list[Run] = []
        for run in [*self._runs, None]:
            if run is None or id(run) in busy:
                self._begin_merge(side_by_side if len(side_by_side) >= _TOO_MANY else alike)
                side_by_side, alike = [], []
                continue
            if alike and _level(run) != _level(alike[-1]):
                if len(alike) >= _ALIKE:
                    self._begin_merge(alike)
                    side_by_side = []
                alike = []
            side_by_side.append(run)
            alike.append(run)

    def _begin_merge(self, runs: list[Run]) -> None:
        if len(runs) >= _ALIKE:
            oldest = runs[0] is self._runs[0]
            writer = self._new_run(sum(map(len, runs)))
            self._merges.append(Merge(runs, writer, self._live, all_there_are=oldest))

    def _live(self) -> NDArray[np.uint32]:
        return np.fromiter(self._spaces.values(), dtype=np.uint32, count=len(self._spaces))

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, namespace: bytes, keys: KeyColumn, which: Integers) -> Found | None:
        """Return which of the keys with these indices are here, and their accumulators; None if none is."""
        space = self._spaces.get(namespace)
        if space is None or not len(which):
            return None
        places = places_of(keys.hashes[which], space)
        order = np.argsort(places)
        places, which = places[order], which[order]
        found: list[Integers] = []
        columns: list[dict[str, Column]] = []
        for run in reversed(self._runs):
            rows, here = run.find(places, space, keys, which)
            if len(rows):
                there = ~here["gone"]
                found.append(which[rows[there]])
                columns.append(self._columns(here[there], run.records))
                places, which = np.delete(places, rows), np.delete(which, rows)
        if not found or not sum(map(len, found)):
            return None
        names = self._layout.columns
        return Found(np.concatenate(found), {name: np.concatenate([some[name] for some in columns]) for name in names})

    def of(self, namespace: bytes) -> tuple[KeyColumn, Mapping[str, Column]]:
        """Return all keys of a namespace that are here, and their accumulators."""
        space = self._spaces.get(namespace)
        rows = [ColdRows(np.empty(0, dtype=self._type), _NO_BYTES)]
        for run in self._runs if space is not None else []:
            part = run.below(0, None)
            rows.append(part.chosen(np.flatnonzero(part.heads["space"] == space)))
        last = newest(rows_joined(rows))
        last = last.chosen(np.flatnonzero(~last.heads["gone"]))
        return self._key_column(last), self._columns(last.heads, lambda _: last.records().to_pylist())

    def _key_column(self, rows: ColdRows) -> KeyColumn:
        null = rows.heads["size"] == NULL
        valid = pa.array(~null).buffers()[1] if null.any() else None
        keys = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), [valid, *rows.keys().buffers()[1:]])
        return hashed(keys, self._layout.key_type)

    def _columns(self, heads: Heads, records: Callable[[Heads], Sequence[bytes]]) -> dict[str, Column]:
        tails = divided(heads, records(heads)) if self._tails else {}
        columns: dict[str, Column] = {}
        for name, accumulator in self._layout.columns.items():
            if name in tails:
                text = isinstance(accumulator.initial, str)
                columns[name] = blank(len(heads), OBJECTS)
                columns[name][:] = [one.decode() for one in tails[name]] if text else tails[name]
            else:
                columns[name] = np.ascontiguousarray(heads[f"of {name}"])
        return columns


class Loading:
    """Key groups from blocks, one after the other in ascending order: all of them become one run."""

    def __init__(
        self,
        rows: Callable[[bytes, KeyColumn, Block], ColdRows],
        new_run: Callable[[int], RunWriter],
        live: Callable[[], NDArray[np.uint32]],
        runs: list[Run],
    ) -> None:
        self._rows, self._new_run, self._live, self._runs = rows, new_run, live, runs
        self._all = new_run(_UNKNOWN)
        self._parts: list[Run] = []

    def add(self, namespace: bytes, keys: KeyColumn, block: Block) -> None:
        """Take some rows of the group, whose keys these are. What comes later is younger."""
        rows = newest(self._rows(namespace, keys, block))
        part = self._new_run(len(rows))
        part.append(rows)
        self._parts.append(part.finish())

    def end_group(self) -> None:
        """End a group: what comes next is of another one."""
        if self._parts:
            merge = Merge(self._parts, self._all, self._live, all_there_are=True)
            while not merge.done:
                merge.step()
            self._parts = []

    def end(self) -> None:
        """Finish the run, as all groups have come."""
        run = self._all.finish()
        if len(run):
            self._runs.append(run)


def _as_bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def _level(run: Run) -> int:
    return max(0, (len(run) // _SMALLEST).bit_length() - 1) // 3
