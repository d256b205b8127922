"""Finds for each seeded error a seed from which the search has it within few histories, and notes it in the table.

python -m tests.seeded.seeds [WORD ...]     the errors whose sentences have one of these words; all without one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider

import tests.seeded.commit
import tests.seeded.cut
import tests.seeded.state
import tests.seeded.storage  # noqa: F401  (importing fills the table)
from snapshot.testing.search import Counterexample, search
from tests.seeded.error import ERRORS, SeededError

SIZE: Final = 400
"""How many bytes the schedules have under which errors are searched for."""
SOON: Final = 25
"""Histories."""


def found(error: SeededError, patch: pytest.MonkeyPatch, histories: int, seed: int) -> Counterexample | None:
    """Search for an error in schedules that follow from the seed alone.

    Left to itself, hypothesis also draws constants of the modules that are loaded, which are others in each process.
    """
    patch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)
    error.switch_on(patch)
    return search(error.world, histories, SIZE, seed, shrink=False)


def is_soon(error: SeededError, seed: int) -> bool:
    """True if the search finds the error soon from this seed."""
    with pytest.MonkeyPatch.context() as patch:
        return found(error, patch, SOON, seed) is not None


def soonest(error: SeededError) -> int:
    """Return the first seed that finds it soon; there is one, as each is another chance."""
    return next(seed for seed in count() if is_soon(error, seed))


def noted(text: str, sentence: str, seed: int) -> str:
    """Return the text of a module with this seed in the line that enters the error, if it does."""
    entered = re.compile(rf'^(@\w+\("{re.escape(sentence)}")(?:, seed=\d+)?\)$', re.MULTILINE)
    return entered.sub(rf"\1, seed={seed})" if seed else r"\1)", text)


def main(words: Sequence[str]) -> None:
    for error in ERRORS:
        if not words or any(word in error.sentence for word in words):
            seed = soonest(error)
            print(f"seed={seed} {error.sentence}", flush=True)
            for module in Path(__file__).parent.glob("*.py"):
                module.write_text(noted(module.read_text(), error.sentence, seed))


if __name__ == "__main__":
    main(sys.argv[1:])
