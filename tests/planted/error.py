"""An error that can be switched on in the product, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class PlantedError:
    """A sentence about what goes wrong, the function that makes the product do so, and a history that shows it.

    `shown_by` is the number of the first history in which the search finds it; `python -m tests.planted.seeds` notes
    another one, should it not any more.
    """

    sentence: str
    switch_on: Break
    shown_by: int = 0


ERRORS: list[PlantedError] = []
SELDOM: list[PlantedError] = []
"""Errors that the search has not found among a few dozen histories; nothing is claimed of them."""


def planted(sentence: str, shown_by: int = 0) -> Callable[[Break], Break]:
    """Put an error of the product into the table."""

    def enter(switch_on: Break) -> Break:
        ERRORS.append(PlantedError(sentence, switch_on, shown_by))
        return switch_on

    return enter


def seldom(sentence: str) -> Callable[[Break], Break]:
    """Put an error of the product among those that are not found soon."""

    def enter(switch_on: Break) -> Break:
        SELDOM.append(PlantedError(sentence, switch_on))
        return switch_on

    return enter
