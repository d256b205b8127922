"""Finds for each seeded error a seed from which the search has it within few histories, and prints it.

python -m tests.seeded.seeds [WORD ...]     the errors whose sentences have one of these words; all without one
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from typing import Final

import pytest

import tests.seeded.commit
import tests.seeded.cut
import tests.seeded.state
import tests.seeded.storage  # noqa: F401  (importing fills the table)
from snapshot.testing.search import search
from tests.seeded.error import ERRORS, SeededError

SIZE: Final = 400
"""How many bytes the schedules have under which errors are searched for."""
SOON: Final = 25
"""Histories."""


def soonest(error: SeededError) -> int:
    """The first seed that does; there is one, as each is another chance."""
    with pytest.MonkeyPatch.context() as patch:
        error.switch_on(patch)
        return next(seed for seed in count() if search(error.world, SOON, SIZE, seed, shrink=False) is not None)


def main(words: Sequence[str]) -> None:
    for error in ERRORS:
        if not words or any(word in error.sentence for word in words):
            print(f"seed={soonest(error)} {error.sentence}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
