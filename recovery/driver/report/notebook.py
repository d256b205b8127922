"""A run in a notebook: its status as a table, and its line of progress as a bar of tqdm, which notebooks draw.

Invariant: no text of the job is markup. Without a notebook, or without tqdm, nothing of this is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from typing import Any, Final, Protocol

from recovery.driver.report.status import RunStatus

_MOST: Final = 40
"""Stages that are listed."""
_HEADS: Final = ("stage", "rows in/s", "rows out/s", "late rows", "left out")


class Bar(Protocol):
    """The methods of a bar of tqdm that are used."""

    def set_description_str(self, desc: str | None = None, refresh: bool | None = True) -> object:
        """Show this text."""

    def close(self) -> object:
        """Leave it as it is."""


class NotebookBar:
    """A place for a line of progress, as `ProgressLine` writes it: the text of a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def write(self, text: str, /) -> None:
        """Show the line; its end closes the bar, and a line that is cleared stays until the next one."""
        if text == "\n":
            self._bar.close()
        elif text.strip():
            self._bar.set_description_str(text.strip())

    def flush(self) -> None:
        """Do nothing, as the bar is drawn already."""

    def isatty(self) -> bool:
        """Return True: a person sees it."""
        return True


def notebook_bar() -> NotebookBar | None:
    """Return a bar in the notebook that this is; None if it is none, or has no tqdm."""
    if not _in_notebook():
        return None
    try:
        from tqdm.auto import tqdm  # only the extra `notebook` brings it
    except ModuleNotFoundError:
        return None
    return NotebookBar(tqdm(bar_format="{desc}", leave=True))


def _in_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"  # the one that a kernel runs, not that of a terminal


def html_of(status: RunStatus, page: str | None) -> str:
    """Return the status as HTML, with a link to the job's page if it has one."""
    link = "" if page is None else f' (<a href="{escape(page)}" target="_blank" rel="noopener">page</a>)'
    rows = "".join(_row("td", cells) for cells in _stages(status))
    trouble = "".join(f"<p>{escape(text)}</p>" for text in (status.trouble, status.failure) if text)
    return (
        f"<div><p><b>{escape(status.job)}</b> is {status.state.value}{link}; {escape(_epochs(status))}</p>{trouble}"
        f"<table><thead>{_row('th', _HEADS)}</thead><tbody>{rows}</tbody></table></div>"
    )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _epochs(status: RunStatus) -> str:
    there = sum(role is not None for role in status.roles.values())
    took = f" in {status.epochs[-1].since_trigger_ms:.0f} ms" if status.epochs else ""
    newest = "no epoch is complete yet" if status.complete is None else f"newest complete epoch {status.complete}{took}"
    processes = f"{there} processes for {status.parallelism} partitions"
    return f"{status.scheme}, {processes}; {newest}; roll-backs: {status.restarts}"


def _stages(status: RunStatus) -> Iterator[tuple[str, ...]]:
    late, bad = status.late_rows, status.bad_rows
    for uid, rate in list(status.rates.items())[:_MOST]:
        yield uid, f"{rate.rows_in:,.0f}", f"{rate.rows_out:,.0f}", f"{late.get(uid, 0):,}", f"{bad.get(uid, 0):,}"
