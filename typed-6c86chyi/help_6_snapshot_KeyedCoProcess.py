from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import KeyedCoProcess
from snapshot import ValueState
from statebackend import ValueState

class Enrich(KeyedCoProcess):
    name = ValueState(str)

    def on_first(self, order, ctx):
        ctx.emit((order.user, self.name.get(), order.amount))

    def on_second(self, user, ctx):
        self.name.set(user.name)

