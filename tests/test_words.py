"""Words of docstrings, errors, help and events: docstrings begin with a subject or a verb, and things have names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("statebackend", "snapshot", "recovery")
LIST = """
A All An Another Any As At Both Bytes By Each Every Files For From Here How If In It Its Keys Milliseconds More Never
No Nobody None Not Nothing Of On One Only Rows Same Seconds See So Some That The There These They This Those To Two
Until Up What Whatever When Where Whether Which Who Whoever Why With Without
"""
NO_VERBS = frozenset(LIST.split())
"""Words with which a sentence begins that names a thing, or asks, instead of saying what the function does."""
QUESTIONS = "How Nobody Of What Whatever When Where Whether Which Who Whoever Why"
NO_SUBJECTS = frozenset(QUESTIONS.split())
"""Words with which a sentence begins that asks instead of naming a module or class."""

NAMELESS = re.compile(r"\b(whoever|nobody|anybody|everybody|somebody)\b", re.IGNORECASE)
CONTORTED = re.compile(r"[Ww]hat always holds|\bof which (?:none|all|some)\b|\bbe it\b|\b[Ww]ho does not\b")
"""Constructions that have to be read twice; each has a plain form."""


def begins_with(docstring: str, words: frozenset[str]) -> bool:
    """True if the first word of a docstring is one of these."""
    return docstring.split(maxsplit=1)[0].strip(",.:;") in words


def sources() -> Iterator[tuple[str, str]]:
    """Yield the path and text of every module of the packages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("**/*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def documented(module: ast.Module, *kinds: type[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the docstring of everything of these kinds that has one."""
    for node in ast.walk(module):
        if isinstance(node, kinds) and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
        ):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "lineno", 1), docstring


def functions(module: ast.Module) -> Iterator[tuple[int, str]]:
    return documented(module, ast.FunctionDef, ast.AsyncFunctionDef)


def modules_and_classes(module: ast.Module) -> Iterator[tuple[int, str]]:
    return documented(module, ast.Module, ast.ClassDef)


def everything(module: ast.Module) -> Iterator[tuple[int, str]]:
    return documented(module, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


SAYING = """
add_verb add_argument add_parser add_argument_group ArgumentParser add_mutually_exclusive_group debug info warning
error exception log mention complain say Trouble _note note fail Failed CommitAnswer Hindrance Violation refusal Missed
Problem
"""
SAID_BY = frozenset(SAYING.split())
"""Functions and classes whose texts people read."""


def texts(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of literals that are raised, shown as help, logged, or told as an event or answer."""
    for node in ast.walk(module):
        match node:
            case ast.Raise(exc=ast.Call() as call):
                yield from literals(call)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SAID_BY:
                yield from literals(node)
            case ast.Return(value=ast.JoinedStr() | ast.Constant() as value):
                yield from literals(value)
            case _:
                pass


def literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the literals below a node, an f-string as one text."""
    match node:
        case ast.JoinedStr(values=values):
            yield node.lineno, "".join(str(part.value) for part in values if isinstance(part, ast.Constant))
        case ast.Constant(value=str(text)) if " " in text:
            yield node.lineno, text
        case _:
            for part in ast.iter_child_nodes(node):
                yield from literals(part)


FoundIn: TypeAlias = Callable[[ast.Module], Iterator[tuple[int, str]]]
RULES: tuple[tuple[FoundIn, Callable[[str], object], str], ...] = (
    (functions, lambda text: begins_with(text, NO_VERBS), "begin with an imperative, such as Return, or with True if"),
    (
        modules_and_classes,
        lambda text: begins_with(text, NO_SUBJECTS),
        "begin with a noun ('The ...'), or with an imperative, and not with a question",
    ),
    (everything, CONTORTED.search, "say it straight"),
    (
        texts,
        lambda text: NAMELESS.search(text) or CONTORTED.search(text),
        "name the driver, the sink, the program, the user, the epoch",
    ),
)
"""The texts of a module that are looked at, what is wrong with one, and what to do then."""


def test_docstrings_errors_help_and_events_have_a_subject_or_a_verb_and_say_things_straight() -> None:
    wrong = [
        f"{path}:{line}: {' '.join(text.split())[:120]}: {advice}"
        for path, source in sources()
        for module in (ast.parse(source),)
        for found_in, is_wrong, advice in RULES
        for line, text in found_in(module)
        if is_wrong(text)
    ]
    assert wrong == []


def test_pages_name_who_or_what_they_are_about() -> None:
    places = ("*.md", ".github/*.md", "*/README.md", "tests/bench/README.md")
    lines = [
        f"{path.relative_to(ROOT)}: {line[:120]}"
        for place in places
        for path in sorted(ROOT.glob(place))
        for line in path.read_text().splitlines()
        if NAMELESS.search(line) or CONTORTED.search(line)
    ]
    assert lines == []


@pytest.mark.parametrize(
    ("found_in", "text", "is_noticed"),
    [
        (functions, 'def f():\n    """The epochs kept."""\n', True),
        (functions, 'async def f():\n    """Return the epochs kept."""\n', False),
        (functions, 'def f():\n    """True if it is over."""\n', False),
        (modules_and_classes, '"""What is kept."""\n', True),
        (modules_and_classes, 'class A:\n    """Whether it is over."""\n', True),
        (modules_and_classes, 'class A:\n    """The epochs kept."""\n', False),
    ],
)
def test_a_docstring_that_begins_wrongly_is_noticed(found_in: FoundIn, text: str, is_noticed: bool) -> None:
    words = NO_VERBS if found_in is functions else NO_SUBJECTS
    assert [begins_with(docstring, words) for _, docstring in found_in(ast.parse(text))] == [is_noticed]


def test_a_text_without_a_subject_is_noticed() -> None:
    source = 'def f(name):\n    raise ValueError(f"{name}: whoever did " f"this")\n    log.info("all is well")\n'
    assert [bool(NAMELESS.search(text)) for _, text in texts(ast.parse(source))] == [True, False]
