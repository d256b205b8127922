"""The page of a job: its data, whatever is in it; its colours; and the guard at its door."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPSConnection
from importlib.resources import files
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import pytest

import recovery
from recovery import events as log
from recovery.driver.report.status import RunState, RunStatus, StageWork
from recovery.events import Marks
from recovery.telemetry.problems import CannotTell
from recovery.telemetry.server import Content, Endpoint, Route, WebServer
from recovery.telemetry.watch import Lately, Watch
from snapshot.cut.frames import Watermark
from snapshot.host.protocol.messages import Figures, Followed, PartitionCost, StageFigures
from snapshot.ids import Member
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from tests import endless_job
from tests.certificates import Authority, with_password
from tests.test_metrics import asked

FIRST = Incarnation(Generation(1), Attempt(1))
EPOCH = Epoch(Generation(1), 7)
MARKUP = "<img src=x onerror=alert(1)>\u2028</script>\x1b[31m"
TOKEN = "a-token-of-some-length"
PAGE = (files("recovery.telemetry") / "page.html").read_text()
SCRIPT = (files("recovery.telemetry") / "page.js").read_text()


def full_status(partitions: int = 2) -> RunStatus:
    """A status in which there is something of everything, with markup wherever a name may be."""
    uid, each = Uid(MARKUP), [Partition(number) for number in range(partitions)]
    stage = StageFigures(5, 4, Watermark(1_000), 10, 1, 2.0, waits_for=MARKUP, busy_ms=3.0)
    costs = tuple(PartitionCost(one, 5.0, 1.0, 1.0, 2.0, 10, 20) for one in each)
    epoch = log.EpochCompleted(
        at=2.0, epoch=EPOCH, savepoint=True, since_trigger_ms=6.0, alignment_ms=1.0, sync_ms=1.0, async_ms=2.0,
        state_bytes=10, channel_bytes=20, partitions=costs, states={uid: dict.fromkeys(each, 100)},
    )  # fmt: skip
    recovered = log.Recovered(at=3.0, incarnation=FIRST, epoch=None, epoch_age_ms=None, marks=Marks(decided=1.0))
    roles = {f"w{one}": Member(one) for one in each}
    return RunStatus(
        MARKUP, RunState.RECOVERING, partitions, MARKUP, Generation(1), FIRST,
        roles={**roles, "standby": None}, pids={"w0": MARKUP}, executors={"w0": MARKUP}, complete=EPOCH,
        committed=EPOCH, in_flight=(EPOCH,), epochs=(epoch,), completed_at=2.0,
        trouble=MARKUP, failure=MARKUP, recoveries=(recovered,),
        figures={one: Figures(FIRST, one, {uid: stage}, 1, 0.0, 0.0) for one in each},
        work={one: {uid: StageWork(5, 4)} for one in each},
        standbys={"standby": Followed(EPOCH, EPOCH, MARKUP)},
    )  # fmt: skip


def cookie_of(url: str, path: str) -> str:
    """The cookie that an answer sets."""
    with closing(HTTPConnection(str(urlsplit(url).hostname), urlsplit(url).port, timeout=30)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as answer:
            return str(answer.headers["Set-Cookie"]).partition(";")[0]


def described() -> log.Described:
    stage = log.DescribedStage(MARKUP, MARKUP, (MARKUP,), ((MARKUP, MARKUP),))
    option = log.DescribedOption(MARKUP, MARKUP, given=True)
    return log.Described(at=0.0, job=MARKUP, scheme=MARKUP, parallelism=2, stages=(stage,), options=(option,))


def watch_of(status: RunStatus) -> Watch:
    """What was told of a run with this status."""
    watch = Watch(MARKUP)
    events: list[log.AnyEvent] = [described(), *status.epochs, *status.recoveries]
    for event in events:
        watch.heard(event)
    return watch


def routes_of(status: RunStatus, tree: str = "/nowhere") -> Mapping[str, Route]:
    return watch_of(status).routes(lambda: status, tree)


def data_of(watch: Watch, status: RunStatus) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(watch.routes(lambda: status, "/nowhere")["/data.json"]().body)
    return found


@pytest.fixture
def open_ones() -> Iterator[ExitStack]:
    with ExitStack() as open_ones:
        yield open_ones


def serving(
    open_ones: ExitStack,
    routes: Mapping[str, Route],
    address: str = "127.0.0.1:0",
    token: str = "",
    orders: Mapping[str, Route] | None = None,
) -> str:
    server = WebServer(Endpoint.of("page", address, token), "/")
    open_ones.callback(server.close)
    server.begin(routes, orders)
    return server.url.replace("0.0.0.0", "127.0.0.1")


def test_the_page_has_data_before_anything_is_known_and_when_all_is() -> None:
    empty = RunStatus("j", RunState.STARTING, 2)
    nothing = data_of(watch_of(empty), empty)
    assert nothing["partitions"] == nothing["epochs"] == nothing["recoveries"] == []
    assert nothing["complete"] is None
    status = full_status()
    watch = watch_of(status)
    watch.heard(log.EpochAbandoned(at=1.0, epoch=EPOCH, reason="timed out", detail=MARKUP))
    watch.heard(log.Trouble(at=1.0, what=MARKUP, reason=MARKUP))
    found = data_of(watch, status)
    assert found["job"] == found["scheme"] == MARKUP
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    assert found["partitions"][0]["stages"][MARKUP]["rows_in"] == 5
    assert found["stages"][MARKUP]["rows_in"] == 10
    assert found["states"] == {MARKUP: {"0": 100, "1": 100}}
    assert found["epochs"][0]["partitions"][1]["async_ms"] == 2.0
    assert found["given_up"][0]["detail"] == MARKUP
    assert [note["kind"] for note in found["notes"]][:2] == ["Trouble", "EpochAbandoned"]
    assert found["standbys"][0]["epoch"] == "7-1"


def test_of_a_job_that_runs_for_days_no_more_is_kept_than_a_page_shows() -> None:
    status, sizes = full_status(), list[int]()
    watch = watch_of(status)
    (epoch,), (recovered,) = status.epochs, status.recoveries
    for days in range(3):
        for number in range(2_000 * days, 2_000 * (days + 1)):
            watch.heard(replace(epoch, at=float(number)))
            watch.heard(log.EpochCommitted(at=float(number), epoch=EPOCH))
            watch.heard(log.EpochAbandoned(at=1.0, epoch=EPOCH, reason="timed out", detail=MARKUP))
            watch.heard(replace(recovered, at=float(number)))
            watch.heard(log.Trouble(at=1.0, what=MARKUP, reason=MARKUP))
        sizes.append(len(json.dumps(data_of(watch, status))))
    assert max(sizes) < 1.1 * min(sizes)


def test_a_thousand_partitions_are_told_in_time() -> None:
    status = full_status(1_000)
    watch = watch_of(status)
    began = time.process_time()
    assert len(data_of(watch, status)["partitions"]) == 1_000
    assert time.process_time() - began < 2


def test_texts_can_become_nothing_but_text() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", SCRIPT)
    assert not re.search(r"https?://(?!www\.w3\.org)", PAGE + SCRIPT), "it works without a network"
    assert "<script>" not in PAGE, "the policy allows no script in the page itself"


def test_every_colour_of_text_can_be_read_in_light_and_in_dark() -> None:
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", PAGE, re.S)
    )
    for colours in (light, dark):
        for text in ("ink", "soft", "good", "warn", "bad"):
            for ground in ("paper", "card"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for shape in ("busy", "blocked", "one", "two", "three", "four", "five"):
            assert contrast(colours[shape], colours["paper"]) >= 3, shape


def contrast(one: str, other: str) -> float:
    """The ratio that WCAG defines."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_without_a_token_only_calls_by_a_name_of_the_loopback_see_the_page(open_ones: ExitStack) -> None:
    url = serving(open_ones, routes_of(full_status()))
    for path in ("/", "/page.js", "/data.json", "/metrics"):
        assert asked(url, path)[0] == 200
        assert asked(url, path, Host="evil.example")[0] == 403
    assert asked(url, "/nothing")[0] == 404
    assert asked(url, "/data.json", "POST")[0] == 405


def test_a_browser_gives_the_token_once_and_keeps_it_where_no_script_reads_it(open_ones: ExitStack) -> None:
    url = serving(open_ones, routes_of(full_status()), "0.0.0.0:0", TOKEN)
    assert asked(url, "/")[0] == asked(url, "/?token=wrong-token-of-length")[0] == 401
    assert asked(url, f"/data.json?token={TOKEN}")[0] == 401, "it stands in the address of the page alone"
    assert asked(url, f"/?token={TOKEN}")[0] == 303
    name, _, value = cookie_of(url, f"/?token={TOKEN}").partition("=")
    assert name == f"epochcut-{urlsplit(url).port}", "browsers give the cookies of a host to all its ports"
    assert TOKEN not in value
    assert asked(url, "/data.json", Cookie=f"{name}={value}")[0] == 200
    for other in (f"{name}={TOKEN}", f"epochcut={value}", f"{name}=wrong", "=;;epochcut"):
        assert asked(url, "/data.json", Cookie=other)[0] == 401
    assert asked(url, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_an_encrypted_page_is_read_by_those_who_know_its_authority_and_a_silent_caller_holds_up_none(
    open_ones: ExitStack, tmp_path: Path
) -> None:
    pair = Authority(tmp_path / "authority").issue()
    endpoint = Endpoint.of("page", "127.0.0.1:0", TOKEN).encrypted(Path(pair.certificate), Path(pair.key))
    server = WebServer(endpoint, "/")
    open_ones.callback(server.close)
    server.begin(routes_of(full_status()))
    port = urlsplit(server.url).port
    assert server.url == f"https://127.0.0.1:{port}/"
    open_ones.enter_context(closing(socket.create_connection(("127.0.0.1", port))))  # which says nothing
    knows = ssl.create_default_context(cafile=pair.authorities)
    knows.check_hostname = False
    with closing(HTTPSConnection("127.0.0.1", port, timeout=30, context=knows)) as connection:
        connection.request("GET", f"/?token={TOKEN}")
        answer = connection.getresponse()
        assert answer.status == 303
        assert str(answer.headers["Set-Cookie"]).endswith("; Secure")
    with closing(HTTPSConnection("127.0.0.1", port, timeout=30)) as connection, pytest.raises(ssl.SSLError):
        connection.request("GET", "/")
    with pytest.raises(OSError, match=r".*"):
        asked(f"http://127.0.0.1:{port}/", "/")


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    one, other = authority.issue(), authority.issue()
    endpoint = Endpoint.of("page", "127.0.0.1:0", TOKEN)
    for key in (tmp_path / "missing", Path(other.key), with_password(Path(one.key))):
        with pytest.raises(CannotTell, match="cannot be used as certificate and key"):
            endpoint.encrypted(Path(one.certificate), key)


def test_a_token_is_in_no_log(open_ones: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    logged: SimpleQueue[logging.LogRecord] = SimpleQueue()
    log_of_calls, handler = logging.getLogger("epochcut.web"), QueueHandler(logged)
    log_of_calls.addHandler(handler)
    open_ones.callback(log_of_calls.removeHandler, handler)
    caplog.set_level("DEBUG", "epochcut.web")
    url = serving(open_ones, routes_of(full_status()), "0.0.0.0:0", TOKEN)
    assert asked(url, f"/?token={TOKEN}")[0] == 303
    while "GET / 303" not in logged.get(timeout=20).getMessage():
        pass  # a call is logged after it was answered
    assert TOKEN not in caplog.text


def test_many_callers_at_once_cost_no_more_than_one() -> None:
    made: list[Content] = []

    def make() -> Content:
        made.append(Content("text/plain", b"%d" % len(made)))
        return made[-1]

    lately = Lately(make)
    assert {lately().body for _ in range(1_000)} <= {b"0", b"1"}
    assert len(made) <= 2


def test_a_job_has_its_page_while_it_runs_and_shows_no_secret_on_it(tmp_path: Path) -> None:
    run = recovery.run(
        endless_job.program(tmp_path / "output"),
        checkpoints=tmp_path / "tree",
        job="endless",
        every="100ms",
        local=tmp_path / "local",
        page="127.0.0.1:0",
        web_token=TOKEN,
        storage_options={"s3": {"secret": "hunter2"}},
        progress=False,
    )
    with run, recovery.attach(job_folder=tmp_path / "local") as attached:
        assert run.page_url is not None
        assert run.metrics_url is None
        endless_job.wait_for(attached, log.EpochCompleted)
        status, text = asked(run.page_url, "/data.json", Authorization=f"Bearer {TOKEN}")
        assert asked(run.page_url, "/data.json")[0] == 401
    assert status == 200
    found = json.loads(text)
    assert found["epochs"]
    assert [node["uid"] for node in found["nodes"]] == ["rows", "sums"]
    assert found["nodes"][1]["inputs"] == [["rows", "by key (k)"]]
    options = {name: (value, given) for name, value, given in found["configuration"]}
    assert options["interval"] == ("100", True)
    assert options["lost_after"] == ("2000", False)
    assert options["storage_options"] == ("(not shown)", True)
    assert "hunter2" not in text
    assert TOKEN not in text
