from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import Codec
from statebackend import Codec

class Decimals(Codec[Decimal]):
    name = "decimal"
    immutable = True

    def encode(self, value):
        return str(value).encode()

    def decode(self, data):
        return Decimal(data.decode())

