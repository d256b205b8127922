from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import Broadcast
from snapshot import KeyedBroadcastProcess
from snapshot import ValueState
from statebackend import ValueState

class Alert(KeyedBroadcastProcess):
    limits = Broadcast(str, float)
    spent = ValueState(float, default=0.0)

    def on_event(self, payment, ctx):
        self.spent.set(self.spent.get() + payment.amount)
        if self.spent.get() > self.limits.get(payment.country, 100.0):
            ctx.emit((payment.user, self.spent.get()))

    def on_broadcast(self, limit, ctx):
        self.limits.put(limit.country, limit.amount)

