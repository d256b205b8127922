from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import AggregatingState
from statebackend import AggregatingState

def added(so_far, amount):
    return so_far[0] + 1, so_far[1] + amount

mean = AggregatingState(tuple[int, float], lambda: (0, 0.0), added, lambda so_far: so_far[1] / so_far[0])

