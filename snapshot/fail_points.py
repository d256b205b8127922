"""Named places of a running job at which a test can look, wait or crash, in a partition's process and in the driver.

Invariant: what `statebackend.fail_points` says of its own; all of a job's points together are in `POINTS`.
"""

from __future__ import annotations

from typing import Final

from statebackend import fail_points
from statebackend.fail_points import reached as reached

DEPLOYED: Final = "deployed"
BEFORE_REWIND: Final = "before state is rewound"
REWOUND: Final = "state rewound"
JOINED: Final = "joined"
RESTORED_TOLD: Final = "restored told"
IN_FLIGHT_TAKEN_BACK: Final = "in-flight data taken back"
TRIGGER_HEARD: Final = "trigger heard"
ALIGNMENT_BEGUN: Final = "alignment begun"
MARKER_SENT: Final = "marker sent"
STATE_CUT: Final = "state cut"
SINKS_SEALED: Final = "sinks sealed"
IN_FLIGHT_STORED: Final = "in-flight data stored"
BEFORE_PREPARE: Final = "before prepare"
AFTER_PREPARE: Final = "after prepare"
BEFORE_ACKNOWLEDGE: Final = "before acknowledge"
AFTER_ACKNOWLEDGE: Final = "after acknowledge"
COMPLETE_HEARD: Final = "complete heard"
BEFORE_COMMIT: Final = "before commit"
AFTER_COMMIT: Final = "after commit"
COMMITTED_TOLD: Final = "committed told"
OUTPUT_ENDED: Final = "output ended"

PARTITION_POINTS: Final = (
    DEPLOYED,
    BEFORE_REWIND,
    REWOUND,
    JOINED,
    RESTORED_TOLD,
    IN_FLIGHT_TAKEN_BACK,
    TRIGGER_HEARD,
    ALIGNMENT_BEGUN,
    MARKER_SENT,
    STATE_CUT,
    SINKS_SEALED,
    IN_FLIGHT_STORED,
    BEFORE_PREPARE,
    AFTER_PREPARE,
    BEFORE_ACKNOWLEDGE,
    AFTER_ACKNOWLEDGE,
    COMPLETE_HEARD,
    BEFORE_COMMIT,
    AFTER_COMMIT,
    COMMITTED_TOLD,
    OUTPUT_ENDED,
)
"""Those of a partition's process, in the order in which it comes to them."""

CLAIMED: Final = "claimed"
ROLE_SENT: Final = "role sent"
TRIGGER_SENT: Final = "trigger sent"
BEFORE_PUBLISH: Final = "before publish"
MANIFEST_WRITTEN: Final = "manifest written"
EPOCH_ENTERED: Final = "epoch entered"
BEFORE_COMPLETE: Final = "before complete is told"
COMPLETE_TOLD: Final = "complete told"
BEFORE_COMMITTED: Final = "before committed is entered"
COMMITTED_ENTERED: Final = "committed entered"
REMOVAL_ENTERED: Final = "removal entered"
BLOB_REMOVED: Final = "blob removed"
ORPHAN_DELETED: Final = "orphan deleted"
BEFORE_LEAVE: Final = "before leave"

DRIVER_POINTS: Final = (
    CLAIMED,
    ROLE_SENT,
    TRIGGER_SENT,
    BEFORE_PUBLISH,
    MANIFEST_WRITTEN,
    EPOCH_ENTERED,
    BEFORE_COMPLETE,
    COMPLETE_TOLD,
    BEFORE_COMMITTED,
    COMMITTED_ENTERED,
    REMOVAL_ENTERED,
    BLOB_REMOVED,
    ORPHAN_DELETED,
    BEFORE_LEAVE,
)
"""Those of the driver, in the order in which it comes to them."""

POINTS: Final = (*fail_points.POINTS, *PARTITION_POINTS, *DRIVER_POINTS)
