"""Docstrings of functions say what is done: they begin with a verb, or with "True if"."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("statebackend", "snapshot", "recovery")
LIST = """
A All An Another Any As At Both Bytes By Each Every Files For From Here How If In It Its Keys Milliseconds More Never
No Nobody None Not Nothing Of On One Only Rows Same Seconds See So Some That The There These They This Those To Two
Until Up What Whatever When Where Whether Which Who Whoever Why With Without
"""
NO_VERBS = frozenset(LIST.split())
"""Words with which a sentence begins that names a thing, or asks, instead of saying what the function does."""


def begins_wrongly(docstring: str) -> bool:
    """True if a docstring does not begin with a verb or "True if", as far as its first word shows."""
    return docstring.split(maxsplit=1)[0].strip(",.:;") in NO_VERBS


def documented(source: str) -> Iterator[tuple[int, str]]:
    """Give the line and the docstring of every function that has one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
            yield node.lineno, docstring


def test_docstrings_of_functions_begin_with_what_is_done() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {docstring.splitlines()[0]}"
        for package in PACKAGES
        for path in sorted((ROOT / package).glob("**/*.py"))
        for line, docstring in documented(path.read_text())
        if begins_wrongly(docstring)
    ]
    assert wrong == [], "begin with an imperative, such as Return, or with True if"


def test_a_docstring_that_begins_with_a_noun_or_a_question_is_noticed() -> None:
    source = 'def f():\n    """The epochs kept."""\n\n\nasync def g():\n    """Return the epochs kept."""\n'
    assert [(line, begins_wrongly(docstring)) for line, docstring in documented(source)] == [(1, True), (5, False)]
    assert begins_wrongly("None, as nothing waits.")
    assert not begins_wrongly("True if it is over.")
