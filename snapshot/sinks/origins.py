"""What a payload says of the sink that made it, and the refusal of one that was made by another.

What always holds: rows that were prepared for one target are written to no other, whatever the program says by the
time they are committed. They go where they were meant to go, or stay in the job's tree, and a sentence says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from snapshot.frozen_json import JsonLike
from snapshot.ids import TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.sink import CommitAnswer
from snapshot.transaction_events import CommitOutcome

MADE_BY: Final = "sink"
"""Where a payload names the class of its sink."""


def stored_in(payload: CommitPayload) -> Mapping[str, JsonLike]:
    """What a payload says beside its staged rows; nothing if it is no object."""
    value = payload.value.value()
    return value if isinstance(value, Mapping) else {}


def of_another_kind(kind: str, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer | None:
    """The refusal of a payload by a sink of this class; None if it made it, or if the payload does not say who did."""
    made_by = stored_in(payload).get(MADE_BY, kind)
    if made_by == kind:
        return None
    return CommitAnswer(
        CommitOutcome.FAILED,
        f"transaction {transaction} was prepared by {made_by}, and its sink is {kind} by now, which cannot commit it. "
        f"Give the uid its former sink until all is committed, and the new sink a uid of its own",
    )


def for_another_place(transaction: TransactionId, theirs: str, ours: str, advice: str) -> CommitAnswer:
    """The refusal of a payload whose rows are for another target; `advice` says how to tell that it is the same."""
    return CommitAnswer(
        CommitOutcome.FAILED,
        f"the rows of transaction {transaction} are for {theirs}, and its sink writes to {ours} by now; they were not "
        f"written there. Give the sink its former target until all is committed; {advice}",
    )
