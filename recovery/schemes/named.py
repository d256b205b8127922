"""Schemes by name, for the command line: each as it is when nothing of it is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from recovery.schemes.active import Active
from recovery.schemes.micro_batches import MicroBatches
from recovery.schemes.passive import Passive
from recovery.schemes.scheme import Scheme
from recovery.schemes.synchronous import Synchronous

NAMED: Final[Mapping[str, Callable[[int], Scheme]]] = {
    "passive": Passive,
    "active": lambda standbys: Active(fallback=Passive(standbys)),
    "micro-batches": MicroBatches,
    "synchronous": Synchronous,
}
"""Makes each scheme with so many standbys."""
