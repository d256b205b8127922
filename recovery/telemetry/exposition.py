"""Prometheus' text format, version 0.0.4: families of samples become the text that a scraper reads.

Invariant: a sample costs one string operation, as a job of ten thousand partitions has some hundred thousand of them;
the text of labels is made once for all metrics that share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of a metric. Each is the end of its name, its labels as `labelled` gives them, and its value."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    """One line."""
    samples: Iterable[tuple[str, str, float]]


def labelled(**labels: object) -> str:
    """Return labels as they stand in a sample, escaped."""
    inner = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inner}}}"


def text_of(families: Iterable[Family]) -> bytes:
    """Return all samples as text, family by family."""
    return "".join(line for family in families for line in _lines(family)).encode("utf-8", "replace")


def _lines(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
    for end, labels, value in family.samples:
        yield f"{name}{end}{labels} {value}\n"


def histogram(
    labels: dict[str, object], bounds: Sequence[tuple[str, int]], total: float
) -> Iterator[tuple[str, str, float]]:
    """Give the samples of a histogram: how many there were up to each bound, all of them, and their sum."""
    for bound, count in bounds:
        yield "_bucket", labelled(**labels, le=bound), count
    yield "_count", labelled(**labels), bounds[-1][1]
    yield "_sum", labelled(**labels), total
