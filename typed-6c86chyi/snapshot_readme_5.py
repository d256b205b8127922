from dataclasses import dataclass

import pyarrow as pa

from snapshot import Batch, Exhausted, Reading, SplitContext
from snapshot.testing.sources import check_source


@dataclass(frozen=True)
class Numbers:
    """The numbers below `count`, in as many splits as there are partitions."""

    count: int
    schema = pa.schema({"n": pa.int64()})
    bounded, blocking, on_demand, discover_every = True, False, False, None

    def check(self) -> list[str]:
        return [] if self.count >= 0 else [f"count is {self.count}; give 0 or more"]

    def discover(self, parallelism: int) -> list[str]:
        return [f"{number} of {parallelism}" for number in range(parallelism)]

    def open(self, context: SplitContext) -> "NumbersReader":
        return NumbersReader(self, context)


class NumbersReader:
    def __init__(self, source: Numbers, context: SplitContext) -> None:
        first, self.step = map(int, context.split.split(" of "))
        self.count = source.count
        self.next = first if context.position is None else int(str(context.position))

    def read(self, most: int) -> Reading:
        numbers = range(self.next, self.count, self.step)[:most]
        if not numbers:
            return Exhausted()
        self.next = numbers[-1] + self.step
        return Batch(pa.record_batch({"n": pa.array(numbers)}), position=self.next)

    def close(self) -> None:
        pass


check_source(Numbers(1000))
print("the source keeps its promises")
