"""From the name of a program, as people write it, to the program: `module:function`, or `folder/file.py:function`.

Invariant: what is wrong is said in one error that names the program and why it is not there; an exception of
the program's own code comes with its place in it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from snapshot.program.program import Program
from statebackend.errors import ProgramError


class NoSuchProgram(ProgramError, ValueError):
    """There is no program under this name, or it cannot be imported; the message says why."""


def program_from(name: str) -> Program:
    """Load a program: what the named function returns, or the attribute itself if it is one; runs the module's code.

    Modules are looked for in the working directory as well; the folder of a file becomes a place where modules are
    found, as when the file is run. `NoSuchProgram` if there is none.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise NoSuchProgram(f"{name!r} names no program; write module:function, or folder/file.py:function")
    module = _file(name, Path(where)) if where.endswith(".py") else _module(name, where)
    try:
        found: object = getattr(module, attribute)
    except AttributeError:
        there = _programs_in(module)
        known = f"; there are {', '.join(there)}" if there else ""
        raise NoSuchProgram(f"{name}: {where} has no {attribute!r}{known}") from None
    if callable(found) and not isinstance(found, Program):
        try:
            found = found()
        except Exception as error:
            raise NoSuchProgram(f"{name}: {_said(error)}") from error
    if not isinstance(found, Program):
        raise NoSuchProgram(
            f"{name} is no program, but {type(found).__name__}; `Stream.write` makes one, and a function without "
            "arguments may return it"
        )
    return found


def _file(name: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise NoSuchProgram(f"{name}: there is no file {file}")
    if not file.stem.isidentifier():
        raise NoSuchProgram(f"{name}: the name of a file that is imported is an identifier, which {file.stem!r} is not")
    folder = str(file.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _imported(name, file.stem)
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).samefile(file):
        raise NoSuchProgram(f"{name}: another module is called {file.stem!r}, {origin}; give the file another name")
    return module


def _module(name: str, module: str) -> ModuleType:
    if not all(part.isidentifier() for part in module.split(".")):
        raise NoSuchProgram(f"{name}: {module!r} is no name of a module; a file's ends in .py")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # behind what is installed: it may be the folder of somebody else's tree
    return _imported(name, module)


def _imported(name: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except Exception as error:
        raise NoSuchProgram(f"{name} cannot be imported: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Describe the error, with the last place outside this module where it happened."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    place = f" (in {own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _programs_in(module: ModuleType) -> Sequence[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, Program))
