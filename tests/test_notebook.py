"""A run in a notebook: what it shows of itself, and its line of progress as a bar."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tqdm import tqdm

from recovery.driver.report.notebook import NotebookBar, html_of, notebook_bar
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.status import Rate, RunState, RunStatus
from recovery.running import Run
from statebackend.ids import Uid
from tests.test_page import full_status


def test_a_run_is_shown_as_a_table_in_which_no_name_is_markup() -> None:
    status = full_status()
    text = html_of(status, "http://127.0.0.1:4050/?a='\"")
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert "http://127.0.0.1:4050/?a=&#x27;&quot;" in text
    assert "newest complete epoch 7-1 in 6 ms" in text


def test_what_is_not_known_yet_is_not_shown() -> None:
    text = html_of(RunStatus("clicks", RunState.STARTING, 2, "Passive"), None)
    assert "no epoch is complete yet" in text
    assert "<a " not in text


def test_the_rates_of_each_stage_are_rows() -> None:
    status = RunStatus("clicks", RunState.RUNNING, 2, rates={Uid("count"): Rate(1_234.4, 5.0)})
    assert "<td>count</td><td>1,234</td><td>5</td><td>0</td><td>0</td>" in html_of(status, None)


def test_notebooks_ask_a_run_for_it() -> None:
    assert callable(Run._repr_html_)


def test_the_line_of_progress_is_the_text_of_a_bar() -> None:
    screen = io.StringIO()
    bar = tqdm(bar_format="{desc}", leave=True, file=screen)
    line = ProgressLine(NotebookBar(bar))
    line.show(RunStatus("clicks", RunState.RUNNING, 2))
    assert "clicks: running | 0/2 partitions" in screen.getvalue()
    line.make_room()
    assert bar.desc == "clicks: running | 0/2 partitions"
    line.end(RunStatus("clicks", RunState.FINISHED, 2))
    assert bar.desc == "clicks: finished | 0/2 partitions"
    assert bar.disable, "it is closed"


def ipython(shell: object) -> ModuleType:
    found = ModuleType("IPython")
    found.__dict__["get_ipython"] = lambda: shell
    return found


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_outside_of_a_notebook_there_is_no_bar(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython(shell))
    assert notebook_bar() is None


class ZMQInteractiveShell:
    """Has the name of the shell of a notebook's kernel."""


def test_without_tqdm_a_notebook_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython(ZMQInteractiveShell()))
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert notebook_bar() is None
