"""What a package that loads its names on demand shows to type checkers."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType


def typed_names(package: ModuleType) -> dict[str, str]:
    """Each name that the package imports for type checkers alone, and the module that it is from."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    inside = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}"
        for node in inside.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
