"""A program's output as a DataFrame, streaming or not: the format `epochcut`, which reads state as well.

Invariant: an offset is an epoch with rows; its output, and all output before it, is committed by the journal of the
job. So a micro-batch has whole epochs, and the same rows whenever and wherever its tasks are run; and where one query
deletes up to its offset, another one that has read all the same rows has the same offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from recovery.offline.job_tree import JobTree, open_tree
from recovery.savepoints.spark_format import StateSource, WrongOption
from snapshot.connectors.files.folder import everywhere
from snapshot.journal.state import EMPTY, EpochState, JournalState
from snapshot.structured.output_log import OutputLog, WrongOutput, open_output
from snapshot.structured.spark_types import of_spark, with_types
from statebackend import means
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.stores.store import BlobInfo

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the journal; a query without new rows asks a hundred times a second."""
_TASK_BYTES: Final = 8 << 20
"""Size up to which files are read by one task."""
_KNOWN: Final = ("checkpoints", "path", "delete")


class EpochcutFormat(StateSource):
    """The format `epochcut`: state if the option `state` is given, else output. See `recovery.register`."""

    def schema(self) -> StructType:
        """Return the columns of the state or the output, with Spark's types."""
        if self._is_state:
            return super().schema()
        return from_arrow_schema(of_spark(open_output(_checked(self.options)["path"]).owner().schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the state's rows, or of all output that is committed by now."""
        return super().reader(schema) if self._is_state else OutputReader(_checked(self.options))

    def streamReader(self, schema: StructType) -> OutputStreamReader:  # noqa: N802 (Spark's name)
        """Return the reader of a query; `WrongOption` for state, which is no stream."""
        del schema
        if self._is_state:
            raise WrongOption("epochcut: state is read with spark.read, as of one epoch; readStream reads output")
        return OutputStreamReader(_checked(self.options))

    @property
    def _is_state(self) -> bool:
        return bool(self.options.get("state") or self.options.get("uid"))


@dataclass
class _Files(InputPartition):  # type: ignore[misc]
    """The files that a task reads."""

    paths: tuple[str, ...]


class _Output:
    """The output of a job: its log, and which epochs are committed. Plain data until it is asked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.checkpoints, self.path = options["checkpoints"], options["path"]
        self._tree: JobTree | None = None

    def __getstate__(self) -> Mapping[str, object]:
        return {**self.__dict__, "_tree": None}  # Spark sends it to other processes

    @property
    def log(self) -> OutputLog:
        return open_output(self.path)

    def state(self) -> JournalState:
        """Return what the job's journal says now; `WrongOutput` if the tree is another job's, or closed by a move."""
        if self._tree is None:
            tree, owner = open_tree(self.checkpoints), self.log.owner()
            if tree.birth.job != owner.job:
                raise WrongOutput(
                    f"{self.path} has the output of job {owner.job}, and {self.checkpoints} is the tree of job "
                    f"{tree.birth.job}; give the two of one job"
                )
            self._tree = tree
        else:
            self._tree = self._tree.look_again()
        state = self._tree.state
        if state.moved_to:
            raise WrongOutput(
                f"the job with the output at {self.path} was moved from {self.checkpoints} to {state.moved_to}; start "
                "the query again with that as its option checkpoints"
            )
        return state

    def refuse_if_ahead(self, read: Epoch, state: JournalState) -> None:
        """Raise `WrongOutput` if a query has read an epoch that is not known any more."""
        if is_ahead(read, state):
            raise WrongOutput(
                f"this query has read {self.path} up to epoch {read}, and {self.checkpoints} knows no epoch after "
                f"{state.newest_complete}: the tree was put back from an older copy, and epochs that the job makes "
                "again would have other rows, which the query would never read. Put back the newer tree; or give the "
                "program's ToSpark a new folder, and the query a new checkpoint"
            )

    def partitions(self, after: Epoch, until: Epoch) -> Sequence[_Files]:
        return [_Files(tuple(file.path for file in some)) for some in together(self.log.files(after, until))]

    def read(self, partition: _Files) -> Iterator[pa.RecordBatch]:
        log = self.log
        schema = of_spark(log.owner().schema)
        for path in partition.paths:
            for batch in log.rows(path):
                yield with_types(batch, schema)


class OutputReader(DataSourceReader):  # type: ignore[misc]  # Spark has no types that mypy is told of
    """The reader of all output up to the newest epoch that is committed when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._output = _Output(options)

    def partitions(self) -> Sequence[_Files]:
        """Return the files, some for each task."""
        return self._output.partitions(NO_EPOCH, newest_committed(self._output.state())) or [_Files(())]

    def read(self, partition: _Files) -> Iterator[pa.RecordBatch]:
        """Read files, in an executor."""
        return self._output.read(partition)


class OutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a query, which begins with the first epoch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._output = _Output(options)
        self._delete = options["delete"] == "true"
        self._until: Epoch | None = None
        self._state, self._looked_at = EMPTY, -_LOOK_EVERY
        self._nothing = (NO_EPOCH, NO_EPOCH)
        """An offset, and an epoch up to which nothing comes after it."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        """Return the offset before all epochs."""
        return _offset(NO_EPOCH)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        """Return the newest epoch with rows that is committed; `start` if there is none after it.

        `WrongOutput` if output after `start` was deleted, or if the job's tree was put back from an older copy, which
        does not know `start`.
        """
        after, state = _epoch(start), self._look()
        self._output.refuse_if_ahead(after, state)
        return _offset(self._newest(after, newest_committed(state) if self._until is None else self._until))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than to the epoch that is the newest now."""
        self._until = newest_committed(self._look())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[_Files]:
        """Return the files of the epochs after one and up to the other; `WrongOutput` if they were deleted."""
        return self._output.partitions(_epoch(start), _epoch(end))

    def read(self, partition: _Files) -> Iterator[pa.RecordBatch]:
        """Read files, in an executor."""
        return self._output.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Delete what the query has read, if it is to: Spark asks for it no more."""
        if self._delete and _epoch(end) > NO_EPOCH:
            self._output.log.delete(_epoch(end))

    def _newest(self, after: Epoch, until: Epoch) -> Epoch:
        """Return the newest epoch with rows, `after` if there is none; a long silence is not listed again and again."""
        looked = max(after, self._nothing[1]) if self._nothing[0] == after else after
        newest = self._output.log.newest(looked, until) if looked < until else None
        if newest is None:
            self._nothing = (after, max(looked, until))
        return newest or after

    def _look(self) -> JournalState:
        if means.monotonic() >= self._looked_at + _LOOK_EVERY:
            self._state, self._looked_at = self._output.state(), means.monotonic()
        return self._state


def newest_committed(state: JournalState) -> Epoch:
    """Return the newest epoch whose output is committed, and with it all output before; `NO_EPOCH` if there is none.

    An epoch without committables is one: it would carry what is not known to be committed.
    """
    done = [one.epoch for one in state.usable if one.state is EpochState.COMMITTED or not one.has_committables]
    return max(done, default=NO_EPOCH)


def is_ahead(read: Epoch, state: JournalState) -> bool:
    """True if an epoch that was read is after all that the job has completed, and it may make that epoch again.

    A start after the newest generation that the job knows makes later epochs only.
    """
    return read > state.newest_complete and read.generation >= state.generation


def together(files: Sequence[BlobInfo]) -> Sequence[Sequence[BlobInfo]]:
    """Return the files in their order, as many together as one task reads."""
    found: list[list[BlobInfo]] = []
    size = 0
    for file in files:
        if not found or size + file.size > _TASK_BYTES:
            found.append([])
            size = 0
        found[-1].append(file)
        size += file.size
    return found


def _offset(epoch: Epoch) -> dict[str, int]:
    return {"generation": epoch.generation, "epoch": epoch.number}


def _epoch(offset: Mapping[str, int]) -> Epoch:
    return Epoch(Generation(offset["generation"]), offset["epoch"])


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    if missing := [name for name in ("checkpoints", "path") if not options.get(name)]:
        raise WrongOption(
            f"epochcut lacks {' and '.join(map(repr, missing))}: output is read with the option checkpoints, the "
            "program's, and load(path), the folder of its ToSpark; state with the options checkpoints, uid and state"
        )
    if unknown := [name for name in options if name.lower() not in _KNOWN]:
        raise WrongOption(f"epochcut has no option {unknown[0]!r} for output; it has {', '.join(_KNOWN)}")
    delete = options.get("delete") or "false"
    if delete.lower() not in ("true", "false"):
        raise WrongOption(f"epochcut: delete is {delete!r}; expected true or false")
    return {"checkpoints": options["checkpoints"], "path": everywhere(options["path"]), "delete": delete.lower()}
