"""Each example as a person runs it, from the command line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from examples import clicks, simulated_recovery

ROOT = Path(__file__).parent.parent
DRAWING = ("simulated_recovery", "third_party_protocol", "wrong_protocol")
STREAMS = ("word_count", "unpaid_orders", "fraud_rules")
ON_SPARK = ("visits_in_spark", "structured_streaming", "moved_query", "clicks")
WITH_SERVERS = ("kafka_to_kafka",)
UNTIL_STOPPED = ("points",)


def run(example: str, *arguments: str, hash_seed: str = "random", complains: str = "") -> str:
    """What an example prints; it ends with exit code 0, and every line of its complaints is of this pattern."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.{example}", *arguments],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not re.fullmatch(complains, line)] == []
    return done.stdout


def test_every_example_is_known_here() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("[!_]*.py")}
    assert names == {*DRAWING, *STREAMS, *ON_SPARK, *WITH_SERVERS, *UNTIL_STOPPED}


@pytest.mark.parametrize("example", [*DRAWING, *STREAMS, *ON_SPARK, *WITH_SERVERS, *UNTIL_STOPPED])
def test_an_example_explains_itself_and_a_drawing_can_be_kept(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        import_module(f"examples.{example}").main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: ")
    assert "example" in out
    assert ("--svg FILE" in out) == (example in (*DRAWING, "clicks"))


@pytest.mark.usefixtures("with_pandas")
def test_state_goes_on_from_spark_job_to_spark_job_at_another_parallelism(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "examples.visits_in_spark", "--keep", str(kept)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    days = [line.split(";")[0] for line in lines[:3]]
    assert days == [f"day {day}: 200,000 visits counted in {many} partitions" for day, many in ((1, 2), (2, 4), (3, 3))]
    assert lines[3] == "day 3: is in the state since epoch 3-3, and not counted again"
    streamed = [line.split(";")[0] for line in lines[4:6]]
    assert streamed == [f"day {day}: 200,000 visits counted in 2 partitions" for day in (4, 5)]
    assert lines[6] == "20,000 users in the state; 0 differ from a query over all visits"
    assert list(kept.glob("log/*.json"))


def test_the_recovery_shows_a_cut_a_crash_and_a_return_to_the_complete_epoch(tmp_path: Path) -> None:
    svg = tmp_path / "new folder" / "recovery.svg"
    out = run("simulated_recovery", "--svg", str(svg))
    went_back = out.split("went back   to epoch ")[1].split(",")[0]
    before, cut, after = out.partition(f"═ the cut of epoch {went_back}\n")
    assert before.count("noted: marker sent") == 2
    assert cut, "the cut of the epoch that the job went back to is drawn"
    crash = after.index("crashed")
    assert 0 < after.index(f"noted: EpochCompleted {went_back}") < after.index("noted: marker sent") < crash
    assert crash < after.index("driver1 sent Deploy to worker") < after.index("received Restored")
    assert "24 rows expected, 24 rows seen: 0 lost, 0 twice or wrong" in out
    assert max(map(len, out.splitlines()[:-1])) <= 120
    assert f"The picture is drawn in {svg}." in out
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_recovery_is_the_same_in_every_run() -> None:
    assert run("simulated_recovery", hash_seed="1") == run("simulated_recovery", hash_seed="2")


def test_the_wrong_protocol_is_caught_and_drawn() -> None:
    out = run("wrong_protocol", "--histories", "300")
    assert "the snapshot is not consistent" in out
    assert "<-- not sent yet" in out


def test_the_protocol_of_a_third_party_passes_and_is_drawn() -> None:
    out = run("third_party_protocol", "--histories", "50")
    assert "each snapshot is consistent, complete, and a state of a sequential execution" in out
    assert "══" in out


@pytest.mark.parametrize(("change", "said"), [("lose", "1 lost, 0 twice or wrong"), ("repeat", "0 lost, 1 twice")])
def test_the_recovery_fails_if_the_output_is_not_exact(
    change: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_and_spoil(first: int, tries: int) -> simulated_recovery.Story | None:
        story = find(first, tries)
        assert story is not None
        rows = story.job.output["numbers"]
        story.job.output = {"numbers": rows[1:] if change == "lose" else [*rows, rows[0]]}
        return story

    find = simulated_recovery.find
    monkeypatch.setattr(simulated_recovery, "find", find_and_spoil)
    assert simulated_recovery.main([]) == 1
    assert said in capsys.readouterr().out


def test_the_recovery_says_so_if_no_schedule_has_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated_recovery.main(["--tries", "0"]) == 1
    assert "try others with --seed" in capsys.readouterr().out


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "arguments", "said"),
    [
        ("word_count", ("--seed", "1"), "960 counts expected, 960 in files: 0 lost, 0 twice or wrong"),
        ("unpaid_orders", ("--events", "9000"), "unpaid orders expected"),
        ("fraud_rules", ("--payments", "4000"), "alarms by 'cards'"),
    ],
)
def test_a_stream_gives_what_is_computed_without_one(example: str, arguments: tuple[str, ...], said: str) -> None:
    out = run(example, *arguments)
    assert said in out
    assert "0 lost, 0 twice or wrong" in out
    assert "\n0 " not in f"\n{out}", "there is something to compare"


def test_the_demo_kills_a_worker_and_its_output_is_exact(tmp_path: Path) -> None:
    svg = tmp_path / "latency.svg"
    lost = r"job clicks-\w+: .*(; restart|, and is started again|was killed by SIGKILL.*)"
    out = run("clicks", "--without-spark", "--seconds", "12", "--rate", "500", "--svg", str(svg), complains=lost)
    assert "killed worker" in out
    assert "600 rows expected, 600 rows in files: 0 lost, 0 twice or wrong" in out
    marks = dict(
        line.split()[:2]
        for line in out.replace("first output", "output").replace("caught up", "up").splitlines()
        if line.startswith("  ")
    )
    assert list(marks) == ["detected", "decided", "restarted", "downloaded", "opened", "output", "up"]
    assert all(float(value) >= 0 for value in marks.values())
    assert f"The picture of the latency around the kill is {svg}." in out
    assert "a worker is killed" in "".join(ElementTree.parse(svg).getroot().itertext())


def test_ctrl_c_stops_the_demo_cleanly(tmp_path: Path) -> None:
    command = ("-m", "examples.clicks", "--without-spark", "--seconds", "60", "--keep", str(tmp_path / "kept"))
    events = tmp_path / "kept" / "local" / "events.jsonl"
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    ) as demo:
        while demo.poll() is None and not (events.exists() and "EpochCompleted" in events.read_text()):
            with suppress(subprocess.TimeoutExpired):
                demo.wait(0.1)
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert "stopping clicks" in err
    assert '"event": "Stopped"' in events.read_text()


@pytest.mark.parametrize(("change", "said"), [("lose", "1 lost, 0 twice"), ("repeat", "0 lost, 1 twice")])
def test_the_demo_fails_if_the_files_are_not_exact(
    change: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = clicks.truth(rate=100, seconds=2)
    row = next(iter(exact))
    spoilt = exact - Counter([row]) if change == "lose" else exact + Counter([row])
    monkeypatch.setattr(clicks, "written", lambda _counts: spoilt)
    assert not clicks.compare(Path("anywhere"), rate=100, seconds=2)
    assert said in capsys.readouterr().out


def test_the_picture_shows_the_latency_of_clicks_by_when_they_were_due() -> None:
    due = 1_000.0 + np.arange(200) / 100
    seen = np.where(due < 1_001, due + 0.01, np.maximum(due, 1_001.5) + 0.01)
    points = clicks.percentiles(clicks.Watched(due, seen), killed_at=1_001.0)
    assert [x for x, _ in points[50]] == [-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]
    assert [round(y) for _, y in points[99]] == [10, 10, 10, 10, 508, 258, 10, 10]
