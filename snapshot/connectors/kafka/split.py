"""The name of a split of Kafka: a partition of a topic, the offset where it begins, and that where it ends.

What always holds: what a split's rows depend on is in its name, so that it means the same rows for ever, also when
"latest" or the time of a start would be another offset by now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+) from (?P<start>\d+)(?: to (?P<stop>\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """The records of a partition from offset `start` on, those before offset `stop` if it ends."""

    of: TopicPartition
    start: int
    stop: int | None = None

    @property
    def name(self) -> str:
        """Return the split's name as the job knows it."""
        return f"{self.of} from {self.start}" + ("" if self.stop is None else f" to {self.stop}")


def split_of(name: str) -> KafkaSplit | None:
    """Return the split with this name; None if it is not the name of a split of Kafka."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    stop = None if match["stop"] is None else int(match["stop"])
    return KafkaSplit(TopicPartition(match["topic"], int(match["partition"])), int(match["start"]), stop)
