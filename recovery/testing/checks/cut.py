"""A complete epoch as its manifest and its files say, for the shapes of programs to judge.

Invariant: it is read as a restore reads it, from the bytes that the store had when the epoch was complete; what cannot
be read is a broken promise, not an error of the checker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import pyarrow as pa

from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.channel_state import recalled
from snapshot.host.partition.source_run import read_to
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.ids import ChannelId
from snapshot.program.plan import Edge, Plan
from snapshot.testing.history import Violation
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import Inline, Manifest, OperatorSnapshot
from statebackend.backends.heap_backend import HeapBackend
from statebackend.canonical.exporting import StateExport
from statebackend.canonical.source import StateSource
from statebackend.entries import META_KEY
from statebackend.files import FileSet, floors, rescaled
from statebackend.ids import Attempt, Generation, Incarnation, Partition
from statebackend.keygroups import KeyGroupRange, key_group_of, owner_of
from statebackend.keys.types import KeyType
from statebackend.states.codec_choice import codec_of
from statebackend.states.map_keys import map_keys_of
from statebackend.states.schema import Schema

_NUMBERS: Final = KeyType.of(pa.int64())
"""The type of the keys of all simulated programs."""
_NOBODY: Final = Incarnation(Generation(0), Attempt(0))


class BytesOfEpoch:
    """The blobs of one epoch, as a store whose other calls nobody makes."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs

    def read(self, path: str) -> bytes:
        """Return the content."""
        return self._blobs[path]


class EpochFacts:
    """One epoch. `blobs` are the files that the manifest refers to, `scratch` is a local folder for its own use."""

    def __init__(self, manifest: Manifest, plan: Plan, blobs: Mapping[str, bytes], scratch: Path) -> None:
        self._manifest = manifest
        self._plan = plan
        self._blobs = blobs
        self._scratch = scratch
        self._operators = {str(operator.uid): operator for operator in manifest.operators}
        self._opened: dict[str, StateSource] = {}
        self._rows: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}

    @property
    def name(self) -> str:
        """Return the name of the epoch, for messages."""
        return f"epoch {self._manifest.epoch}"

    # --- sources ------------------------------------------------------------------------------------------------------

    def positions(self, source: str) -> Mapping[int, int | None]:
        """Return how far each split that was given out is read; None is its end."""
        found: dict[int, int | None] = {}
        for subtask in self._of(source).subtasks:
            for at in subtask.positions:
                position = None if at.position == NULL else read_to(at.position) or 0
                if int(at.split) in found:
                    raise Violation(f"{self.name}: split {at.split} of {source} is read by two partitions")
                assert position is None or isinstance(position, int)
                found[int(at.split)] = position
        return found

    def unassigned(self, source: str) -> Sequence[int]:
        """Return the splits that were not given out."""
        waiting = self._of(source).enumerator.value()
        splits = waiting.get("unassigned", waiting) if isinstance(waiting, Mapping) else waiting
        return [int(str(split)) for split in splits or ()] if isinstance(splits, list) else []

    # --- operators ----------------------------------------------------------------------------------------------------

    def state(self, operator: str, state: str) -> Sequence[Mapping[str, Any]]:
        """Return the entries of an operator's state, of all partitions."""
        if (operator, state) not in self._rows:
            self._rows[operator, state] = self._entries(operator, state)
        return self._rows[operator, state]

    def _entries(self, operator: str, state: str) -> Sequence[Mapping[str, Any]]:
        source = self._source(operator)
        spec = next((spec for spec in source.schema.states if spec.name == state), None) if source else None
        if source is None or spec is None:
            return ()
        return [row for batch in StateExport(source, spec, None, None).batches() for row in batch.to_pylist()]

    def in_flight(self, operator: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows on the operator's channels."""
        files = TreeFiles(BytesOfEpoch(self._blobs), _NOBODY, Partition(0))  # type: ignore[arg-type]
        rows: list[Mapping[str, Any]] = []
        for subtask in self._of(operator).subtasks:
            for channel in subtask.channels:
                wire = self._wire(channel.channel)
                for frame in recalled(channel, files):
                    rows += wire.decode(frame).batch.to_pylist()
        return rows

    def rows_in_flight(self) -> Mapping[ChannelId, int]:
        """Return how many rows are on each channel."""
        files = TreeFiles(BytesOfEpoch(self._blobs), _NOBODY, Partition(0))  # type: ignore[arg-type]
        return {
            state.channel: sum(len(self._wire(state.channel).decode(frame)) for frame in recalled(state, files))
            for operator in self._manifest.operators
            for subtask in operator.subtasks
            for state in subtask.channels
        }

    def _wire(self, channel: ChannelId) -> RowsWire:
        edges: list[Edge] = [edge for stage in self._plan.stages for edge in stage.inputs]
        edge = next(
            edge
            for edge in edges
            if (edge.source, edge.target, edge.port) == (channel.source, channel.target, channel.port)
        )
        return RowsWire(edge.schema, edge.timed)

    def partition_of(self, operator: str, key: int) -> int:
        """Return the operator's partition that has the key."""
        most = self._manifest.max_parallelism
        group = key_group_of(_NUMBERS.hash_of(_NUMBERS.encode(key)), most)
        return owner_of(group, self._of(operator).parallelism, most)

    def watermark_of(self, operator: str, key: int) -> int | None:
        """Return how far event time was in the operator's partition that has the key."""
        watermark = self._of(operator).subtasks[self.partition_of(operator, key)].watermark
        return None if watermark is None else watermark.timestamp

    def broadcast(self, operator: str, state: str) -> Mapping[Any, Any]:
        """Return the operator's broadcast state, of numbers by number."""
        place = self._of(operator).broadcast
        if place is None:
            return {}
        data = place.data if isinstance(place, Inline) else self._blobs[place.path]
        keys, values = map_keys_of(int), codec_of(int)
        entries = json.loads(data)["states"][state]["entries"]
        return {keys.decode(bytes.fromhex(key)): values.decode(bytes.fromhex(value)) for key, value in entries}

    # --- files --------------------------------------------------------------------------------------------------------

    def _of(self, uid: str) -> OperatorSnapshot:
        if uid not in self._operators:
            raise Violation(f"{self.name} says nothing of {uid}")
        return self._operators[uid]

    def _source(self, operator: str) -> StateSource | None:
        """Return the operator's state, of all partitions together; None if it is empty."""
        states = [one.state for one in self._of(operator).subtasks if one.state is not None]
        files = rescaled(states, KeyGroupRange.of_all(self._manifest.max_parallelism))
        if not files.files:
            return None
        if operator not in self._opened:
            self._opened[operator] = self._open(files, self._scratch / operator)
        return self._opened[operator]

    def _open(self, files: FileSet, folder: Path) -> StateSource:
        folder.mkdir(parents=True)
        paths = []
        for place, file in enumerate(files.files):
            data = self._blobs[file.path]
            if f"sha256:{hashlib.sha256(data).hexdigest()}" != file.checksum:
                raise Violation(f"{self.name} refers to {file.path}, which is not as it was written")
            paths.append(folder / f"{place}.sst")
            paths[-1].write_bytes(data)
        backend = HeapBackend(folder / "backend", floors(files))
        backend.ingest(paths)
        meta = backend.get_many([META_KEY])[0]
        assert meta is not None
        schema = Schema.from_meta(meta)
        return StateSource(schema, files.range, {spec.name: backend.scan for spec in schema.states}, {}, {})

    def close(self) -> None:
        """Remove the scratch."""
        rmtree(self._scratch, ignore_errors=True)
