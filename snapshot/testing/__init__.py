"""Kits for testing protocols and operators: a simulated network, checkers, diagrams, conformance tests, a harness.

The names of this package need nothing but the standard library. `snapshot.testing.operators` runs operators and users'
functions without a host and loads Arrow, as the kits of sinks and sources do. The search for counterexamples,
`snapshot.testing.search`, and the kit `sink_machine` need hypothesis (`pip install epochcut[testing]`).
"""

from __future__ import annotations

from snapshot.testing.checkers import (
    check_channel_state,
    check_consistent,
    check_exactly_once,
    check_sequential,
)
from snapshot.testing.diagram import as_text
from snapshot.testing.diagram_svg import as_svg
from snapshot.testing.faults import NO_FAULTS, Faults
from snapshot.testing.history import Channel, Cut, History, Kind, Record, Violation
from snapshot.testing.network import InFlight
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
from snapshot.testing.simulation import EXPLORED, Always, Simulation, Statistics

__all__ = [
    "EXPLORED",
    "NO_FAULTS",
    "Acted",
    "Action",
    "Always",
    "Broken",
    "Channel",
    "Cut",
    "Effect",
    "Event",
    "Faults",
    "History",
    "InFlight",
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
    "as_svg",
    "as_text",
    "check_channel_state",
    "check_consistent",
    "check_exactly_once",
    "check_sequential",
]
