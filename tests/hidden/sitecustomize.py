"""A process that a test starts does without the modules that are hidden from the test; see `tests/extras.py`.

Python imports this module when it starts, if its folder is on the path.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HIDDEN = frozenset(os.environ.get("EPOCHCUT_HIDDEN_MODULES", "").split())


class _Finder(PathFinder):
    """Finds what Python would, but for hidden modules.

    None in `sys.modules` would not do: Arrow takes it for pandas.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname in _HIDDEN else super().find_spec(fullname, path, target)


if _HIDDEN:
    sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
