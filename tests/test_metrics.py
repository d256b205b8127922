"""Metrics for Prometheus: right while processes are killed, and no caller of theirs does the job any harm."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import recovery
from recovery import events as log
from recovery.driver.report.status import RunState, RunStatus, StageWork, StatusBoard
from recovery.telemetry.counts import BOUNDS, Counts, Times
from recovery.telemetry.exposition import text_of
from recovery.telemetry.metrics import families
from recovery.telemetry.problems import CannotTell
from recovery.telemetry.server import Endpoint, WebServer
from recovery.telemetry.watch import Watch
from snapshot import Collection, Stream, ToDriver
from snapshot.cut.frames import LATEST, Watermark
from snapshot.host.protocol.messages import Figures, PartitionCost, SinkFigures, StageFigures
from snapshot.ids import Member
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.store_calls import StoreCalls
from tests import endless_job
from tests.test_running_locally import NUMBERS

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
FIRST, SECOND = (Incarnation(Generation(1), Attempt(number)) for number in (1, 2))
COUNT = Uid("count")
PATIENCE = 30.0


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_job(found: Samples, name: str, **labels: str) -> float:
    (value,) = (
        value
        for (sample, of), value in found.items()
        if sample == f"epochcut_job_{name}" and labels.items() <= dict(of).items()
    )
    return value


def scraped(url: str) -> Samples:
    with urlopen(url, timeout=PATIENCE) as answer:
        return samples(answer.read().decode())


def asked(url: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def figures(
    incarnation: Incarnation, rows: int, *, busy: float = 0.0, blocked: float = 0.0, ran: float = 0.0
) -> Figures:
    stage = StageFigures(rows, 2 * rows, Watermark(LATEST), 5, 1, blocked, busy_ms=busy)
    return Figures(incarnation, Partition(0), {COUNT: stage}, 1000, 2.0, 3.0, ran)


def deployed(incarnation: Incarnation) -> log.Deployed:
    return log.Deployed(at=0.0, incarnation=incarnation, epoch=None, workers=("w",), members=(Member(Partition(0)),))


@pytest.fixture
def serving() -> Iterator[Callable[..., WebServer]]:
    with ExitStack() as open_ones:

        def make(
            address: str = "127.0.0.1:0",
            token: str = "",
            status: Callable[[], RunStatus] = lambda: RunStatus("j", RunState.RUNNING, 2),
        ) -> WebServer:
            server = WebServer(Endpoint.of("metrics", address, token), "/metrics")
            server.begin(Watch("j").routes(status, "/nowhere"))
            open_ones.callback(server.close)
            return server

        yield make


def test_the_sums_are_right_after_every_kill_and_no_counter_ever_runs_backwards(tmp_path: Path) -> None:
    run = recovery.run(
        endless_job.program(tmp_path / "output"),
        checkpoints=tmp_path / "tree",
        job="endless",
        every="100ms",
        launcher=(launcher := recovery.LocalProcesses()),
        local=tmp_path / "local",
        metrics="127.0.0.1:0",
        progress=False,
    )  # fmt: skip
    with run, recovery.attach(job_folder=tmp_path / "local") as attached:
        url = run.metrics_url
        assert url is not None
        last: Samples = {}
        for _ in range(3):
            endless_job.wait_for(attached, log.EpochCompleted)
            os.kill(next(iter(launcher.pids.values())), signal.SIGKILL)
            endless_job.wait_for(attached, log.Recovered)
            found = scraped(url)
            assert all(found[key] >= value for key, value in last.items() if key[0].endswith(("_total", "_bucket")))
            last = found
        complete = run.events
        epochs = sum(isinstance(event, log.EpochCompleted) for event in complete)
        while of_job(found := scraped(url), "numberOfCompletedCheckpoints_total") < epochs:
            pass  # an answer may be half a second old
        later = sum(isinstance(event, log.EpochCompleted) for event in run.events)
    recovered = [event for event in complete if isinstance(event, log.Recovered)]
    failed = sum(isinstance(event, log.AttemptFailed) for event in complete)
    assert of_job(found, "numRestarts_total") == failed >= 3
    assert of_job(found, "numRecoveries_total") == len(recovered) == 3
    causes = [value for (name, _), value in found.items() if name == "epochcut_job_numFailures_total"]
    assert sum(causes) == failed
    assert of_job(found, "recoveryMs_count", phase="opened") == 3
    opened = sum(event.marks.opened or 0.0 for event in recovered)
    assert of_job(found, "recoveryMs_sum", phase="opened") == pytest.approx(opened)
    assert of_job(found, "numberOfCompletedCheckpoints_total") <= later
    assert of_job(found, "state", state="running") == 1
    work = {labels: value for (name, labels), value in found.items() if name == "epochcut_task_numRecordsIn_total"}
    assert {dict(labels)["uid"] for labels in work} == {"rows", "sums"}
    assert all(value > 0 for value in work.values())
    for name in ("task_numBytesOut", "sink_numCommits", "sink_commitTimeMs", "store_calls", "store_callTimeMs"):
        values = [value for (sample, _), value in found.items() if sample == f"epochcut_{name}_total"]
        assert sum(values) > 0, name
    callers = {dict(labels)["partition"] for (name, labels) in found if name == "epochcut_store_calls_total"}
    assert callers == {"0", "1", ""}
    with pytest.raises(OSError, match="refused"):
        urlopen(url, timeout=PATIENCE)


def test_work_counts_on_through_attempts_and_the_time_without_any_is_idle() -> None:
    board = StatusBoard("j", 1, "passive")
    board.event(deployed(FIRST))
    board.figures(figures(FIRST, 10, busy=40.0, blocked=10.0, ran=100.0))
    board.figures(figures(FIRST, 30, busy=140.0, blocked=20.0, ran=300.0))
    board.event(deployed(SECOND))
    board.figures(figures(SECOND, 5, busy=30.0, ran=20.0))
    assert board.show().work == {0: {COUNT: StageWork(35, 70, 0, 0, 170.0, 20.0, 140.0)}}


def test_work_does_not_shrink_when_a_member_that_is_behind_tells_it() -> None:
    board = StatusBoard("j", 1, "active")
    board.event(deployed(FIRST))
    board.figures(figures(FIRST, 100, busy=50.0, ran=100.0))
    board.figures(figures(FIRST, 90, busy=40.0, ran=120.0))  # of the new primary
    board.figures(figures(FIRST, 95, busy=45.0, ran=140.0))
    (work,) = board.show().work[Partition(0)].values()
    assert (work.rows_in, work.rows_out, work.busy_ms) == (105, 210, 55.0)


def test_commits_and_calls_to_the_store_count_on_through_attempts() -> None:
    def told(incarnation: Incarnation, pending: int, commits: int, calls: int) -> Figures:
        plain = figures(incarnation, 0)
        stage = replace(plain.stages[COUNT], bytes_out={Uid("next"): 100 * commits})
        sinks = {Uid("out"): SinkFigures(pending, commits, 2.0 * commits, put_off=1)}
        return replace(plain, stages={COUNT: stage}, sinks=sinks, store={"read": StoreCalls(calls, 1, 5.0 * calls)})

    board = StatusBoard("j", 1, "passive")
    board.event(deployed(FIRST))
    board.figures(told(FIRST, 2, 3, 10))
    board.figures(told(FIRST, 1, 4, 12))
    board.event(deployed(SECOND))
    board.figures(told(SECOND, 0, 1, 1))
    status = board.show()
    assert status.commits == {0: {"out": SinkFigures(0, 5, 10.0, put_off=2)}}
    assert status.store_calls == {0: {"read": StoreCalls(13, 2, 65.0)}}
    found = samples(text_of(families(status, Counts(), {"create": StoreCalls(7, 0, 1.0)}, 0.0)).decode())
    told_of = {name: value for (name, labels), value in found.items() if "sink" in name or ("partition", "") in labels}
    assert told_of["epochcut_sink_numCommits_total"] == 5
    assert told_of["epochcut_sink_commitTimeMs_total"] == 10.0
    assert told_of["epochcut_sink_pendingCommits"] == 0
    assert told_of["epochcut_store_calls_total"] == 7
    sent = [value for (name, _), value in found.items() if name == "epochcut_task_numBytesOut_total"]
    assert sent == [500]


def test_every_event_is_counted_and_what_it_says_added_up() -> None:
    counts = Counts()
    cost = PartitionCost(Partition(0), 7.0, 1.0, 2.0, 3.0, 100, 50)
    epoch = Epoch(Generation(1), 4)
    counts.heard(
        log.EpochCompleted(
            at=0.0, epoch=epoch, savepoint=False, since_trigger_ms=7.0, alignment_ms=1.0, sync_ms=2.0, async_ms=3.0,
            state_bytes=100, channel_bytes=50, partitions=(cost,),
        )
    )  # fmt: skip
    counts.heard(log.EpochAbandoned(at=0.0, epoch=epoch, reason="timed out", detail=""))
    counts.heard(log.OrphansDeleted(at=0.0, files=3, bytes=30, unfinished=0))
    counts.heard(log.EpochsRemoved(at=0.0, epochs=(epoch,), files=2))
    counts.heard(log.FaultInjected(at=0.0, order="kill worker:1", worker="w", partition=None, by="me"))
    found = samples(text_of(families(RunStatus("endless", RunState.RUNNING, 1), counts, {}, 0.0)).decode())
    assert of_job(found, "checkpointedBytes_total") == 100
    assert of_job(found, "persistedInFlightBytes_total") == 50
    assert of_job(found, "checkpointDurationMs_sum") == 7.0
    assert of_job(found, "checkpointDurationMs_bucket", le="5.0") == 0
    assert of_job(found, "checkpointDurationMs_bucket", le="10.0") == 1
    assert of_job(found, "numberOfFailedCheckpoints_total", reason="timed out") == 1
    assert of_job(found, "orphanedFiles_total") == 3
    assert of_job(found, "orphanedBytes_total") == 30
    assert of_job(found, "removedFiles_total") == 2
    assert of_job(found, "numFaultsInjected_total", kind="kill") == 1


@given(st.lists(st.floats(0, 1e6)))
def test_times_are_counted_below_every_bound_that_they_do_not_exceed(given: list[float]) -> None:
    times = Times()
    for one in given:
        times.add(one)
    assert times.cumulative() == [
        *((str(bound), sum(one <= bound for one in given)) for bound in BOUNDS),
        ("+Inf", len(given)),
    ]


def test_names_with_quotes_and_line_ends_come_back_as_they_are(serving: Callable[..., WebServer]) -> None:
    name = 'a"b\\c\nd <script>'
    server = serving(status=lambda: RunStatus(name, RunState.RUNNING, 2))
    found = scraped(server.url)
    assert found["epochcut_job_parallelism", (("job_id", name),)] == 2


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "user@evil.example"]
)
def test_a_call_by_a_foreign_name_gets_nothing(serving: Callable[..., WebServer], host: str) -> None:
    status, text = asked(serving().url, Host=host)
    assert (status, text) == (403, "not for you\n")


@pytest.mark.parametrize("host", ["127.0.0.1:9249", "localhost", "LOCALHOST:80", "[::1]:9249"])
def test_a_call_by_a_name_of_the_loopback_is_answered(serving: Callable[..., WebServer], host: str) -> None:
    status, text = asked(serving().url, Host=host)
    assert status == 200
    assert "epochcut_job_parallelism" in text


def test_with_a_token_callers_need_it_by_whatever_name_they_call(serving: Callable[..., WebServer]) -> None:
    server = serving("0.0.0.0:0", "a-token-of-some-length")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert asked(url)[0] == 401
    assert asked(url, Authorization="Bearer another-token-of-length")[0] == 401
    assert asked(url, Authorization="a-token-of-some-length")[0] == 401
    assert asked(url, Authorization="Bearer a-token-of-some-length", Host="metrics.example")[0] == 200


def test_metrics_are_read_at_one_path_and_changed_at_none(serving: Callable[..., WebServer]) -> None:
    url = serving().url
    assert asked(url, "/metrics/")[0] == asked(url, "/metrics/..")[0] == 404
    assert asked(url, method="POST")[0] == asked(url, method="DELETE")[0] == 405


def test_silent_callers_hold_up_neither_each_other_nor_the_end(serving: Callable[..., WebServer]) -> None:
    server = serving()
    address = (str(urlsplit(server.url).hostname), urlsplit(server.url).port)
    with ExitStack() as silent:
        for _ in range(10):
            silent.enter_context(socket.create_connection(address))
        assert scraped(server.url)
        for _ in range(100):  # more than are served at once: those are turned away, and nothing waits for them
            silent.enter_context(socket.create_connection(address))
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 5.0


def test_a_status_that_cannot_be_told_is_an_error_of_that_scrape_alone(serving: Callable[..., WebServer]) -> None:
    answers = iter([None, RunStatus("j", RunState.RUNNING, 2)])
    server = serving(status=lambda: next(answers))
    assert asked(server.url)[0] == 500
    assert asked(server.url)[0] == asked(server.url)[0] == 200


@pytest.mark.parametrize(
    ("address", "token", "why"),
    [
        ("9249", "", "give an address and a port"),
        ("127.0.0.1", "", "give an address and a port"),
        ("127.0.0.1:99999", "", "give an address and a port"),
        ("127.0.0.1:80/metrics", "", "give an address and a port"),
        ("me@127.0.0.1:80", "", "give an address and a port"),
        ("0.0.0.0:9249", "", "give web_token"),
        ("metrics.example:9249", "", "give web_token"),
        ("0.0.0.0:9249", "short", "at least 16"),
    ],
)  # fmt: skip
def test_an_address_that_makes_no_sense_or_is_open_to_others_is_refused(address: str, token: str, why: str) -> None:
    with pytest.raises(CannotTell, match=why):
        Endpoint.of("metrics", address, token)


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    program = Stream.read(Collection([("a", 1)], NUMBERS), uid="numbers").write(ToDriver(), uid="out")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotTell, match=f"127.0.0.1:{port} cannot be listened at: Address already in use; port 0"):
            recovery.run(
                program, checkpoints=tmp_path / "tree", local=tmp_path / "local", metrics=f"127.0.0.1:{port}",
                progress=False,
            )  # fmt: skip
    assert not (tmp_path / "tree").exists()
    assert not (tmp_path / "local").exists()


def test_ten_thousand_partitions_are_told_in_time() -> None:
    stages = {Uid(uid): StageFigures(1, 1, Watermark(5), 0, 0, 0.0) for uid in ("read", "count", "write")}
    partitions = [Partition(number) for number in range(10_000)]
    status = RunStatus(
        "j", RunState.RUNNING, 10_000,
        figures={one: Figures(FIRST, one, stages, 0, 0.0, 0.0) for one in partitions},
        work={one: dict.fromkeys(stages, StageWork(1, 1)) for one in partitions},
    )  # fmt: skip
    server = WebServer(Endpoint.of("metrics", "127.0.0.1:0"), "/metrics")
    server.begin(Watch("j").routes(lambda: status, "/nowhere"))
    try:
        began = time.monotonic()
        with urlopen(server.url, timeout=PATIENCE) as answer:
            size = len(answer.read())
        took = time.monotonic() - began
    finally:
        server.close()
    print(f"{size:,} bytes in {took:.2f} s")
    assert took < 10
