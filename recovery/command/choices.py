"""The words about a chosen epoch: which epochs were passed over for it, and what is given up.

Invariant: an epoch is never left out without a word unless a person asked for that, and no output is made once more
without one.
"""

from __future__ import annotations

from collections.abc import Sequence

from recovery.decisions.start import ACCEPT_DUPLICATES, in_words
from snapshot.journal.state import OutputMade
from statebackend.ids import Epoch

_RESTORE = "recovery restore --accept-duplicates"


def about_choice(
    passed_over: Sequence[str], gives_up: Sequence[Epoch], repeats: OutputMade, chosen: Epoch
) -> list[str]:
    """Return the lines about the chosen epoch; none if the newest was meant, and is sound."""
    lines = [f"passed over: {reason}" for reason in passed_over]
    if gives_up:
        listed = ", ".join(map(str, gives_up))
        lines.append(f"back to epoch {chosen}; given up: {listed}")
    if repeats.epochs:
        lines.append(f"{in_words(repeats, chosen)} may be committed and is made once more from there")
    return lines


def in_command(text: str, *, has_option: bool) -> str:
    """Replace the name of a function's argument in an error by the verb's option, or by a verb that has the option."""
    return text.replace(ACCEPT_DUPLICATES, "--accept-duplicates" if has_option else _RESTORE)
