"""The cut and the programs that are cut: frames, marker rules and commits without I/O, and streams that run under them.

What always holds: importing this package alone loads neither Arrow nor RocksDB, as the protocols need neither; what
programs are written with, states and aggregations of `statebackend` included, is loaded on demand.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapshot.operators.broadcast import KeyedBroadcastProcess as KeyedBroadcastProcess
    from snapshot.operators.broadcast_state import Broadcast as Broadcast
    from snapshot.operators.connected import KeyedCoProcess as KeyedCoProcess
    from snapshot.operators.keyed_function import OpenContext as OpenContext
    from snapshot.operators.keyed_function import ProcessContext as ProcessContext
    from snapshot.operators.process import KeyedProcess as KeyedProcess
    from snapshot.operators.process_batch import BatchContext as BatchContext
    from snapshot.operators.process_batch import BatchProcess as BatchProcess
    from snapshot.operators.windows import Session as Session
    from snapshot.operators.windows import Sliding as Sliding
    from snapshot.operators.windows import Tumbling as Tumbling
    from snapshot.operators.windows import WindowFunction as WindowFunction
    from snapshot.program.connected_streams import ConnectedStreams as ConnectedStreams
    from snapshot.program.connected_streams import ControlledStream as ControlledStream
    from snapshot.program.control_stream import ControlStream as ControlStream
    from snapshot.program.keyed_stream import KeyedStream as KeyedStream
    from snapshot.program.plan import EventTime as EventTime
    from snapshot.program.problems import ProgramError as ProgramError
    from snapshot.program.program import Program as Program
    from snapshot.program.row_class import Row as Row
    from snapshot.program.row_class import RowLike as RowLike
    from snapshot.program.stream import Stream as Stream
    from snapshot.program.windowed_stream import WindowedStream as WindowedStream
    from snapshot.sinks.delta_sink import ToDelta as ToDelta
    from snapshot.sinks.driver_sink import ToDriver as ToDriver
    from snapshot.sinks.file_sink import ToFiles as ToFiles
    from snapshot.sinks.heap_sink import ToHeap as ToHeap
    from snapshot.sinks.heap_sink import read_heap as read_heap
    from snapshot.sinks.http_sink import ToHTTP as ToHTTP
    from snapshot.sinks.kafka_sink import ToKafka as ToKafka
    from snapshot.sinks.listed_folder import committed_files as committed_files
    from snapshot.sinks.postgres_sink import ToPostgres as ToPostgres
    from snapshot.sinks.rocksdb_sink import ToRocksDB as ToRocksDB
    from snapshot.sinks.rocksdb_sink import read_rocksdb as read_rocksdb
    from snapshot.sinks.sqlite_sink import ToSQLite as ToSQLite
    from snapshot.sources.collection import ABORT as ABORT
    from snapshot.sources.collection import EOF as EOF
    from snapshot.sources.collection import PAUSE as PAUSE
    from snapshot.sources.collection import Collection as Collection
    from snapshot.sources.files import Files as Files
    from snapshot.sources.generate import Generate as Generate
    from snapshot.sources.kafka import Kafka as Kafka
    from snapshot.sources.kafka_avro import Avro as Avro
    from statebackend.states.codecs import Codec as Codec
    from statebackend.states.codecs import Pickled as Pickled
    from statebackend.states.declarations import Aggregating as Aggregating
    from statebackend.states.declarations import ListOf as ListOf
    from statebackend.states.declarations import MapOf as MapOf
    from statebackend.states.declarations import Reducing as Reducing
    from statebackend.states.declarations import Value as Value
    from statebackend.states.list_state import ListState as ListState
    from statebackend.states.map_state import MapState as MapState
    from statebackend.states.ttl import Ttl as Ttl
    from statebackend.states.value_state import AggregatingState as AggregatingState
    from statebackend.states.value_state import ReducingState as ReducingState
    from statebackend.states.value_state import ValueState as ValueState
    from statebackend.tables.accumulators import Accumulator as Accumulator
    from statebackend.tables.aggregates import Aggregates as Aggregates
    from statebackend.tables.aggregations import Aggregation as Aggregation
    from statebackend.tables.aggregations import Count as Count
    from statebackend.tables.aggregations import First as First
    from statebackend.tables.aggregations import Last as Last
    from statebackend.tables.aggregations import Max as Max
    from statebackend.tables.aggregations import Mean as Mean
    from statebackend.tables.aggregations import Min as Min
    from statebackend.tables.aggregations import Sum as Sum

_HOME = {
    "snapshot.operators.broadcast": ("KeyedBroadcastProcess",),
    "snapshot.operators.broadcast_state": ("Broadcast",),
    "snapshot.operators.connected": ("KeyedCoProcess",),
    "snapshot.operators.keyed_function": ("OpenContext", "ProcessContext"),
    "snapshot.operators.process": ("KeyedProcess",),
    "snapshot.operators.process_batch": ("BatchContext", "BatchProcess"),
    "snapshot.operators.windows": ("Session", "Sliding", "Tumbling", "WindowFunction"),
    "snapshot.program.connected_streams": ("ConnectedStreams", "ControlledStream"),
    "snapshot.program.control_stream": ("ControlStream",),
    "snapshot.program.keyed_stream": ("KeyedStream",),
    "snapshot.program.plan": ("EventTime",),
    "snapshot.program.problems": ("ProgramError",),
    "snapshot.program.program": ("Program",),
    "snapshot.program.row_class": ("Row", "RowLike"),
    "snapshot.program.stream": ("Stream",),
    "snapshot.program.windowed_stream": ("WindowedStream",),
    "snapshot.sinks.delta_sink": ("ToDelta",),
    "snapshot.sinks.driver_sink": ("ToDriver",),
    "snapshot.sinks.file_sink": ("ToFiles",),
    "snapshot.sinks.listed_folder": ("committed_files",),
    "snapshot.sinks.http_sink": ("ToHTTP",),
    "snapshot.sinks.kafka_sink": ("ToKafka",),
    "snapshot.sinks.heap_sink": ("ToHeap", "read_heap"),
    "snapshot.sinks.postgres_sink": ("ToPostgres",),
    "snapshot.sinks.rocksdb_sink": ("ToRocksDB", "read_rocksdb"),
    "snapshot.sinks.sqlite_sink": ("ToSQLite",),
    "snapshot.sources.collection": ("ABORT", "Collection", "EOF", "PAUSE"),
    "snapshot.sources.files": ("Files",),
    "snapshot.sources.generate": ("Generate",),
    "snapshot.sources.kafka": ("Kafka",),
    "snapshot.sources.kafka_avro": ("Avro",),
    "statebackend.states.codecs": ("Codec", "Pickled"),
    "statebackend.states.declarations": ("Aggregating", "ListOf", "MapOf", "Reducing", "Value"),
    "statebackend.states.list_state": ("ListState",),
    "statebackend.states.map_state": ("MapState",),
    "statebackend.states.ttl": ("Ttl",),
    "statebackend.states.value_state": ("AggregatingState", "ReducingState", "ValueState"),
    "statebackend.tables.accumulators": ("Accumulator",),
    "statebackend.tables.aggregates": ("Aggregates",),
    "statebackend.tables.aggregations": ("Aggregation", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        here = sys.modules[__name__]  # told so that Python says which name is near
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=here)
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
