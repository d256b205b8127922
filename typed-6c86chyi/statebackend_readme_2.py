from decimal import Decimal

from statebackend import Codec, ValueState


class Decimals(Codec[Decimal]):
    name = "decimal"
    version = 2
    immutable = True  # values never change after they were given, so they need not be copied

    def encode(self, value: Decimal) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Decimal:
        return Decimal(data.decode())

    def migrate(self, data: bytes, version: int) -> Decimal:
        return Decimal(int(data)) / 100  # version 1 stored cents


balance = ValueState(Decimals(), default=Decimal(0))
print(Decimals().decode(Decimals().encode(Decimal("1.50"))), Decimals().migrate(b"150", 1))
