from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import ReducingState
from statebackend import ReducingState

largest = ReducingState(float, max)  # in a call: self.largest.add(event.amount)
latest = ReducingState(str, lambda before, page: page)

