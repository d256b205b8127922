"""A small job with keyed state of several kinds, stopped with a savepoint, for tests of what is done with its tree."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Final

import pyarrow as pa

import recovery
from recovery.driver.settings.options import in_their_places
from snapshot import EOF, Collection, KeyedProcess, ProcessContext, Program, Stream, ToDriver
from snapshot.operators.row_class import Row
from statebackend import ListState, MapState, ValueState
from statebackend.ids import Epoch

SALES: Final = pa.schema([("region", pa.string()), ("user", pa.int64()), ("item", pa.string()), ("cents", pa.int64())])
REGIONS: Final = ("eu", "us", "asia")
ITEMS: Final = ("tea", "cup", "pot", "jar")
USERS: Final = 40
BEFORE, AFTER = 240, 60
PATIENCE: Final = 60.0


def sale(number: int) -> tuple[str, int, str, int]:
    """One of many sales; the same for the same number."""
    return REGIONS[number * 5 % 3], number * 7 % USERS, ITEMS[number * 3 % 4], number


class Basket(KeyedProcess):
    """What each buyer has bought; the newest row of each goes out."""

    output: ClassVar = {"region": str, "user": int, "cents": int, "sales": int}
    cents = ValueState(int, default=0)
    last = ValueState(str)
    items = MapState(str, int)
    sales = ListState(int)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.cents.set(self.cents.get() + event.cents)
        self.last.set(event.item)
        self.items.put(event.item, (self.items.get(event.item) or 0) + 1)
        self.sales.add(event.cents)
        ctx.processing_timer(1 << 45)
        ctx.emit((*ctx.key, self.cents.get(), len(self.sales.get())))

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        pass


def program(rows: int = BEFORE + AFTER) -> Program:
    """Some sales, and behind an end that the first start does not get past the others."""
    some = [sale(number) for number in range(BEFORE)]
    more = [sale(number) for number in range(BEFORE, rows)]
    sales = Stream.read(Collection([*some, EOF(), *more], SALES), uid="sales")
    baskets = sales.key_by("region", "user").process(Basket, uid="baskets").write(ToDriver(), uid="bought")
    totals = sales.key_by("item").sum("cents", uid="totals").write(ToDriver(), uid="sums")
    return baskets + totals


def start(folder: Path, of: Program | None = None, **options: Any) -> recovery.Run:
    """Start the job, or go on, in this folder."""
    chosen: dict[str, Any] = {
        "every": "200ms",
        "parallelism": 2,
        "progress": False,
        "job": "shop",
        "program_version": "summer",
        **options,
    }
    return recovery.run(
        of or program(),
        checkpoints=folder / "tree",
        launcher=recovery.LocalProcesses(),
        local=folder / "local",
        **in_their_places(chosen),
    )


def stopped(folder: Path, backend: str = "rocksdb") -> Epoch:
    """Run the job until the end that it does not get past, and stop it with a savepoint."""
    run = start(folder, state_backend=backend)
    rows = run.rows("bought")
    sums = run.rows("sums")
    for _ in range(BEFORE):
        next(rows), next(sums)
    epoch = run.stop(savepoint=True, timeout=PATIENCE)
    assert epoch is not None
    return epoch


@cache
def _made(backend: str) -> Path:
    folder = Path(mkdtemp(prefix="shop-job-"))
    stopped(folder, backend)
    return folder


def tree_of(folder: Path, backend: str = "rocksdb") -> Path:
    """A copy of the stopped job's folder; what is returned is its tree."""
    shutil.copytree(_made(backend) / "tree", folder / "tree")
    return folder / "tree"


def baskets(rows: int = BEFORE) -> dict[tuple[str, int], dict[str, Any]]:
    """What the state of `baskets` is after so many sales, by key."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for region, user, item, cents in map(sale, range(rows)):
        one = found.setdefault((region, user), {"cents": 0, "items": {}, "sales": []})
        one["cents"] += cents
        one["last"] = item
        one["items"][item] = one["items"].get(item, 0) + 1
        one["sales"].append(cents)
    return found


def totals(rows: int = BEFORE) -> dict[str, int]:
    """What the state of `totals` is after so many sales."""
    found: dict[str, int] = {}
    for _, _, item, cents in map(sale, range(rows)):
        found[item] = found.get(item, 0) + cents
    return found
