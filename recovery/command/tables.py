"""Lines and columns of text for people.

What always holds: a line is one line, whatever its text is made of; a column is as wide as its widest item, numbers
stand at the right, and no line ends with spaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from snapshot.readable import one_line


def in_lines(lines: Iterable[str]) -> str:
    """Put lines below each other."""
    return "\n".join(map(one_line, lines))


def in_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """The lines of a table; the columns named in `right` are aligned there."""
    rows = [[one_line(item) for item in row] for row in rows]
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    sides = [">" if head in right else "<" for head in heads]
    return [
        "  ".join(f"{item:{side}{width}}" for item, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
