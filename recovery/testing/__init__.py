"""A whole job in simulation: the protocol cores as they are, on a simulated network, store and target.

What a simulation is put together from is named here; `examples/simulated_recovery.py` puts one together, and
`Observer` says which promises it checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from recovery.testing.attempt import WorkerPlan as WorkerPlan
    from recovery.testing.driver import Driver as Driver
    from recovery.testing.generation import DriverPlan as DriverPlan
    from recovery.testing.messages import Acknowledgement as Acknowledgement
    from recovery.testing.messages import Deploy as Deploy
    from recovery.testing.messages import EpochIsOver as EpochIsOver
    from recovery.testing.messages import OnChannel as OnChannel
    from recovery.testing.messages import Restored as Restored
    from recovery.testing.messages import TriggerEpoch as TriggerEpoch
    from recovery.testing.observer import Observer as Observer
    from recovery.testing.sink import TargetKind as TargetKind
    from recovery.testing.store import SimulatedStore as SimulatedStore
    from recovery.testing.stream import Item as Item
    from recovery.testing.stream import RecordId as RecordId
    from recovery.testing.stream import Stream as Stream
    from recovery.testing.target import SimulatedTarget as SimulatedTarget
    from recovery.testing.worker import STORE as STORE
    from recovery.testing.worker import TARGET as TARGET
    from recovery.testing.worker import Worker as Worker
    from snapshot.cut.frames import Data as Data
    from snapshot.cut.frames import Marker as Marker
    from snapshot.epochs.coordinator_options import CoordinatorOptions as CoordinatorOptions

_HOME = {
    "recovery.testing.attempt": ("WorkerPlan",),
    "recovery.testing.driver": ("Driver",),
    "recovery.testing.generation": ("DriverPlan",),
    "recovery.testing.messages": ("Acknowledgement", "Deploy", "EpochIsOver", "OnChannel", "Restored", "TriggerEpoch"),
    "recovery.testing.observer": ("Observer",),
    "recovery.testing.sink": ("TargetKind",),
    "recovery.testing.store": ("SimulatedStore",),
    "recovery.testing.stream": ("Item", "RecordId", "Stream"),
    "recovery.testing.target": ("SimulatedTarget",),
    "recovery.testing.worker": ("STORE", "TARGET", "Worker"),
    "snapshot.cut.frames": ("Data", "Marker"),
    "snapshot.epochs.coordinator_options": ("CoordinatorOptions",),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
