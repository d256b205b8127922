from __future__ import annotations

from typing import ClassVar

from snapshot import KeyedProcess, Program, Stream, Tumbling
from snapshot.operators.row_class import Row
from statebackend import ValueState
from tests.program_parts import CLICKS, Nowhere, clicks


class Suspicious(KeyedProcess):
    output: ClassVar[dict[str, object]] = {"user": str, "why": str}
    limit = ValueState(int, default=100)

    def on_event(self, event: Row, ctx: object) -> None: ...


def paid(row: Row) -> bool:
    return bool(row.cents)


def spending(web: Stream) -> Program:
    """A program with everything that a picture shows."""
    shop = clicks("shop").with_event_time("at", out_of_order="5s", idle_after="1m")
    all_clicks = web.union(shop).filter(paid)
    sums = all_clicks.key_by("user").window(Tumbling("1m"), late=True).sum("cents", uid="spent")
    fraud = all_clicks.key_by("user").process(Suspicious, uid="fraud", sides={"odd": CLICKS})
    return Program.of(
        sums.select("user", "cents").write(Nowhere(), uid="sums"),
        sums.side("late").union(fraud.side("odd")).write(Nowhere(exactly_once=False), uid="rest"),
        fraud.rebalance(uid="deal").write(Nowhere(), uid="alarms"),
    )


GOLDEN = """\
shop: read(Nothing)
│ rows: user: string, cents: int64, at: timestamp[ms]
└─ event time from at, out of order by up to 5 s, idle after 1 min
   └─ filter(paid)
      ├─ by key (user) to fraud
      └─ by key (user) to spent

web: read(Nothing)
│ rows: user: string, cents: int64, at: timestamp[ms]
└─ event time from at, out of order by up to 5 s
   └─ filter(paid)
      ├─ by key (user) to fraud
      └─ by key (user) to spent

fraud: process(Suspicious)
│ from web by key (user)
│ from shop by key (user)
│ state: limit
│ rows: user: string, why: string
├─ in turns to deal
└─ side odd (user: string, cents: int64, at: timestamp[ms]): in the same partition to rest

deal: rebalance
│ from fraud in turns
│ rows: user: string, why: string
└─ alarms: write(Nowhere)

spent: aggregate(cents) in 1 min windows
│ from web by key (user)
│ from shop by key (user)
│ state: totals
│ rows: user: string, window_start: timestamp[ms], window_end: timestamp[ms], cents: int64
├─ select(user, cents) -> user: string, cents: int64
│  └─ sums: write(Nowhere)
└─ side late (user: string, cents: int64, at: timestamp[ms]): in the same partition to rest

rest: union
│ from spent in the same partition
│ from fraud in the same partition
│ rows: user: string, cents: int64, at: timestamp[ms]
└─ rest: write(Nowhere), at least once
"""


def test_a_program_is_drawn_with_its_stages_chains_exchanges_uids_schemas_and_keys() -> None:
    assert spending(clicks("web", timed=True)).explain() == GOLDEN
