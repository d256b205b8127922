"""The report of a broken promise, by checkers, simulations and protocols under test."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapshot.testing.history import Cut


class Violation(AssertionError):
    """A history breaks a promise; the message says how, with names.

    `at` are the places in the history that show it, and `cut` is the cut it is about, if any: a diagram highlights
    both.
    """

    def __init__(self, message: str, at: Collection[int] = (), cut: Cut | None = None) -> None:
        super().__init__(message)
        self.at = tuple(at)
        self.cut = cut
