"""What a package that loads its names on demand shows to type checkers."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType


def typed_names(package: ModuleType) -> dict[str, str]:
    """Each name that the package imports for type checkers alone, and the module that it is from."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    return {
        alias.asname or alias.name: f"{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package.__name__}.")
        for alias in node.names
    }
