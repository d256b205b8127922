"""What people are told about an epoch that was chosen: what was passed over for it, and what is given up.

What always holds: an epoch that nobody asked to leave out is never left out without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from statebackend.ids import Epoch


def about_choice(passed_over: Sequence[str], gives_up: Sequence[Epoch], chosen: Epoch) -> list[str]:
    """Lines; none if the newest epoch was meant, and is sound."""
    lines = [f"passed over: {reason}" for reason in passed_over]
    if gives_up:
        listed = ", ".join(map(str, gives_up))
        lines.append(f"back to epoch {chosen}; given up: {listed}")
    return lines
