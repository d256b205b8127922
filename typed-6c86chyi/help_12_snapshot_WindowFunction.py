from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import WindowFunction

class Spread(WindowFunction):
    output = {"user": "string", "spread": "float64"}

    def on_window(self, key, window, rows, ctx):
        amounts = [row.amount for row in rows]
        ctx.emit((key, max(amounts) - min(amounts)))

