"""A real browser opens every view of a job's page of which a process was killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import recovery
from recovery import FailureRate, LocalProcesses, Passive
from recovery import events as log
from recovery.inject.targets import Kind, Order, WorkerOf
from statebackend.ids import Partition
from tests import endless_job

PATIENCE = 120
VIEWS = {
    "overview": ["rows", "sums", "aggregate(v) per record", "AttemptFailed", "busy"],
    "partitions": ["partition 0", "partition 1", "127.0.0.1, process", "Standing by"],
    "epochs": ["Complete epochs, newest first", "partition by partition", "aligned"],
    "recoveries": ["restarted", "opened", "Failures", "; restart"],
    "state": ["sums", "partition 0", "KiB"],
    "configuration": ["lost_after", "Passive", "(not shown)"],
}
TOKEN = "a-token-for-this-test-alone"


class Words(HTMLParser):
    """The texts of a page, and the tables without a caption or heads with a scope."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "th" and "scope" not in given:
            self.faults.append("a head without a scope")
        if given.get("role") == "img" and not given.get("aria-label"):
            self.faults.append(f"a picture without a label: {tag}")
        self._inside.append(tag)

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] not in ("script", "style"):
            self.texts.append(data)


def seen(folder: Path, url: str, *arguments: str) -> tuple[str, list[str]]:
    """The page as the browser has it after five seconds of its own time, and what its console says."""
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}",
         "--enable-logging=stderr", "--virtual-time-budget=5000", *arguments, "--dump-dom", url],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[recovery.Run]:
    """A job of which a process was killed, and that runs on."""
    folder = tmp_path_factory.mktemp("page")
    run = recovery.run(
        endless_job.program(folder / "output"),
        checkpoints=folder / "tree",
        job="endless",
        every="200ms",
        scheme=Passive(standbys=1, restarts=FailureRate(1000, "1s", delay=0)),
        launcher=LocalProcesses(),
        local=folder / "local",
        page="127.0.0.1:0",
        storage_options={"s3": {"secret": "hunter2"}},
        progress=False,
    )
    with run:
        with recovery.attach(job_folder=folder / "local") as attached:
            endless_job.wait_until_all_run(attached)
            attached.inject(Order(Kind.KILL, WorkerOf(Partition(0))))
            endless_job.wait_for(attached, log.Recovered)
            endless_job.wait_for(attached, log.EpochCompleted)
        yield run


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_the_job_without_an_error(run: recovery.Run, view: str, tmp_path: Path) -> None:
    html, console = seen(tmp_path, f"{run.page_url}#{view}", "--window-size=1280,900")
    assert console == []
    words = Words()
    words.feed(html)
    text = " ".join(words.texts)
    assert [word for word in VIEWS[view] if word not in text] == [], text[:2000]
    assert words.faults == []
    assert html.count("<table") == html.count("<caption")
    assert "undefined" not in text
    assert "NaN" not in text
    assert "[object" not in text


def test_a_browser_needs_the_token_once(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run = recovery.run(
        endless_job.program(folder / "output"), checkpoints=folder / "tree", job="endless", every="200ms",
        local=folder / "local", page="127.0.0.1:0", web_token=TOKEN, progress=False,
    )  # fmt: skip
    with run:
        html, console = seen(tmp_path / "browser", f"{run.page_url}?token={TOKEN}#overview")
        assert "running" in html
        assert console == []
        html, _ = seen(tmp_path / "other-browser", f"{run.page_url}")
        assert "not for you" in html
