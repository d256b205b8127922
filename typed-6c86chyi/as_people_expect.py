
from typing import assert_type

import recovery
from snapshot import KeyedCoProcess, KeyedProcess, ListState, MapState, ProcessContext, ReducingState, Row, ValueState
from statebackend import FileSet, SnapshotFolder


class Joined(KeyedCoProcess):
    name = ValueState(str)
    total = ValueState(int, default=0)
    amounts = ListState(float)
    pages = MapState(str, int)
    most = ReducingState(int, max)

    def on_first(self, order: Row, c: ProcessContext) -> None:
        assert_type(self.name.get(), str | None)
        assert_type(self.total.get(), int)
        assert_type(self.amounts.get(), list[float])
        assert_type(self.pages.get("a"), int | None)
        assert_type(self.most.get(), int | None)
        self.name.set("ann")
        self.name.set(None)
        self.total.set(self.total.get() + 1)

    def on_second(self, user, ctx):
        self.pages.put(user.page, 1)

    def on_timer(self, when: int, c: ProcessContext) -> None:
        c.emit((when,))


def in_order(run: recovery.Run) -> list[str]:
    return [row["word"] for row in sorted(run.rows("counts"), key=lambda row: (row["window_start"], row["word"]))]


def completed(folder: SnapshotFolder, files: FileSet) -> None:
    day = folder.begin()
    folder.names(day, partition=0, attempt=0)
    folder.complete(folder.next_epoch(day), {0: files}, note="7")
