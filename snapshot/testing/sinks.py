"""The conformance kit for sinks: what exactly-once output relies on, as checks that a sink without it fails.

Invariant: a check works under a job of its own, so that it may run against a target that is in use.
`check_sink(trial)` runs all of `CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each.
`sink_machine(trial)` is a state machine for hypothesis that lets the real two-phase commit drive the sink through any
order of cuts, completions, lost answers and crashes. A check that fails raises a `Violation` that names the promise.
"""

from __future__ import annotations

from collections.abc import Callable

from snapshot.testing import sink_crashes, sink_payloads, sink_promises, sink_targets
from snapshot.testing.sink_bench import (
    DONE,
    SCHEMA,
    PreparedRows,
    SinkBench,
    SinkEnvironment,
    SinkTrial,
    attempt,
    settled,
    some,
    write,
)

__all__ = [
    "CHECKS",
    "DONE",
    "SCHEMA",
    "PreparedRows",
    "SinkBench",
    "SinkEnvironment",
    "SinkTrial",
    "attempt",
    "check_sink",
    "settled",
    "some",
    "write",
]

CHECKS: tuple[Callable[[SinkTrial], None], ...] = (
    *sink_promises.PROMISES,
    *sink_crashes.PROMISES,
    *sink_targets.PROMISES,
    *sink_payloads.PROMISES,
)
"""Every promise of a sink in two phases, in the order in which it helps to know that it is broken."""


def check_sink(trial: SinkTrial) -> None:
    """Check every promise; raise `Violation` that names the first broken one."""
    for check in CHECKS:
        check(trial)
