"""The name that pickled rows have in stored state, for as long as such state is read."""

from __future__ import annotations

from snapshot.operators.row_class import row_of

__all__ = ["row_of"]
