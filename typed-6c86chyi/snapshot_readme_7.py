from pathlib import Path

from snapshot import KeyedProcess, ProcessContext, Row, ValueState
from snapshot.testing.operators import OperatorHarness


class Total(KeyedProcess):
    output = {"user": str, "total": int}
    total = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.cents)
        ctx.emit((ctx.key, self.total.get()))


folder, columns = Path("harness"), {"user": str, "cents": int}
folder.mkdir()
with OperatorHarness(Total, folder, columns=columns, key="user") as harness:
    harness.rows([("ann", 3), ("bob", 4), ("ann", 5)])
    print([tuple(row) for row in harness.emitted()])
    snapshot = harness.cut()
with OperatorHarness(Total, folder, columns=columns, key="user", parallelism=3, snapshot=snapshot) as harness:
    harness.rows([("ann", 1)])
    print([tuple(row) for row in harness.emitted()])
