from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import MapState
from statebackend import MapState

seen = MapState(str, int)  # in a call: self.seen.put(event.page, event.at)

