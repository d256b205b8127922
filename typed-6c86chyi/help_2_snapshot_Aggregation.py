from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import Accumulator
from snapshot import Aggregation
from statebackend import Accumulator
from statebackend import Aggregation

class Longest(Aggregation):  # the length of the longest text
    name = "longest"
    accumulators = {"length": Accumulator.of("int64")}

    def update(self, accumulators, slots, values):
        np.maximum.at(accumulators["length"], slots, [len(text or "") for text in values.to_pylist()])

    def result(self, accumulators, slots):
        return pa.array(accumulators["length"][slots])

