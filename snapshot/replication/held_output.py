"""The rows of a sink that a replica holds while another one, the primary, writes them.

Invariant: when the replica takes over from the primary, what it hands out, together with what the newest complete epoch
has, is all that the sink was given, once: nothing is dropped before the epoch that has it is complete, and nothing of a
complete epoch is handed out.

Rows of an epoch that was given up stay with those of the next one, as they do in a transaction of a sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from statebackend.errors import JobError
from statebackend.ids import NO_EPOCH, Epoch

Rows = TypeVar("Rows")


class NotYetCut(JobError):
    """The newest complete epoch was not cut here: it is not known which of the held rows it has."""


class HeldOutput(Generic[Rows]):
    """The rows that one sink was given in one attempt since the newest complete epoch, in order; `began` is that one.

    An epoch may be complete before it is cut here: then it waits for its cut, as rows of it may still come.
    """

    def __init__(self, began: Epoch = NO_EPOCH) -> None:
        self._complete = began
        self._cut = began  # the newest
        self._parts: deque[tuple[Epoch, list[tuple[Rows, int]]]] = deque()
        self._open: list[tuple[Rows, int]] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Return how much memory the held rows take."""
        return self._size

    def add(self, rows: Rows, size: int) -> None:
        """Hold rows that take so much memory."""
        self._open.append((rows, size))
        self._size += size

    def cut(self, epoch: Epoch) -> None:
        """Let all that was added since the last cut belong to an epoch."""
        self._parts.append((epoch, self._open))
        self._open, self._cut = [], epoch
        self._drop()

    def completed(self, epoch: Epoch) -> None:
        """Drop what belongs to an epoch that is complete, and to those before it."""
        self._complete = max(self._complete, epoch)
        self._drop()

    def take_over(self) -> Sequence[Rows]:
        """Return what no complete epoch has, in order, and hold nothing any more.

        Raise `NotYetCut` if that is not known; the caller waits then until the newest complete epoch is cut here.
        """
        if self._complete > self._cut:
            raise NotYetCut(f"epoch {self._complete} is complete and was not cut here yet; take over when it is")
        held = [rows for _, part in self._parts for rows, _ in part] + [rows for rows, _ in self._open]
        self._parts.clear()
        self._open, self._size = [], 0
        return held

    def _drop(self) -> None:
        while self._parts and self._parts[0][0] <= self._complete:
            _, part = self._parts.popleft()
            self._size -= sum(size for _, size in part)
