"""A real browser opens every view of a job's page of which a process was killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

import recovery
from recovery import FailureRate, LocalProcesses, Passive
from recovery import events as log
from recovery.driver.report.status import RunState, RunStatus, StageWork
from recovery.inject.targets import Kind, Order, WorkerOf
from recovery.telemetry.html_report import html_of
from recovery.telemetry.page_data import page_data
from recovery.telemetry.past_job import PastJob
from recovery.telemetry.server import Endpoint, WebServer
from recovery.telemetry.watch import Watch
from snapshot.cut.frames import Watermark
from snapshot.host.protocol.messages import Figures, StageFigures
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests import endless_job
from tests.servers.small_png import smaller
from tests.test_page import MARKUP, described, full_status

PATIENCE = 120
VIEWS = {
    "overview": ["rows", "sums", "aggregate(v) per record", "AttemptFailed", "busy"],
    "partitions": ["partition 0", "127.0.0.1, process", "Standing by"],
    "epochs": ["Complete epochs, newest first", "partition by partition", "aligned"],
    "recoveries": ["restarted", "opened", "Failures", "; restart", "work done again", "the process of partition 0"],
    "state": ["sums", "partition 0", "KiB"],
    "savepoints": ["Other epochs in the tree", "checkpoint", "committed", "They lie at"],
    "configuration": ["lost_after", "Passive", "(not shown)"],
}
TOKEN = "a-token-for-this-test-alone"
PICTURES = os.environ.get("EPOCHCUT_PICTURES", "")
"""The folder for pictures of all views; without it they are made, and dropped."""


FRAME = """<p id="said"></p><iframe id="page" width="390" height="800" src="phone.html" style="border:0"></iframe>
<script>
const page = document.getElementById("page");
page.addEventListener("load", () => setTimeout(() => {
  const root = page.contentDocument.documentElement;
  document.getElementById("said").textContent = `${root.scrollWidth - root.clientWidth} too wide`;
}, 1000));
</script>"""
"""A report in a frame that is as wide as a phone."""


def tree_of(run: recovery.Run) -> Path:
    return run.events_file.parent.parent / "tree"


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


def faults_of(html: str) -> list[str]:
    """What is wrong with the page for those who hear it, and words that only a mistake brings there."""
    words = Words()
    words.feed(html)
    text = " ".join(words.texts)
    wrong = [word for word in ("undefined", "NaN", "[object") if word in text]
    return [
        *words.faults,
        *wrong,
        *([] if html.count("<table") == html.count("<caption") else ["a table without a caption"]),
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_whole_and_pictured_while_a_process_is_killed(
    run: recovery.Run, view: str, tmp_path: Path
) -> None:
    with recovery.attach(job_folder=run.events_file.parent) as attached:
        endless_job.wait_until_all_run(attached)
        attached.inject(Order(Kind.KILL, WorkerOf(Partition(1))))
    file = (Path(PICTURES) if PICTURES else tmp_path) / f"{view}.png"
    html, console = seen(
        tmp_path / "browser", f"{run.page_url}#{view}", "--window-size=1000,820", "--hide-scrollbars",
        f"--screenshot={file}",
    )  # fmt: skip
    assert console == []
    words = Words()
    words.feed(html)
    text = " ".join(words.texts)
    assert [word for word in VIEWS[view] if word not in text] == [], text[:2000]
    assert faults_of(html) == []
    assert file.stat().st_size > 10_000
    if PICTURES:
        file.write_bytes(smaller(file.read_bytes()))
        assert file.stat().st_size < 50_000


def test_on_a_phone_only_what_can_be_scrolled_is_wider_than_the_screen(run: recovery.Run, tmp_path: Path) -> None:
    file = tmp_path / "phone.html"
    recovery.report(tree_of(run), file, job_folder=run.events_file.parent)
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME)
    html, _ = seen(tmp_path / "browser", f"file://{frame}", "--allow-file-access-from-files")
    assert ">0 too wide<" in html


def test_a_report_opens_as_a_file_and_shows_all_views(run: recovery.Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    recovery.report(tree_of(run), file, job_folder=run.events_file.parent)
    html, console = seen(tmp_path / "browser", f"file://{file}")
    assert console == []
    assert faults_of(html) == []
    words = Words()
    words.feed(html)
    text = " ".join(words.texts)
    wanted = [word for words in VIEWS.values() for word in words if word not in ("busy", "standing by")]
    assert [word for word in wanted if word not in text] == []
    assert "output was" in text, "the ages of output around a recovery are drawn"


def shown(folder: Path, status: RunStatus, *events: log.AnyEvent) -> tuple[str, str, list[str]]:
    """The text, the HTML and the console of a report on a job with this status, of which these events were told."""
    watch = Watch("job")
    for event in events:
        watch.heard(event)
    file = folder / "report.html"
    file.write_bytes(html_of(page_data(watch.seen(status), time.time()), {"uri": "", "problem": "", "epochs": []}))
    html, console = seen(folder / "browser", f"file://{file}")
    words = Words()
    words.feed(html)
    return " ".join(words.texts), html, console


def test_the_overview_names_the_busiest_partition_and_the_stage_that_holds_event_time_back(tmp_path: Path) -> None:
    clicks, orders, scores, sums = map(Uid, ("clicks", "orders", "scores", "sums"))
    inputs = {clicks: (), orders: (), scores: (clicks,), sums: (clicks, orders)}
    stages = tuple(
        log.DescribedStage(uid, uid, (), tuple((one, "by key") for one in given)) for uid, given in inputs.items()
    )
    program = log.Described(at=0.0, job="shop", scheme="Passive", parallelism=3, stages=stages, options=())
    now = int(time.time() * 1000)

    def behind(uid: Uid, partition: int) -> int:
        own = {clicks: 2_000, orders: 60_000 if partition == 2 else 50_000, scores: 2_500, sums: 60_500}
        return now - own[uid]

    parts = [Partition(number) for number in range(3)]
    figures = {
        one: Figures(
            Incarnation(Generation(1), Attempt(1)), one,
            {uid: StageFigures(1, 1, Watermark(behind(uid, one)), 0, 0, 0.0) for uid in inputs}, 1, 0.0, 0.0,
        )
        for one in parts
    }  # fmt: skip
    work = {one: {uid: StageWork(1, 1, busy_ms=10.0, idle_ms=90.0) for uid in inputs} for one in parts}
    work[parts[1]][scores] = StageWork(9, 9, busy_ms=80.0, idle_ms=20.0)
    status = RunStatus("shop", RunState.RUNNING, 3, figures=figures, work=work)
    text, html, console = shown(tmp_path, status, program)
    assert console == []
    assert faults_of(html) == []
    assert "orders, partition 2" in text, "sums is a little further behind, as its input is"
    assert "scores, partition 1: 80 %" in text


def test_a_thousand_partitions_and_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    status = full_status(1_000)
    text, html, console = shown(tmp_path, status, described(), *status.epochs, *status.recoveries)
    assert console == []
    assert "<img" not in html
    assert MARKUP.partition("\u2028")[0] in text
    assert "the first 300 of 1000" in text
    assert "partition 299" in text


def test_the_page_of_another_process_has_its_buttons_where_it_is_allowed(run: recovery.Run, tmp_path: Path) -> None:
    job = PastJob(str(tree_of(run)), folder=run.events_file.parent, actions=True)
    with closing(job), closing(WebServer(Endpoint.of("page", "127.0.0.1:0", TOKEN), "/")) as server:
        server.begin(job.routes, job.orders)
        html, console = seen(tmp_path, f"{server.url}?token={TOKEN}#overview")
    assert console == []
    assert "Stop with a savepoint" in html
    assert "running" in html


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
