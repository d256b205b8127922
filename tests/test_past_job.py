"""The page and the report of a job that is stopped, or runs in another process: from its journal and its events."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import recovery
from recovery import FailureRate, LocalProcesses, Passive
from recovery import events as log
from recovery.command.exits import Exit
from recovery.driver.report.event_log import line_of
from recovery.offline.job_tree import open_tree
from recovery.offline.stopped_job import take_over
from recovery.telemetry.html_report import html_of, report
from recovery.telemetry.latency import Age, Ages, around, thinned
from recovery.telemetry.page_data import page_data
from recovery.telemetry.past_job import PastJob
from recovery.telemetry.server import Endpoint, WebServer
from recovery.telemetry.tree_data import tree_data
from snapshot import Generate, Stream, ToDriver
from statebackend.columns import schema_of
from statebackend.ids import Epoch, Generation
from tests import endless_job
from tests.command_line import run_command
from tests.test_metrics import asked
from tests.test_page import MARKUP, TOKEN, described, full_status, watch_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that lost a process, came back, and was stopped with a savepoint."""
    folder = tmp_path_factory.mktemp("stopped")
    run = recovery.run(
        endless_job.program(folder / "output"),
        checkpoints=folder / "tree",
        job="endless",
        every="100ms",
        retain=3,
        scheme=Passive(restarts=FailureRate(1000, "1s", delay=0)),
        launcher=(launcher := LocalProcesses()),
        local=folder / "local",
        progress=False,
    )
    with recovery.attach(job_folder=folder / "local") as attached:
        for kind in (log.EpochCommitted, log.EpochCommitted, log.EpochCommitted):
            endless_job.wait_for(attached, kind)
        os.kill(next(iter(launcher.pids.values())), signal.SIGKILL)
        endless_job.wait_for(attached, log.Recovered)
        endless_job.wait_for(attached, log.EpochCommitted)
    run.stop(savepoint=True)
    return folder


@pytest.fixture
def open_ones() -> Iterator[ExitStack]:
    with ExitStack() as open_ones:
        yield open_ones


def data_of(job: PastJob) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(job.routes["/data.json"]().body)
    return found


def past(folder: Path, open_ones: ExitStack, **options: Any) -> PastJob:
    return open_ones.enter_context(closing(PastJob(str(folder / "tree"), folder=folder / "local", **options)))


def test_the_page_of_a_stopped_job_shows_its_program_its_epochs_and_who_was_killed(
    stopped: Path, open_ones: ExitStack
) -> None:
    found = data_of(past(stopped, open_ones))
    assert found["state"] == "stopped"
    assert [node["uid"] for node in found["nodes"]] == ["rows", "sums"]
    assert ["interval", "100", True] in found["configuration"]
    assert found["epochs"][0]["savepoint"]
    assert found["states"]["sums"].keys() == {"0", "1"}
    (recovered,) = found["recoveries"]
    assert recovered["again_ms"] > 0
    assert recovered["marks"]["opened"] > 0
    assert any("the process of partition" in text for text in recovered["lost"])
    calm = [oldest for at, _, oldest, _ in recovered["ages"] if at < recovered["failed_at"]]
    after = [oldest for at, _, oldest, _ in recovered["ages"] if at > recovered["failed_at"]]
    assert max(after) >= max(recovered["marks"]["opened"], max(calm))
    assert "No driver answers" in found["told_by"]


def test_its_savepoints_are_those_of_its_tree(stopped: Path, open_ones: ExitStack) -> None:
    found = json.loads(past(stopped, open_ones).routes["/tree.json"]().body)
    assert found["problem"] == ""
    assert found["epochs"][0]["pins"] == ["savepoint"]
    assert found["epochs"][0]["full_bytes"] > 0


def test_of_a_job_without_its_events_the_manifests_are_told(
    stopped: Path, tmp_path: Path, open_ones: ExitStack
) -> None:
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    job = past(tmp_path, open_ones)
    found = data_of(job)
    assert found["state"] == "not running here"
    assert {"rows", "sums"} <= {node["uid"] for node in found["nodes"]}
    assert found["states"]["sums"].keys() == {"0", "1"}
    assert found["epochs"][0]["partitions"]
    assert "the manifests of its epochs" in found["told_by"]
    assert len(data_of(job)["epochs"]) == len(found["epochs"])


def test_a_driver_that_left_no_end_is_not_said_to_run(stopped: Path, tmp_path: Path, open_ones: ExitStack) -> None:
    (tmp_path / "local").mkdir()
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    lines = (stopped / "local" / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"event": "Stopped"' not in line]
    (tmp_path / "local" / "events.jsonl").write_text("".join(kept))
    assert data_of(past(tmp_path, open_ones))["state"] == "not running here"


def test_a_job_that_was_started_elsewhere_since_is_not_said_to_be_stopped(
    stopped: Path, tmp_path: Path, open_ones: ExitStack
) -> None:
    for name in ("tree", "local"):
        shutil.copytree(stopped / name, tmp_path / name)
    tree = open_tree(str(tmp_path / "tree"))
    elsewhere = take_over(tree, "another host")
    epoch = elsewhere.publish(elsewhere.remade(tree.find().manifest, "rescale"))
    found = data_of(past(tmp_path, open_ones))
    assert found["state"] == "not running here"
    assert "claimed since then" in found["told_by"]
    assert found["complete"] == found["epochs"][0]["epoch"] == str(epoch)
    assert [node["uid"] for node in found["nodes"]] == ["rows", "sums"], "as its events described it"


@pytest.mark.parametrize("with_events", [True, False])
def test_a_tree_that_is_damaged_is_said_to_be_and_the_rest_is_shown(
    stopped: Path, tmp_path: Path, open_ones: ExitStack, with_events: bool
) -> None:
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    shutil.copytree(stopped / "local", tmp_path / "local") if with_events else None
    for path in (tmp_path / "tree" / "journal").iterdir():
        path.write_bytes(b"damaged")
    job = past(tmp_path, open_ones)
    assert "cannot be read" in tree_data(job.uri)["problem"]  # type: ignore[operator]
    found = data_of(job)
    assert bool(found["epochs"]) is with_events
    assert "The tree cannot be read" in found["told_by"]


def test_a_manifest_that_is_damaged_is_named_and_the_others_are_shown(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    tree = open_tree(str(tmp_path / "tree"))
    (tmp_path / "tree" / tree.record().manifest).write_bytes(b"damaged")
    found: Any = tree_data(str(tmp_path / "tree"))
    assert found["problem"] == ""
    assert found["epochs"][0]["problem"]
    assert not found["epochs"][1]["problem"]


def test_lines_of_events_that_cannot_be_read_are_counted(stopped: Path, tmp_path: Path, open_ones: ExitStack) -> None:
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    shutil.copytree(stopped / "local", tmp_path / "local")
    with (tmp_path / "local" / "events.jsonl").open("a") as file:
        file.write("\x00\n" * 3)
    found = data_of(past(tmp_path, open_ones))
    assert found["epochs"]
    assert "3 lines of it cannot be read" in found["told_by"]


# --- a job that runs -------------------------------------------------------------------------------------------------


def serving(open_ones: ExitStack, job: PastJob) -> str:
    server = WebServer(Endpoint.of("--listen", "127.0.0.1:0", TOKEN), "/")
    open_ones.callback(server.close)
    server.begin(job.routes, job.orders)
    return server.url


def test_a_running_job_is_shown_takes_orders_of_its_page_alone_and_may_end_meanwhile(
    tmp_path: Path, open_ones: ExitStack
) -> None:
    run = endless_job.start(tmp_path)
    with recovery.attach(job_folder=tmp_path / "local") as attached:
        endless_job.wait_until_all_run(attached)
    job = past(tmp_path, open_ones, actions=True)
    url, token, page = serving(open_ones, job), {"Authorization": f"Bearer {TOKEN}"}, {"X-Epochcut": "page"}
    found = data_of(job)
    assert found["state"] == "running"
    assert found["actions"]
    assert all(one["members"] for one in found["partitions"])
    assert asked(url, "/savepoint", "POST", **page)[0] == 401
    assert asked(url, "/savepoint", "POST", **token)[0] == 403, "as another site would make a browser do it"
    assert asked(url, "/savepoint", **token, **page)[0] == 404, "no link can ask for it"
    assert asked(url, "/data.json", "POST", **token, **page)[0] == 405
    status, said = asked(url, "/savepoint", "POST", **token, **page)
    assert (status, run.status().state.value) == (200, "running")
    assert re.fullmatch(r"savepoint \d+-1 is taken", json.loads(said)["done"])
    assert "has stopped with savepoint" in asked(url, "/stop", "POST", **token, **page)[1]
    run.wait()
    assert json.loads(asked(url, "/data.json", **token)[1])["state"] in ("running", "stopped")
    assert page_data(job.seen(), 0.0)["state"] == "stopped"
    assert "does not run" in json.loads(asked(url, "/savepoint", "POST", **token, **page)[1])["problem"]


def test_an_order_that_takes_long_is_answered_in_time_and_no_other_waits_behind_it(
    tmp_path: Path, open_ones: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.telemetry.past_job._ORDER", 3.0)
    run = recovery.run(
        endless_job.program(tmp_path / "output"),
        checkpoints=tmp_path / "tree",
        job="endless",
        every="1h",
        launcher=(launcher := LocalProcesses()),
        local=tmp_path / "local",
        advanced={"lost_after": "60s"},
        progress=False,
    )
    said = list[Mapping[str, str]]()
    with recovery.attach(job_folder=tmp_path / "local") as attached:
        before = attached.savepoint(endless_job.PATIENCE)
        attached.follow()
        job = past(tmp_path, open_ones, actions=True)
        pid = next(iter(launcher.pids.values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            stop = threading.Thread(target=lambda: said.append(json.loads(job.orders["/stop"]().body)))
            stop.start()
            while (event := attached.next_event(endless_job.PATIENCE)) is not None:
                if isinstance(event, log.EpochTriggered) and event.epoch > before:
                    break
            for order in job.orders.values():
                assert "is not carried out yet" in json.loads(order().body)["problem"]
            assert stop.is_alive()
            stop.join(endless_job.PATIENCE)
        finally:
            os.kill(pid, signal.SIGCONT)
    (answer,) = said
    assert "has not ended in 3 s" in answer["problem"]
    run.wait()
    assert run.status().state is recovery.RunState.STOPPED, "as it was told to, though later"
    assert "does not run" in json.loads(job.orders["/stop"]().body)["problem"], "the next order is not held up"


DRIVER = """
import sys
from pathlib import Path
from tests import endless_job
import recovery
run = endless_job.start(Path(sys.argv[1]), standbys=0)
run.listen(lambda event: print("committed", flush=True) if isinstance(event, recovery.EpochCommitted) else None)
run.wait()
"""


def test_a_driver_that_is_killed_while_its_job_is_looked_at_ends_no_look(tmp_path: Path, open_ones: ExitStack) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"committed\n"
            job = past(tmp_path, open_ones)
            assert page_data(job.seen(), 0.0)["state"] == "running"
        finally:
            driver.kill()
    found = page_data(job.seen(), 0.0)
    assert found["state"] == "not running here"
    assert found["complete"]
    assert "No driver answers" in str(found["told_by"])


def test_without_leave_the_page_can_ask_for_nothing(stopped: Path, open_ones: ExitStack) -> None:
    job = past(stopped, open_ones)
    url = serving(open_ones, job)
    assert asked(url, "/stop", "POST", Authorization=f"Bearer {TOKEN}", **{"X-Epochcut": "page"})[0] == 405
    assert not data_of(job)["actions"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_report_is_one_file_that_has_all_of_it(stopped: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "report.html"
    file.write_text("an older one")
    printed = run_command(
        capsys, "report", "--checkpoints", stopped / "tree", "--job-folder", stopped / "local", "--out", file, "--json"
    )
    assert printed.code == Exit.DONE
    assert printed.json["recoveries"] == 1
    text = file.read_text()
    inside = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    assert len(inside["data"]["epochs"]) == printed.json["epochs"] > 3
    assert inside["tree"]["epochs"][0]["pins"] == ["savepoint"]
    assert "src=" not in text
    assert "default-src 'none'" in text
    assert list(tmp_path.iterdir()) == [file]


def test_names_end_no_script_of_a_report() -> None:
    status = full_status()
    watch = watch_of(status)
    watch.heard(replace(described(), job=f"{MARKUP}<!--<script>"))
    text = html_of(page_data(watch.seen(status), 0.0), {"epochs": [], "problem": MARKUP, "uri": MARKUP}).decode()
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert "<img" not in text
    assert "<!--" not in text


def test_numbers_that_json_does_not_have_end_neither_page_nor_report(
    stopped: Path, tmp_path: Path, open_ones: ExitStack
) -> None:
    for name in ("tree", "local"):
        shutil.copytree(stopped / name, tmp_path / name)
    lines = (stopped / "local" / "events.jsonl").read_text().splitlines(keepends=True)
    (complete, *_) = [line for line in lines if '"event": "EpochCompleted"' in line]
    with (tmp_path / "local" / "events.jsonl").open("a") as file:
        for number in ("NaN", "1e999", "1e308", "9" * 400):
            file.write(re.sub(r'("since_trigger_ms": )[\d.]+', rf"\g<1>{number}", complete, count=1))
    found = data_of(past(tmp_path, open_ones))
    assert "4 lines of it cannot be read" in found["told_by"]
    assert found["state"] == "stopped"
    done = report(tmp_path / "tree", tmp_path / "report.html", job_folder=tmp_path / "local")
    assert done.epochs == len(found["epochs"]) > 0


@pytest.mark.parametrize(
    ("arguments", "token", "why"),
    [
        (["--listen", "0.0.0.0:0"], "", r"other hosts can reach; give \$EPOCHCUT_WEB_TOKEN"),
        (["--listen", "0.0.0.0:0"], "short", r"\$EPOCHCUT_WEB_TOKEN has 5 characters"),
        (["--listen", "4050"], "", "give an address and a port"),
    ],
)
def test_a_page_that_others_could_reach_needs_a_token(
    stopped: Path, arguments: list[str], token: str, why: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHCUT_WEB_TOKEN", token)
    printed = run_command(capsys, "page", "--checkpoints", stopped / "tree", *arguments)
    assert printed.code == Exit.USAGE
    assert re.search(why, printed.err)


@pytest.mark.parametrize("token", [None, ""])
def test_the_command_says_where_the_page_is_and_makes_a_token_for_actions(
    stopped: Path, token: str | None, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EPOCHCUT_WEB_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("EPOCHCUT_WEB_TOKEN", token)
    told: list[tuple[int, int]] = []

    def look(_: threading.Event, _piece: float) -> None:
        (line,) = capsys.readouterr().out.splitlines()
        url = re.findall(r"is shown at (http://127\.0\.0\.1:\d+/\?token=[\w-]{30,}) until Ctrl-C", line)[0]
        path = f"/?{urlsplit(url).query}"
        told.append((asked(url, "/data.json")[0], asked(url, path)[0]))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("recovery.command.page.Event", lambda: type("Waiting", (), {"wait": look})())
        printed = run_command(
            capsys, "page", "--checkpoints", stopped / "tree", "--job-folder", stopped / "local", "--listen",
            "127.0.0.1:0", "--allow-actions",
        )  # fmt: skip
    assert printed.code == Exit.DONE
    assert told == [(401, 303)]


def test_a_place_without_a_job_has_no_page(tmp_path: Path, capsys: Capture) -> None:
    for verb in (["page"], ["report", "--out", tmp_path / "report.html"]):
        assert run_command(capsys, *verb, "--checkpoints", tmp_path).code == Exit.NOT_RUNNING
    assert list(tmp_path.iterdir()) == []


def test_the_past_of_a_thousand_partitions_is_read(stopped: Path, tmp_path: Path, open_ones: ExitStack) -> None:
    shutil.copytree(stopped / "tree", tmp_path / "tree")
    (tmp_path / "local").mkdir()
    (epoch,) = full_status(1_000).epochs
    with (tmp_path / "local" / "events.jsonl").open("w") as file:
        for number in range(20):
            file.write(line_of(replace(epoch, epoch=Epoch(Generation(1), number))))
    found = data_of(past(tmp_path, open_ones))
    assert [len(one["partitions"]) for one in found["epochs"]] == [1_000] * 20


# --- ages ------------------------------------------------------------------------------------------------------------


def an_epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def complete(number: int, triggered: float, at: float) -> log.EpochCompleted:
    (some,) = full_status().epochs
    return replace(some, epoch=an_epoch(number), at=at, since_trigger_ms=1000 * (at - triggered))


def ages_of(*events: log.AnyEvent) -> list[tuple[int, float, float]]:
    ages = Ages()
    for event in events:
        ages.heard(event)
    return [(age.epoch.number, round(age.oldest_ms), round(age.newest_ms)) for age in ages.found]


def committed(number: int, at: float) -> log.EpochCommitted:
    return log.EpochCommitted(at=at, epoch=an_epoch(number))


def test_an_epoch_is_as_old_at_its_commit_as_the_trigger_of_the_epoch_before_it() -> None:
    every: list[log.AnyEvent] = [complete(1, 1.0, 1.1), committed(1, 1.2), complete(2, 2.0, 2.1), committed(2, 2.3)]
    assert ages_of(*every) == [(1, 200, 200), (2, 1300, 300)]


def test_rows_that_a_failure_took_back_count_from_when_they_came_first() -> None:
    lost = log.EpochAbandoned(at=5.0, epoch=an_epoch(2), reason="attempt broken", detail="")
    assert ages_of(complete(1, 1.0, 1.0), committed(1, 1.0), lost, complete(3, 9.0, 9.0), committed(3, 9.5)) == [
        (1, 0, 0),
        (3, 8500, 500),
    ]


def test_several_epochs_may_be_committed_at_once() -> None:
    found = ages_of(complete(1, 1.0, 1.0), complete(2, 2.0, 2.0), complete(3, 3.0, 3.0), committed(2, 4.0))
    assert found == [(1, 3000, 3000), (2, 3000, 2000)]


def test_epochs_without_output_of_their_own_have_no_age_and_do_not_pile_up() -> None:
    idle = [replace(complete(number, float(number), float(number)), output=False) for number in range(1, 3_600)]
    assert ages_of(*idle, complete(3_600, 3_600.0, 3_600.1), committed(3_600, 3_600.2)) == [(3_600, 1_200, 200)]
    ages = Ages()
    for event in idle:
        ages.heard(event)
    assert not ages._waiting


@pytest.mark.parametrize("at_commit", [True, False])
def test_a_running_job_tells_which_of_its_epochs_have_output_to_commit(tmp_path: Path, at_commit: bool) -> None:
    rows = Stream.read(Generate(lambda i: {"v": i}, schema_of({"v": int}), rate=2_000.0), uid="rows")
    run = recovery.run(
        rows.write(ToDriver(at_commit=at_commit), uid="out"),
        checkpoints=tmp_path / "tree",
        job="endless",
        every="50ms",
        launcher=LocalProcesses(),
        local=tmp_path / "local",
        progress=False,
    )
    with recovery.attach(job_folder=tmp_path / "local") as attached:
        for _ in range(5):
            endless_job.wait_for(attached, log.EpochCommitted if at_commit else log.EpochCompleted)
        attached.stop()
    run.wait()
    told = {event.epoch for event in run.events if isinstance(event, log.EpochCompleted) and event.output}
    committed = {event.epoch for event in run.events if isinstance(event, log.EpochCommitted)}
    assert len(committed) >= 5 * at_commit
    assert committed <= told
    assert bool(told) is at_commit


def test_around_a_recovery_are_the_ages_before_meanwhile_and_behind_its_first_commit() -> None:
    ages = [Age(float(at), an_epoch(at), 1.0, 1.0) for at in (*range(50), *range(100, 150))]
    found = [age.at for age in around(45.0, 60.0, ages)]
    assert found == [*range(35, 50), *range(100, 111)]
    assert around(45.0, 60.0, []) == []


def test_of_very_many_ages_the_oldest_are_kept() -> None:
    ages = [Age(float(at), an_epoch(at), 1000.0 if at == 77 else 1.0, 1.0) for at in range(1_000)]
    assert len(found := thinned(ages, 100)) == 100
    assert max(age.oldest_ms for age in found) == 1000.0
