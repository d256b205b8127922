"""Kits for testing protocols: a simulated network, checkers, diagrams and conformance tests."""

from __future__ import annotations

from snapshot.testing.faults import NO_FAULTS, Faults
from snapshot.testing.history import Channel, Cut, History, Kind, Record
from snapshot.testing.process import (
    Acted,
    Action,
    Broken,
    Effect,
    Event,
    Note,
    Process,
    Received,
    Save,
    Send,
    Started,
)
from snapshot.testing.schedule import Schedule
from snapshot.testing.simulation import EXPLORED, Simulation, Statistics
from snapshot.testing.violation import Violation

__all__ = [
    "EXPLORED",
    "NO_FAULTS",
    "Acted",
    "Action",
    "Broken",
    "Channel",
    "Cut",
    "Effect",
    "Event",
    "Faults",
    "History",
    "Kind",
    "Note",
    "Process",
    "Received",
    "Record",
    "Save",
    "Schedule",
    "Send",
    "Simulation",
    "Started",
    "Statistics",
    "Violation",
]
