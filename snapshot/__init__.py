"""The cut and the programs that are cut: frames, marker rules and commits without I/O, and streams that run under them.

Invariant: importing this package alone loads neither Arrow nor RocksDB, as the protocols need neither; what
programs are written with, states and aggregations of `statebackend` included, is loaded on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from snapshot.connectors.delta.sink import ToDelta as ToDelta
    from snapshot.connectors.files.listed_folder import committed_files as committed_files
    from snapshot.connectors.files.sink import ToFiles as ToFiles
    from snapshot.connectors.files.source import Files as Files
    from snapshot.connectors.http.sink import ToHTTP as ToHTTP
    from snapshot.connectors.kafka.avro import Avro as Avro
    from snapshot.connectors.kafka.sink import ToKafka as ToKafka
    from snapshot.connectors.kafka.source import Kafka as Kafka
    from snapshot.connectors.memory.collection import ABORT as ABORT
    from snapshot.connectors.memory.collection import EOF as EOF
    from snapshot.connectors.memory.collection import PAUSE as PAUSE
    from snapshot.connectors.memory.collection import Collection as Collection
    from snapshot.connectors.memory.driver_sink import ToDriver as ToDriver
    from snapshot.connectors.memory.generate import Generate as Generate
    from snapshot.connectors.memory.heap_sink import ToHeap as ToHeap
    from snapshot.connectors.memory.heap_sink import read_heap as read_heap
    from snapshot.connectors.pravega.sink import ToPravega as ToPravega
    from snapshot.connectors.rocksdb.sink import ToRocksDB as ToRocksDB
    from snapshot.connectors.rocksdb.sink import read_rocksdb as read_rocksdb
    from snapshot.connectors.sql.postgres_sink import ToPostgres as ToPostgres
    from snapshot.connectors.sql.sqlite_sink import ToSQLite as ToSQLite
    from snapshot.connectors.staging.payloads import place_text as place_text
    from snapshot.connectors.staging.payloads import read_payload as read_payload
    from snapshot.epochs.transaction_events import CommitOutcome as CommitOutcome
    from snapshot.epochs.transaction_events import Committable as Committable
    from snapshot.ids import JobId as JobId
    from snapshot.ids import TransactionId as TransactionId
    from snapshot.operators.broadcast import Broadcast as Broadcast
    from snapshot.operators.broadcast import KeyedBroadcastProcess as KeyedBroadcastProcess
    from snapshot.operators.function_operator import KeyedCoProcess as KeyedCoProcess
    from snapshot.operators.function_operator import KeyedProcess as KeyedProcess
    from snapshot.operators.keyed_function import OpenContext as OpenContext
    from snapshot.operators.keyed_function import ProcessContext as ProcessContext
    from snapshot.operators.process_batch import BatchContext as BatchContext
    from snapshot.operators.process_batch import BatchProcess as BatchProcess
    from snapshot.operators.row_class import Row as Row
    from snapshot.operators.row_class import RowLike as RowLike
    from snapshot.operators.rows import Rows as Rows
    from snapshot.operators.windows.calls import WindowFunction as WindowFunction
    from snapshot.operators.windows.kinds import Session as Session
    from snapshot.operators.windows.kinds import Sliding as Sliding
    from snapshot.operators.windows.kinds import Tumbling as Tumbling
    from snapshot.program.connected_streams import ConnectedStreams as ConnectedStreams
    from snapshot.program.connected_streams import ControlledStream as ControlledStream
    from snapshot.program.connected_streams import ControlStream as ControlStream
    from snapshot.program.keyed_stream import KeyedStream as KeyedStream
    from snapshot.program.keyed_stream import WindowedStream as WindowedStream
    from snapshot.program.plan import EventTime as EventTime
    from snapshot.program.problems import InvalidProgram as InvalidProgram
    from snapshot.program.program import Program as Program
    from snapshot.program.sink import Abilities as Abilities
    from snapshot.program.sink import CommitAnswer as CommitAnswer
    from snapshot.program.sink import CommitsTogether as CommitsTogether
    from snapshot.program.sink import HoldsRows as HoldsRows
    from snapshot.program.sink import Sealed as Sealed
    from snapshot.program.sink import SealsForEpochs as SealsForEpochs
    from snapshot.program.sink import Sink as Sink
    from snapshot.program.sink import SinkContext as SinkContext
    from snapshot.program.sink import SinkError as SinkError
    from snapshot.program.sink import SinkWriter as SinkWriter
    from snapshot.program.sink import Staging as Staging
    from snapshot.program.sink import TakesCopies as TakesCopies
    from snapshot.program.sink import UnusableOutput as UnusableOutput
    from snapshot.program.sink import UnwritableRow as UnwritableRow
    from snapshot.program.sink import WaitsForEpochs as WaitsForEpochs
    from snapshot.program.source import Available as Available
    from snapshot.program.source import AvailableNow as AvailableNow
    from snapshot.program.source import Batch as Batch
    from snapshot.program.source import Exhausted as Exhausted
    from snapshot.program.source import Later as Later
    from snapshot.program.source import MayDiffer as MayDiffer
    from snapshot.program.source import Reader as Reader
    from snapshot.program.source import Reading as Reading
    from snapshot.program.source import Resuming as Resuming
    from snapshot.program.source import Source as Source
    from snapshot.program.source import SourceError as SourceError
    from snapshot.program.source import SourceVanished as SourceVanished
    from snapshot.program.source import SplitContext as SplitContext
    from snapshot.program.source import WrongPosition as WrongPosition
    from snapshot.program.source import WrongRecord as WrongRecord
    from snapshot.program.stream import Stream as Stream
    from snapshot.structured.spark_sink import ToSpark as ToSpark
    from snapshot.structured.spark_source import SparkSource as SparkSource
    from snapshot.tree.frozen_json import JsonLike as JsonLike
    from snapshot.tree.manifest import CommitPayload as CommitPayload
    from snapshot.tree.manifest import StoredFile as StoredFile
    from statebackend.columns import NotASchema as NotASchema
    from statebackend.columns import SchemaLike as SchemaLike
    from statebackend.durations import Duration as Duration
    from statebackend.durations import NotADuration as NotADuration
    from statebackend.errors import EpochcutError as EpochcutError
    from statebackend.errors import JobError as JobError
    from statebackend.errors import OptionError as OptionError
    from statebackend.errors import ProgramError as ProgramError
    from statebackend.errors import SavepointError as SavepointError
    from statebackend.errors import StoreError as StoreError
    from statebackend.ids import Attempt as Attempt
    from statebackend.ids import Epoch as Epoch
    from statebackend.ids import Incarnation as Incarnation
    from statebackend.ids import Partition as Partition
    from statebackend.ids import Uid as Uid
    from statebackend.random_state import KeyedRandom as KeyedRandom
    from statebackend.random_state import RandomHandle as RandomHandle
    from statebackend.random_state import RandomState as RandomState
    from statebackend.states.aggregates import AggregateTable as AggregateTable
    from statebackend.states.codecs import Codec as Codec
    from statebackend.states.codecs import Pickled as Pickled
    from statebackend.states.declarations import AggregatingState as AggregatingState
    from statebackend.states.declarations import ListState as ListState
    from statebackend.states.declarations import MapState as MapState
    from statebackend.states.declarations import ReducingState as ReducingState
    from statebackend.states.declarations import ValueState as ValueState
    from statebackend.states.list_state import ListHandle as ListHandle
    from statebackend.states.map_state import MapHandle as MapHandle
    from statebackend.states.ttl import Ttl as Ttl
    from statebackend.states.value_state import AggregatingHandle as AggregatingHandle
    from statebackend.states.value_state import ReducingHandle as ReducingHandle
    from statebackend.states.value_state import ValueHandle as ValueHandle
    from statebackend.tables.values.accumulators import Accumulator as Accumulator
    from statebackend.tables.values.aggregations import Aggregation as Aggregation
    from statebackend.tables.values.aggregations import Count as Count
    from statebackend.tables.values.aggregations import First as First
    from statebackend.tables.values.aggregations import Last as Last
    from statebackend.tables.values.aggregations import Max as Max
    from statebackend.tables.values.aggregations import Mean as Mean
    from statebackend.tables.values.aggregations import Min as Min
    from statebackend.tables.values.aggregations import Sum as Sum

_HOME = {
    "snapshot.connectors.delta.sink": ("ToDelta",),
    "snapshot.connectors.files.listed_folder": ("committed_files",),
    "snapshot.connectors.files.sink": ("ToFiles",),
    "snapshot.connectors.files.source": ("Files",),
    "snapshot.connectors.http.sink": ("ToHTTP",),
    "snapshot.connectors.kafka.avro": ("Avro",),
    "snapshot.connectors.kafka.sink": ("ToKafka",),
    "snapshot.connectors.kafka.source": ("Kafka",),
    "snapshot.connectors.memory.collection": ("ABORT", "Collection", "EOF", "PAUSE"),
    "snapshot.connectors.memory.driver_sink": ("ToDriver",),
    "snapshot.connectors.memory.generate": ("Generate",),
    "snapshot.connectors.memory.heap_sink": ("ToHeap", "read_heap"),
    "snapshot.connectors.pravega.sink": ("ToPravega",),
    "snapshot.connectors.rocksdb.sink": ("ToRocksDB", "read_rocksdb"),
    "snapshot.connectors.sql.postgres_sink": ("ToPostgres",),
    "snapshot.connectors.sql.sqlite_sink": ("ToSQLite",),
    "snapshot.connectors.staging.payloads": ("place_text", "read_payload"),
    "snapshot.epochs.transaction_events": ("CommitOutcome", "Committable"),
    "snapshot.ids": ("JobId", "TransactionId"),
    "snapshot.operators.broadcast": ("Broadcast", "KeyedBroadcastProcess"),
    "snapshot.operators.function_operator": ("KeyedCoProcess", "KeyedProcess"),
    "snapshot.operators.keyed_function": ("OpenContext", "ProcessContext"),
    "snapshot.operators.process_batch": ("BatchContext", "BatchProcess"),
    "snapshot.operators.row_class": ("Row", "RowLike"),
    "snapshot.operators.rows": ("Rows",),
    "snapshot.operators.windows.calls": ("WindowFunction",),
    "snapshot.operators.windows.kinds": ("Session", "Sliding", "Tumbling"),
    "snapshot.program.connected_streams": ("ConnectedStreams", "ControlStream", "ControlledStream"),
    "snapshot.program.keyed_stream": ("KeyedStream", "WindowedStream"),
    "snapshot.program.plan": ("EventTime",),
    "snapshot.program.problems": ("InvalidProgram",),
    "snapshot.program.program": ("Program",),
    "snapshot.program.sink": (
        "Abilities",
        "CommitAnswer",
        "CommitsTogether",
        "HoldsRows",
        "Sealed",
        "SealsForEpochs",
        "Sink",
        "SinkContext",
        "SinkError",
        "SinkWriter",
        "TakesCopies",
        "Staging",
        "UnusableOutput",
        "UnwritableRow",
        "WaitsForEpochs",
    ),
    "snapshot.program.source": (
        "Available",
        "AvailableNow",
        "Batch",
        "Exhausted",
        "Later",
        "MayDiffer",
        "Reader",
        "Reading",
        "Resuming",
        "Source",
        "SourceError",
        "SourceVanished",
        "SplitContext",
        "WrongPosition",
        "WrongRecord",
    ),
    "snapshot.program.stream": ("Stream",),
    "snapshot.structured.spark_sink": ("ToSpark",),
    "snapshot.structured.spark_source": ("SparkSource",),
    "snapshot.tree.frozen_json": ("JsonLike",),
    "snapshot.tree.manifest": ("CommitPayload", "StoredFile"),
    "statebackend.columns": ("NotASchema", "SchemaLike"),
    "statebackend.durations": ("Duration", "NotADuration"),
    "statebackend.errors": ("EpochcutError", "JobError", "OptionError", "ProgramError", "SavepointError", "StoreError"),
    "statebackend.ids": ("Attempt", "Epoch", "Incarnation", "Partition", "Uid"),
    "statebackend.states.aggregates": ("AggregateTable",),
    "statebackend.states.codecs": ("Codec", "Pickled"),
    "statebackend.states.declarations": ("AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"),
    "statebackend.states.list_state": ("ListHandle",),
    "statebackend.states.map_state": ("MapHandle",),
    "statebackend.random_state": ("KeyedRandom", "RandomHandle", "RandomState"),
    "statebackend.states.ttl": ("Ttl",),
    "statebackend.states.value_state": ("AggregatingHandle", "ReducingHandle", "ValueHandle"),
    "statebackend.tables.values.accumulators": ("Accumulator",),
    "statebackend.tables.values.aggregations": ("Aggregation", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
