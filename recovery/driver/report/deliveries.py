"""The rows that a job gives to the program of its driver: each transaction counts once, however often it is committed.

Invariant: rows of a transaction are handed out once in this driver's life, and not at all if the journal says
that they were committed under an earlier one; rows without a transaction are handed out whenever they come, but for
those that another member of their partition has brought in the same attempt. Readers in any thread wait until there are
rows, and are told when there will be no more.

Which transactions to remember: those that the newest complete epoch names, for a roll-back to it commits them again,
also if they are known to be committed; and those that were delivered since. The caller owes that it drops what an older
attempt delivers: whatever of that the newest epoch does not name had come before it was complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import pyarrow as pa

from recovery.waiting import PIECE
from snapshot.host.protocol.messages import Delivery
from snapshot.ids import TransactionId
from snapshot.replication.positions import Position
from statebackend import means
from statebackend.ids import Incarnation, Partition, Uid


class Deliveries:
    """Rows from the partitions, by the sink that they were given to."""

    def __init__(self) -> None:
        self._changed = means.Condition()
        self._batches: dict[Uid, deque[pa.RecordBatch]] = {}
        self._seen: set[TransactionId] = set()
        self._taken: dict[tuple[Uid, Partition], tuple[Incarnation, Position]] = {}
        """The position behind the rows that have come, for those that have one."""
        self._ended = False
        self._rows = 0

    @property
    def rows(self) -> int:
        """Return the number of rows that have come, each counted once."""
        return self._rows

    def add(self, delivery: Delivery) -> None:
        """Take rows of the current attempt, unless their transaction was taken before."""
        if delivery.transaction is not None:
            if delivery.transaction in self._seen:
                return
            self._seen.add(delivery.transaction)
        rows = pa.ipc.open_stream(delivery.rows).read_all()
        if delivery.at is not None:
            rows = rows.slice(len(rows) - self._new(delivery, delivery.at, len(rows)))
        batches = rows.to_batches()
        with self._changed:
            self._batches.setdefault(delivery.uid, deque()).extend(batches)
            self._rows += sum(batch.num_rows for batch in batches)
            self._changed.notify_all()

    def _new(self, delivery: Delivery, at: Position, rows: int) -> int:
        """Return how many of so many rows, the last ones, no other member has brought."""
        place = delivery.uid, delivery.partition
        incarnation, taken = self._taken.get(place, (delivery.incarnation, Position(at.segment)))
        if incarnation != delivery.incarnation or taken.segment < at.segment:
            taken = Position(at.segment)
        if at.segment < taken.segment:
            return 0
        end = at.element + rows
        self._taken[place] = delivery.incarnation, Position(at.segment, max(end, taken.element))
        return max(0, min(rows, end - taken.element))

    def delivered(self, named: Iterable[TransactionId]) -> None:
        """Remember these transactions as delivered to the program of an earlier driver."""
        self._seen.update(named)

    def completed(self, named: Iterable[TransactionId]) -> None:
        """Forget all transactions but those that the epoch, now complete, names."""
        self._seen.intersection_update(named)

    def end(self) -> None:
        """Take note that no more rows come, and tell all readers."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def batches(self, uid: Uid) -> Iterator[pa.RecordBatch]:
        """Yield the batches of this sink that no reader has taken yet, and wait for more until the end."""
        while True:
            with self._changed:
                queue = self._batches.setdefault(uid, deque())
                while not queue and not self._ended:
                    self._changed.wait(PIECE)
                if not queue:
                    return
                batch = queue.popleft()
            yield batch
