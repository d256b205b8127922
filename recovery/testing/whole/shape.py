"""The shape of a simulated job, drawn from a schedule: how it is run, and how it is started again.

Invariant: zeros give the simplest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.driver.settings.options import Options
from recovery.restart_strategies import FixedDelay
from recovery.schemes.active import Active
from recovery.schemes.passive import Passive
from recovery.schemes.scheme import Scheme
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.testing.schedule import Schedule

_MODES: Final = (MarkerMode.ALIGNED, MarkerMode.UNALIGNED, MarkerMode.AT_LEAST_ONCE)
_PARALLELISM: Final = ((2,), (2, 3, 1), (1, 2), (3, 2))
_STANDBYS: Final = ((0, Following.WARM), (1, Following.OPEN), (1, Following.FILES), (1, Following.WARM))
_BACKENDS: Final = ("heap", "rocksdb")
_RESTARTS: Final = FixedDelay(10_000, "50ms")
STORE_TIMEOUT: Final = 3_000
SLICES: Final = (None, 1, 200)
_TURNS: Final = 12_000
_TURNS_IN_ROUNDS: Final = 80_000
"""Threads have turns with every tick, also while there is nothing else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """The way in which a job is run. Its starts have these parallelisms, one after the other, and then the last one."""

    options: Options
    parallelism: Sequence[int]
    scheme: Scheme
    chance: int
    """The seed of the order in which threads run and of the times that messages take; 0 if both are fixed."""
    own_disks: bool
    """True if each machine has a disk of its own, and not all of them one together."""
    room: int
    """Bytes that a connection holds."""
    slice_bytes: int | None
    """The size from which state is rewritten; None if that is not made small."""
    turns: int
    """The number of turns of threads after which nothing more befalls the job, and in which it then has to end."""

    @property
    def exactly_once(self) -> bool:
        """True if no row may appear twice."""
        return self.options.coordinator.mode is not MarkerMode.AT_LEAST_ONCE


def draw_shape(schedule: Schedule) -> JobShape:
    """Draw the shape of a job from the next bytes."""
    mode = _MODES[schedule.choose((4, 4, 1)) or 0]
    standbys, following = _STANDBYS[schedule.choose((4, 3, 1, 1)) or 0]
    aligned_for = (None, 5)[schedule.number(2)] if mode is MarkerMode.ALIGNED else None
    coordinator = CoordinatorOptions(
        interval=(50, 20, 100)[schedule.number(3)],
        timeout=5_000,
        max_in_flight=(2, 1, 3)[schedule.number(3)],
        tolerated_failures=(None, 1)[schedule.number(2)],
        retain=1 + schedule.number(2),
        mode=mode,
        alignment_timeout=aligned_for,
    )
    host = HostOptions(
        batch_rows=(4, 2)[schedule.number(2)],
        channel_buffer=(1 << 20, 300)[schedule.number(2)],
        input_buffer=(4 << 20, 500)[schedule.number(2)],
        store_timeout=STORE_TIMEOUT,
        state_backend=_BACKENDS[schedule.choose((5, 1)) or 0],
        alignment_timeout=aligned_for,
    )
    passive = Passive(standbys=standbys, following=following, restarts=_RESTARTS, poisoned_after=10_000)
    in_rounds = mode is MarkerMode.ALIGNED and aligned_for is None and schedule.number(4) == 3
    return JobShape(
        options=Options(
            coordinator=coordinator,
            host=host,
            compact_after=(256, 6)[schedule.number(2)],
            start_timeout=20_000,
            stop_timeout=5_000,
            give_up_after=None,
        ),
        parallelism=_PARALLELISM[schedule.number(len(_PARALLELISM))],
        scheme=Active(tick="5ms", fallback=passive) if in_rounds else passive,
        chance=schedule.number(256),
        room=(1 << 18, 600)[schedule.number(2)],
        slice_bytes=SLICES[schedule.number(len(SLICES))],
        turns=_TURNS_IN_ROUNDS if in_rounds else _TURNS,
        own_disks=schedule.flag(),
    )
