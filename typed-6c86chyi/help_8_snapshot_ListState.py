from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import ListState
from statebackend import ListState

amounts = ListState(float)  # in a call: self.amounts.add(event.amount)

