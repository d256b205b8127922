from pathlib import Path

import pyarrow as pa

import recovery
from snapshot import Files, KeyedProcess, ListState, ProcessContext, Program, Row, Stream, ToDriver

MINUTE = 60_000
PAYMENT = pa.schema({"at": "int64", "card": "string", "ok": "bool"})


class Failures(KeyedProcess):
    """Report three failed payments of a card within ten minutes; forget cards without recent failures."""

    output = {"card": str, "first": int, "last": int}
    times = ListState(int)

    def on_event(self, payment: Row, ctx: ProcessContext) -> None:
        if payment.ok or ctx.timestamp is None:
            return
        self.times.add(ctx.timestamp)
        ctx.timer(ctx.timestamp + 10 * MINUTE)  # milliseconds since 1970, as all times here
        if len(failed := self.times.get()) == 3:
            ctx.emit({"card": ctx.key, "first": failed[0] // MINUTE, "last": failed[-1] // MINUTE})

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        self.times.replace([time for time in self.times.get() if time > at - 10 * MINUTE])
        if not self.times.get():
            ctx.emit_to("forgotten", {"card": ctx.key})


Path("payments").mkdir()
Path("payments/first.jsonl").write_text(
    "".join(
        f'{{"at": {at * MINUTE}, "card": "{card}", "ok": {ok}}}\n'
        for at, card, ok in [
            (0, "a", "false"),
            (1, "b", "false"),
            (3, "a", "false"),
            (4, "a", "false"),
            (30, "b", "true"),
        ]
    )
)

alerts = (
    Stream.read(Files("payments", "jsonl", PAYMENT), uid="payments")
    .with_event_time("at", out_of_order="1m")
    .key_by("card")
    .process(Failures, uid="failures", sides={"forgotten": {"card": str}})
)
program = Program.of(alerts.write(ToDriver(), uid="alerts"), alerts.side("forgotten").write(ToDriver(), uid="aside"))
with recovery.run(program, checkpoints="checkpoints") as run:
    print("alerts:", list(run.rows("alerts")))
    print("forgotten:", sorted(row["card"] for row in run.rows("aside")))
