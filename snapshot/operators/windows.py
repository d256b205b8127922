"""Windows: what a program says of them, and the operators that work in them."""

from __future__ import annotations

from snapshot.operators.window_aggregate import WindowAggregate
from snapshot.operators.window_calls import WindowFunction
from snapshot.operators.window_kinds import Session, Sliding, Tumbling, Window
from snapshot.operators.window_operator import LATE
from snapshot.operators.window_process import WindowProcess
from snapshot.operators.window_reduce import WindowReduce

__all__ = [
    "LATE",
    "Session",
    "Sliding",
    "Tumbling",
    "Window",
    "WindowAggregate",
    "WindowFunction",
    "WindowProcess",
    "WindowReduce",
]
