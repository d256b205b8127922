"""Keyed state: declared, cut, stored, restored, rescaled. What programs need is named here, and loaded on demand.

What always holds: importing this package alone loads neither Arrow nor RocksDB, so the protocol machines that share
its identifiers stay light.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statebackend.files import FileSet as FileSet
    from statebackend.ids import Attempt as Attempt
    from statebackend.ids import Epoch as Epoch
    from statebackend.ids import Generation as Generation
    from statebackend.ids import Partition as Partition
    from statebackend.keyed_state import KeyedState as KeyedState
    from statebackend.keygroups import range_of as range_of
    from statebackend.operator import Operator as Operator
    from statebackend.options import Options as Options
    from statebackend.snapshot_folder import SnapshotFolder as SnapshotFolder
    from statebackend.snapshots.snapshot_log import Snapshot as Snapshot
    from statebackend.states.aggregates import AggregateTable as AggregateTable
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
    from statebackend.states.timer_state import Timers as Timers
    from statebackend.states.ttl import Ttl as Ttl
    from statebackend.states.value_state import AggregatingHandle as AggregatingHandle
    from statebackend.states.value_state import ReducingHandle as ReducingHandle
    from statebackend.states.value_state import ValueHandle as ValueHandle
    from statebackend.stores.fsspec_store import open_store as open_store
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
    "files": ("FileSet",),
    "ids": ("Attempt", "Epoch", "Generation", "Partition"),
    "keyed_state": ("KeyedState",),
    "keygroups": ("range_of",),
    "operator": ("Operator",),
    "options": ("Options",),
    "snapshot_folder": ("SnapshotFolder",),
    "snapshots.snapshot_log": ("Snapshot",),
    "states.aggregates": ("AggregateTable",),
    "states.codecs": ("Codec", "NotEncodable", "Pickled"),
    "states.declarations": ("AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"),
    "states.list_state": ("ListHandle",),
    "states.map_state": ("MapHandle",),
    "states.namespaces": ("Window",),
    "states.timer_state": ("Timers",),
    "states.ttl": ("Ttl",),
    "states.value_state": ("AggregatingHandle", "ReducingHandle", "ValueHandle"),
    "stores.fsspec_store": ("open_store",),
    "tables.values.accumulators": ("Accumulator",),
    "tables.values.aggregations": ("Aggregation", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        here = sys.modules[__name__]  # told so that Python says which name is near
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=here)
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
