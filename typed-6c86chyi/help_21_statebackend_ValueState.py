from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import KeyedProcess
from snapshot import ValueState
from statebackend import ValueState

class CountClicks(KeyedProcess):
    output = {"user": str, "clicks": int}
    clicks = ValueState(int, default=0)

    def on_event(self, event, ctx):
        self.clicks.set(self.clicks.get() + 1)
        ctx.emit((ctx.key, self.clicks.get()))

