"""What a process does while it stands by: it gets each complete epoch ready that the driver tells it of.

What always holds: it is done in one thread with low priority, always for the newest epoch that was told; what cannot
be done is told, and tried again with the next epoch; and when it is over, nothing is left behind that nobody will use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from traceback import print_exception
from typing import Final

from snapshot.host.failures import text_of
from snapshot.host.folders import open_in_folder
from snapshot.host.memory import memory_of_process
from snapshot.host.messages import Follow, Followed, StandBy
from snapshot.program.pickling import loads
from statebackend.files import FileSet
from statebackend.followed_files import FollowedFiles
from statebackend.ids import Epoch, Partition, Uid
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore

_NICENESS: Final = 5
"""How much the thread stands back behind those that run partitions on the same host."""


class Follower:
    """Follows until it is closed. `tell` is called in the thread that follows."""

    def __init__(self, stand_by: StandBy, tell: Callable[[Followed], object]) -> None:
        self._stand_by = stand_by
        self._tell = tell
        self._files: dict[tuple[Uid, Partition], FollowedFiles] = {}
        self._store: BlobStore | None = None
        self._has: Epoch | None = None
        self._cpu_before = time.process_time()
        self._next: Follow | None = None
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)
        self._thread.start()

    def follow(self, follow: Follow) -> None:
        """This epoch is complete; an older one that was told and not begun is not followed any more."""
        with self._changed:
            self._next = follow
            self._changed.notify()

    def close(self) -> None:
        """There is a role for the process, or the job is over. What is being done is brought to an end, unwaited for.

        The files are kept until `release`.
        """
        with self._changed:
            self._over = True
            self._changed.notify()

    def release(self) -> None:
        """After `close`: whoever has the role has opened its state, so nothing that is kept here is needed any more."""
        threading.Thread(target=self._let_go, name="letting go of files", daemon=True).start()

    def wait(self) -> None:
        """After `close`: until nothing is being done any more, and nothing is kept."""
        self._thread.join()
        self._let_go()

    def _let_go(self) -> None:
        self._thread.join()
        while self._files:
            with suppress(KeyError):  # two may do it
                _, files = self._files.popitem()
                try:
                    files.close()
                except Exception as error:
                    print_exception(error)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(OSError):  # whoever started the process may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (follow := self._await()) is not None:
            answer = self._answer(follow)
            if not self._over:
                self._tell(answer)

    def _await(self) -> Follow | None:
        with self._changed:
            while self._next is None and not self._over:
                self._changed.wait()
            follow, self._next = self._next, None
            return None if self._over else follow

    def _answer(self, follow: Follow) -> Followed:
        began, problem = time.monotonic(), ""
        try:
            self._get_ready(follow)
        except MissingFile:
            pass  # a later epoch is complete, and what only this one needed is being removed
        except Exception as error:  # whatever the store, the disk or the program's modules raise
            problem = text_of(error)
        brought = [files.brought for files in self._files.values()]
        return Followed(
            follow.epoch,
            self._has,
            problem,
            took_ms=(time.monotonic() - began) * 1000,
            linked_bytes=sum(part.linked_bytes for part in brought),
            downloaded_bytes=sum(part.downloaded_bytes for part in brought),
            cpu_ms=(time.process_time() - self._cpu_before) * 1000,
            memory_bytes=memory_of_process(),
        )

    def _get_ready(self, follow: Follow) -> None:
        stand_by = self._stand_by
        if self._store is None:
            loads(stand_by.plan)  # imports what the program needs
            self._store = open_store(stand_by.store)
        for uid, states in follow.states.items():
            for index, files in enumerate(states):
                if self._over:
                    return
                self._follow_files(uid, Partition(index), files, self._store)
        self._has = follow.epoch

    def _follow_files(self, uid: Uid, partition: Partition, files: FileSet, store: BlobStore) -> None:
        followed = self._files.get((uid, partition))
        if followed is None:
            followed = open_in_folder(Path(self._stand_by.local), uid, partition, FollowedFiles)
            self._files[uid, partition] = followed
        followed.follow(files, store)
