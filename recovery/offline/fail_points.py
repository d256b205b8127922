"""Named places of the commands that change a tree, at which a test can look, wait or crash.

Invariant: what `statebackend.fail_points` says of its own.
"""

from __future__ import annotations

from typing import Final

from statebackend.fail_points import reached as reached

TAKEN_OVER: Final = "job taken over"
TREE_BEGUN: Final = "tree begun"
TREE_DECIDED: Final = "tree decided"
FILE_COPIED: Final = "file copied"
CHANGES_STORED: Final = "changes of a partition stored"
NEW_MANIFEST_WRITTEN: Final = "new manifest written"
NEW_EPOCH_ENTERED: Final = "new epoch entered"
JOURNAL_BEGUN: Final = "journal begun"
JOB_BORN: Final = "job born"
JOURNAL_CLOSED: Final = "journal closed"
MOVED_AWAY: Final = "job moved away"
GARBAGE_COLLECTED: Final = "garbage collected"
REPAIR_BEGUN: Final = "repair begun"
PUT_ASIDE: Final = "file put aside"
JOURNAL_MADE: Final = "journal made anew"
REPLACED_GONE: Final = "what was replaced is gone"
NAME_MADE: Final = "job named anew"

POINTS: Final = (
    TAKEN_OVER,
    TREE_BEGUN,
    TREE_DECIDED,
    FILE_COPIED,
    CHANGES_STORED,
    NEW_MANIFEST_WRITTEN,
    NEW_EPOCH_ENTERED,
    JOURNAL_BEGUN,
    JOB_BORN,
    JOURNAL_CLOSED,
    MOVED_AWAY,
    GARBAGE_COLLECTED,
    REPAIR_BEGUN,
    PUT_ASIDE,
    JOURNAL_MADE,
    REPLACED_GONE,
    NAME_MADE,
)
"""All of them."""
