from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import AggregateTable
from snapshot import BatchProcess
from snapshot import Sum
from statebackend import AggregateTable
from statebackend import Sum

class Totals(BatchProcess):
    totals = AggregateTable({"amount": int}, total=Sum("amount"))

    def on_batch(self, batch, ctx):
        slots = self.totals.update(ctx.keys, {"amount": batch.column("amount")})
        ctx.emit(pa.RecordBatch.from_arrays([batch.column("user"), *self.totals.results(slots).columns], ...))

