"""The cut and the programs that are cut: frames, marker rules and commits without I/O, and streams that run under them.

What always holds: importing this package alone loads neither Arrow nor RocksDB, as the protocols need neither; what
programs are written with is loaded on demand.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapshot.operators.broadcast import KeyedBroadcastProcess as KeyedBroadcastProcess
    from snapshot.operators.broadcast_state import Broadcast as Broadcast
    from snapshot.operators.connected import KeyedCoProcess as KeyedCoProcess
    from snapshot.operators.keyed_function import ProcessContext as ProcessContext
    from snapshot.operators.process import KeyedProcess as KeyedProcess
    from snapshot.operators.process_batch import BatchProcess as BatchProcess
    from snapshot.operators.windows import Session as Session
    from snapshot.operators.windows import Sliding as Sliding
    from snapshot.operators.windows import Tumbling as Tumbling
    from snapshot.operators.windows import WindowFunction as WindowFunction
    from snapshot.program.plan import EventTime as EventTime
    from snapshot.program.problems import ProgramError as ProgramError
    from snapshot.program.program import Program as Program
    from snapshot.program.stream import Stream as Stream
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

_HOME = {
    "operators.broadcast": ("KeyedBroadcastProcess",),
    "operators.broadcast_state": ("Broadcast",),
    "operators.connected": ("KeyedCoProcess",),
    "operators.keyed_function": ("ProcessContext",),
    "operators.process": ("KeyedProcess",),
    "operators.process_batch": ("BatchProcess",),
    "operators.windows": ("Session", "Sliding", "Tumbling", "WindowFunction"),
    "program.plan": ("EventTime",),
    "program.problems": ("ProgramError",),
    "program.program": ("Program",),
    "program.stream": ("Stream",),
    "sinks.delta_sink": ("ToDelta",),
    "sinks.driver_sink": ("ToDriver",),
    "sinks.file_sink": ("ToFiles",),
    "sinks.listed_folder": ("committed_files",),
    "sinks.http_sink": ("ToHTTP",),
    "sinks.kafka_sink": ("ToKafka",),
    "sinks.heap_sink": ("ToHeap", "read_heap"),
    "sinks.postgres_sink": ("ToPostgres",),
    "sinks.rocksdb_sink": ("ToRocksDB", "read_rocksdb"),
    "sinks.sqlite_sink": ("ToSQLite",),
    "sources.collection": ("ABORT", "Collection", "EOF", "PAUSE"),
    "sources.files": ("Files",),
    "sources.generate": ("Generate",),
    "sources.kafka": ("Kafka",),
    "sources.kafka_avro": ("Avro",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
