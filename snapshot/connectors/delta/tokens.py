"""What names a transaction in a Delta table: an application id and version in its log, and the names of its data files.

What always holds: an application id is used by one writer (a partition, in one attempt) for one transaction after the
other, and by the next only when the one before is known to be committed or had no rows. So a version in the log that is
not lower than a transaction's number says that it is committed, and nothing else does. A name of a file says which
transaction it is of, and under which id to look for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Final

from snapshot.connectors.files.names import file_name, transaction_of
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId

_NAME: Final = re.compile(r"(?P<writer>[0-9a-f]{16})-(?P<slot>0|[1-9][0-9]*)-(?P<rest>part-[A-Za-z0-9._-]*\.parquet)")
_SLASH: Final = ".2f"
"""What stands for a slash, in place of the `~` of other names: deltalake cannot compact files with that in theirs."""


@dataclass(frozen=True, slots=True)
class DeltaToken:
    """A transaction under the application id that was given to it.

    `writer` was drawn when its writer was opened: a job whose tree was put back from an older copy makes transactions
    of the same names again.
    """

    transaction: TransactionId
    writer: str
    slot: int

    @property
    def app(self) -> str:
        """Return Delta's application id; a writer has as many as it had uncommitted transactions at a time."""
        return f"epochcut/{self.transaction.rpartition('-')[0]}/{self.writer}-{self.slot}"

    @property
    def version(self) -> int:
        """Return Delta's version for the transaction, which is its number."""
        return parse_transaction_id(self.transaction).n

    def file(self, number: int) -> str:
        """Return the name of the transaction's data file with this number."""
        name = file_name(self.transaction, number, "parquet")
        return f"{self.writer}-{self.slot}-{name.replace('~', _SLASH)}"


def token_of(name: str) -> DeltaToken | None:
    """Return the token of the data file with this name; None if it is not ours to touch."""
    match = _NAME.fullmatch(name)
    transaction = None if match is None else transaction_of(match["rest"].replace(_SLASH, "~"))
    if match is None or transaction is None:
        return None
    return DeltaToken(transaction, match["writer"], int(match["slot"]))


class Slots:
    """The application ids of one writer. The event loop and other threads may share it."""

    def __init__(self) -> None:
        self._writer = token_hex(8)
        self._lock = Lock()
        self._taken: dict[TransactionId, int] = {}

    def take(self, transaction: TransactionId) -> DeltaToken:
        """Take a free application id for a transaction that begins."""
        with self._lock:
            taken = set(self._taken.values())
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            self._taken[transaction] = slot
        return DeltaToken(transaction, self._writer, slot)

    def free(self, transaction: TransactionId) -> None:
        """Free the id of a transaction that is committed or has no rows; does nothing for another writer's."""
        with self._lock:
            self._taken.pop(transaction, None)
