"""A store in memory that keeps uploads waiting, or refuses them, as long as one likes.

Invariant: only uploads are disturbed; whatever was answered was done.
"""

from __future__ import annotations

import threading
from enum import Enum
from pathlib import Path
from typing import Final

from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import StoreUnavailable

_PATIENCE: Final = 60.0


class Fault(Enum):
    """The fate of uploads."""

    NONE = "none"
    REFUSED = "every upload is refused"
    EVERY_SECOND = "every second upload is refused"
    ANSWER_LOST = "every second upload is done, and then said to have failed"


class FaultyStore(MemoryStore):
    """A `BlobStore` whose uploads wait while it is stalled; then they end as `fault` says."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.fault = Fault.NONE
        self.was_disturbed = False
        """True if an upload has failed."""
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._count = 0

    def stall(self) -> None:
        """Let uploads that come from now on wait."""
        self._open.clear()

    def go_on(self) -> None:
        """Let uploads wait no longer."""
        self._open.set()

    def upload(self, source: Path, path: str) -> None:
        """Wait, and then fail or not."""
        if not self._open.wait(_PATIENCE):
            raise StoreUnavailable(f"{path} has waited for {_PATIENCE} s: go_on was not called")
        with self._lock:
            self._count += 1
            second = self._count % 2 == 0
        if self.fault is Fault.REFUSED or (self.fault is Fault.EVERY_SECOND and second):
            self.was_disturbed = True
            raise StoreUnavailable(f"{path} was refused, as it should be")
        super().upload(source, path)
        if self.fault is Fault.ANSWER_LOST and second:
            self.was_disturbed = True
            raise StoreUnavailable(f"the answer to {path} was lost, as it should be")

    def clear(self) -> None:
        """Delete all blobs."""
        for info in self.list():
            self.delete(info.path)
