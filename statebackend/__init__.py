"""Keyed state: declared, cut, stored, restored, rescaled. What programs need is named here, and loaded on demand.

Invariant: importing this package alone loads neither Arrow nor RocksDB, so the protocol machines that share
its identifiers stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
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
    from statebackend.files import FileSet as FileSet
    from statebackend.ids import Attempt as Attempt
    from statebackend.ids import Epoch as Epoch
    from statebackend.ids import Generation as Generation
    from statebackend.ids import Incarnation as Incarnation
    from statebackend.ids import Partition as Partition
    from statebackend.ids import Uid as Uid
    from statebackend.keyed_state import KeyedState as KeyedState
    from statebackend.keyed_state import SnapshotFailed as SnapshotFailed
    from statebackend.keygroups import range_of as range_of
    from statebackend.operator import Operator as Operator
    from statebackend.options import Options as Options
    from statebackend.random_state import KeyedRandom as KeyedRandom
    from statebackend.random_state import RandomHandle as RandomHandle
    from statebackend.random_state import RandomState as RandomState
    from statebackend.snapshot_folder import SnapshotFolder as SnapshotFolder
    from statebackend.snapshots.snapshot_log import Snapshot as Snapshot
    from statebackend.states.aggregates import AggregateTable as AggregateTable
    from statebackend.states.codec_choice import NoCodec as NoCodec
    from statebackend.states.codecs import Codec as Codec
    from statebackend.states.codecs import NotEncodable as NotEncodable
    from statebackend.states.codecs import Pickled as Pickled
    from statebackend.states.declarations import AggregatingState as AggregatingState
    from statebackend.states.declarations import ListState as ListState
    from statebackend.states.declarations import MapState as MapState
    from statebackend.states.declarations import ReducingState as ReducingState
    from statebackend.states.declarations import ValueState as ValueState
    from statebackend.states.list_state import ListHandle as ListHandle
    from statebackend.states.map_state import MapHandle as MapHandle
    from statebackend.states.namespaces import Window as Window
    from statebackend.states.row_form import UnreadableValue as UnreadableValue
    from statebackend.states.row_form import WrongValueType as WrongValueType
    from statebackend.states.schema import StateMismatch as StateMismatch
    from statebackend.states.timer_state import Timers as Timers
    from statebackend.states.ttl import Ttl as Ttl
    from statebackend.states.value_state import AggregatingHandle as AggregatingHandle
    from statebackend.states.value_state import ReducingHandle as ReducingHandle
    from statebackend.states.value_state import ValueHandle as ValueHandle
    from statebackend.stores.fsspec_store import open_store as open_store
    from statebackend.stores.store import BlobStoreError as BlobStoreError
    from statebackend.tables.table import Table as Table
    from statebackend.tables.values.accumulators import Accumulator as Accumulator
    from statebackend.tables.values.aggregations import Aggregation as Aggregation
    from statebackend.tables.values.aggregations import Count as Count
    from statebackend.tables.values.aggregations import First as First
    from statebackend.tables.values.aggregations import Last as Last
    from statebackend.tables.values.aggregations import Max as Max
    from statebackend.tables.values.aggregations import Mean as Mean
    from statebackend.tables.values.aggregations import Min as Min
    from statebackend.tables.values.aggregations import Sum as Sum
    from statebackend.tables.values.spec import TableError as TableError

_HOME = {
    "statebackend.columns": ("NotASchema", "SchemaLike"),
    "statebackend.durations": ("Duration", "NotADuration"),
    "statebackend.errors": ("EpochcutError", "JobError", "OptionError", "ProgramError", "SavepointError", "StoreError"),
    "statebackend.files": ("FileSet",),
    "statebackend.ids": ("Attempt", "Epoch", "Generation", "Incarnation", "Partition", "Uid"),
    "statebackend.keyed_state": ("KeyedState", "SnapshotFailed"),
    "statebackend.keygroups": ("range_of",),
    "statebackend.operator": ("Operator",),
    "statebackend.options": ("Options",),
    "statebackend.snapshot_folder": ("SnapshotFolder",),
    "statebackend.snapshots.snapshot_log": ("Snapshot",),
    "statebackend.states.aggregates": ("AggregateTable",),
    "statebackend.states.codec_choice": ("NoCodec",),
    "statebackend.states.codecs": ("Codec", "NotEncodable", "Pickled"),
    "statebackend.states.declarations": ("AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"),
    "statebackend.states.list_state": ("ListHandle",),
    "statebackend.states.map_state": ("MapHandle",),
    "statebackend.states.namespaces": ("Window",),
    "statebackend.random_state": ("KeyedRandom", "RandomHandle", "RandomState"),
    "statebackend.states.row_form": ("UnreadableValue", "WrongValueType"),
    "statebackend.states.schema": ("StateMismatch",),
    "statebackend.states.timer_state": ("Timers",),
    "statebackend.states.ttl": ("Ttl",),
    "statebackend.states.value_state": ("AggregatingHandle", "ReducingHandle", "ValueHandle"),
    "statebackend.stores.fsspec_store": ("open_store",),
    "statebackend.stores.store": ("BlobStoreError",),
    "statebackend.tables.table": ("Table",),
    "statebackend.tables.values.accumulators": ("Accumulator",),
    "statebackend.tables.values.aggregations": ("Aggregation", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"),
    "statebackend.tables.values.spec": ("TableError",),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
