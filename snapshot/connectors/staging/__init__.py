"""The parts that sinks are built with: rows that wait in the job's tree, commit tokens, and checks of payloads.

A writer of sinks imports them from here. A sink whose target has transactions, but keeps none after a crash, stages its
rows (`StagedRows`), and stores a `Token` in the transaction that writes them (`commit_by_token`). Every sink reads what
a payload says by `read_payload`, as a tree may be forged. `snapshot/README.md` says which sink needs which part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from snapshot.connectors.staging.commit_tokens import TargetError as TargetError
    from snapshot.connectors.staging.commit_tokens import Token as Token
    from snapshot.connectors.staging.commit_tokens import TokenLives as TokenLives
    from snapshot.connectors.staging.commit_tokens import TokenTarget as TokenTarget
    from snapshot.connectors.staging.commit_tokens import commit_by_token as commit_by_token
    from snapshot.connectors.staging.commit_tokens import overtaken as overtaken
    from snapshot.connectors.staging.commit_tokens import to_forget as to_forget
    from snapshot.connectors.staging.commit_tokens import token_of as token_of
    from snapshot.connectors.staging.direct_rows import DirectRows as DirectRows
    from snapshot.connectors.staging.payloads import MADE_BY as MADE_BY
    from snapshot.connectors.staging.payloads import NONCE as NONCE
    from snapshot.connectors.staging.payloads import PLACE as PLACE
    from snapshot.connectors.staging.payloads import BadPayload as BadPayload
    from snapshot.connectors.staging.payloads import PayloadFields as PayloadFields
    from snapshot.connectors.staging.payloads import for_another_place as for_another_place
    from snapshot.connectors.staging.payloads import place_text as place_text
    from snapshot.connectors.staging.payloads import read_payload as read_payload
    from snapshot.connectors.staging.staged_rows import UNREADABLE as UNREADABLE
    from snapshot.connectors.staging.staged_rows import StagedRows as StagedRows
    from snapshot.connectors.staging.staged_rows import in_chunks as in_chunks
    from snapshot.connectors.staging.staged_rows import last_of_each as last_of_each
    from snapshot.connectors.staging.staged_rows import parted as parted
    from snapshot.connectors.staging.staged_rows import staged_batches as staged_batches
    from snapshot.connectors.staging.staged_rows import unreadable as unreadable
    from snapshot.epochs.token_commit import Outcome as Outcome
    from snapshot.epochs.token_commit import TargetAnswer as TargetAnswer
    from snapshot.epochs.transaction_events import parse_transaction_id as parse_transaction_id

__all__, __getattr__, __dir__ = on_demand(
    __name__,
    {
        "snapshot.connectors.staging.commit_tokens": (
            "TargetError",
            "Token",
            "TokenLives",
            "TokenTarget",
            "commit_by_token",
            "overtaken",
            "to_forget",
            "token_of",
        ),
        "snapshot.connectors.staging.direct_rows": ("DirectRows",),
        "snapshot.connectors.staging.payloads": (
            "BadPayload",
            "MADE_BY",
            "NONCE",
            "PLACE",
            "PayloadFields",
            "for_another_place",
            "place_text",
            "read_payload",
        ),
        "snapshot.connectors.staging.staged_rows": (
            "StagedRows",
            "UNREADABLE",
            "in_chunks",
            "last_of_each",
            "parted",
            "staged_batches",
            "unreadable",
        ),
        "snapshot.epochs.token_commit": ("Outcome", "TargetAnswer"),
        "snapshot.epochs.transaction_events": ("parse_transaction_id",),
    },
)
