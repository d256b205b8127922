"""A real Prometheus scrapes a job through ten kills: its sums are right, and the dashboard's queries have answers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import recovery
from recovery import FailureRate, LocalProcesses, Passive
from recovery import events as log
from recovery.inject.targets import Kind, Order, WorkerOf
from statebackend.ids import Partition
from tests import endless_job
from tests.servers.prometheus import Prometheus, program, scraping

KILLS = 10
TOKEN = "a-token-for-this-test-alone"
DASHBOARD = Path(recovery.__file__).parent / "telemetry" / "grafana.json"
SPANS = {"$__rate_interval": "10s", "$__range": "5m", "$job": ".*"}
NOT_ALWAYS = ("reason", "watermarkLag")
"""In queries that need not find anything: no epoch may have been abandoned, and the program has no event time."""


def queries() -> dict[str, str]:
    """Return the queries of the dashboard, by the titles of their panels."""
    found: dict[str, str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in SPANS.items():
                query = query.replace(name, value)
            found[f"{panel['title']}: {query}"] = query
    return found


def test_the_sums_are_right_after_ten_kills_and_every_panel_of_the_dashboard_shows_something(tmp_path: Path) -> None:
    run = recovery.run(
        endless_job.program(tmp_path / "output"),
        checkpoints=tmp_path / "tree",
        job="endless",
        every="200ms",
        scheme=Passive(standbys=1, restarts=FailureRate(1000, "1s", delay=0)),
        launcher=LocalProcesses(),
        local=tmp_path / "local",
        metrics="127.0.0.1:0",
        web_token=TOKEN,
        progress=False,
    )
    assert run.metrics_url is not None
    with (
        run,
        recovery.attach(job_folder=tmp_path / "local") as attached,
        scraping(run.metrics_url, tmp_path, TOKEN) as prometheus,
    ):
        prometheus.wait_for("epochcut_job_numberOfCompletedCheckpoints_total > 3")
        for number in range(KILLS):
            attached.inject(Order(Kind.KILL, WorkerOf(Partition(number % 2))))
            endless_job.wait_for(attached, log.Recovered)
            endless_job.wait_for(attached, log.EpochCompleted)
        failed = sum(isinstance(event, log.AttemptFailed) for event in run.events)
        recovered = [event for event in run.events if isinstance(event, log.Recovered)]
        assert prometheus.wait_for(f"epochcut_job_numRestarts_total >= {failed}") == [failed]
        assert prometheus.wait_for(f"epochcut_job_numRecoveries_total >= {len(recovered)}") == [len(recovered)]
        opened = sum(event.marks.opened or 0.0 for event in recovered)
        (told,) = prometheus.values('epochcut_job_recoveryMs_sum{phase="opened"}')
        assert abs(told - opened) < 0.01
        assert_no_counter_ran_backwards(prometheus)
        silent = {title for title, query in queries().items() if not prometheus.values(query)}
        assert {title for title in silent if not any(word in title for word in NOT_ALWAYS)} == set()
        request = Request(run.metrics_url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=30) as answer:
            text = answer.read()
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    # Its one complaint is about names with capitals, which are Flink's.
    complaints = checked.stderr.decode().splitlines() + checked.stdout.decode().splitlines()
    assert [line for line in complaints if not re.search("camelCase|snake_case|abbreviated|units", line)] == []


def assert_no_counter_ran_backwards(prometheus: Prometheus) -> None:
    """The driver has lived all the time, and with it every counter."""
    names = [name for name in prometheus.get("label/__name__/values") if name.startswith("epochcut_")]
    counters = [name for name in names if name.endswith(("_total", "_bucket", "_count"))]
    assert len(counters) > 20
    for name in counters:
        assert set(prometheus.values(f"resets({name}[10m])")) <= {0.0}, name
