"""Whole jobs whose connections are encrypted: exact whatever dies, closed to others, the key stays in its file."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.driver.settings.options import in_their_places
from recovery.driver.tree import address as reach
from recovery.events import AnyEvent, PeerRefused
from snapshot import Collection, Program, Stream, ToDriver
from snapshot.host.net.tls import Tls, UnusableTls
from snapshot.host.process.worker import DriverLost, run_worker
from snapshot.host.protocol.messages import Address
from statebackend.stores.store import UnsuitableStore
from tests.certificates import Authority
from tests.jobs.driver import Mode, Settings
from tests.jobs.running_job import RunningJob
from tests.program_parts import Nothing

PATIENCE = 60.0
NAMES = pa.schema({"name": pa.string(), "n": pa.int64()})
NAME = "a-name-that-is-easy-to-find-%03d"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    return authority.issue()


# --- jobs of several processes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["aligned", pytest.param("unaligned", marks=pytest.mark.thorough)])
def test_a_job_whose_worker_and_driver_are_killed_gives_every_row_once(tmp_path: Path, tls: Tls, mode: Mode) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job="sequences", mode=mode, every="150ms", rows=40_000, rate=1e9, tls=tls.paths
    )
    with RunningJob(settings) as job:
        job.start()
        for _ in range(2):
            job.wait_for_kind("EpochCompleted")
        worker = next(iter(job.course.workers))
        assert job.kill_worker(worker)
        job.wait_for(lambda event: event["event"] == "WorkerLost" and event["worker"] == worker)
        job.wait_for_kind("EpochCompleted")
        job.kill_driver()
        job.start()
        job.wait_for_kind("Running")
        compared = job.finish()
    assert compared.rows > 1000
    assert compared.exact, compared.examples
    assert not [event for event in job.events if event["event"] == "PeerRefused"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", [pytest.param("aligned", marks=pytest.mark.thorough), "unaligned"])
def test_a_partition_that_is_far_too_slow_holds_its_source_up_and_epochs_complete(
    tmp_path: Path, tls: Tls, mode: Mode
) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"),
        job="skewed",
        sink="parquet",
        mode=mode,
        every="150ms",
        rows=12_000,
        rate=1e9,
        batch_rows=64,
        channel_buffer=1 << 20,
        input_buffer=4 << 20,
        tls=tls.paths,
    )
    with RunningJob(settings) as job:
        job.start()
        epochs = [job.wait_for_kind("EpochCompleted") for _ in range(4)]
        compared = job.finish()
    assert any(event["channel_bytes"] for event in epochs) == (mode == "unaligned")
    assert compared.rows >= 12_000
    assert compared.exact, compared.examples
    assert not [event for event in job.events if event["event"] in ("AttemptFailed", "WorkerLost", "PeerRefused")]


@pytest.mark.timeout(600)
def test_a_partition_in_a_job_that_was_not_encrypted_before_goes_on_in_one_that_is(tmp_path: Path, tls: Tls) -> None:
    settings = Settings(folder=str(tmp_path / "job"), job="sequences", every="150ms", rows=20_000)
    with RunningJob(settings) as job:
        job.start()
        job.wait_for_kind("EpochCompleted")
        job.kill_driver()
        job.settings = replace(settings, tls=tls.paths)
        job.start()
        compared = job.finish()
    assert compared.exact, compared.examples


# --- jobs of this process


def program(rows: int = 300) -> Program:
    numbers = Stream.read(Collection([(NAME % (n % 100), 1) for n in range(rows)], NAMES), uid="names")
    return numbers.key_by("name").sum("n", uid="count").write(ToDriver(), uid="out")


def start(
    folder: Path, tls: Tls | None, of: Program | None = None, launcher: recovery.LocalProcesses | None = None
) -> recovery.Run:
    options: dict[str, Any] = {"every": "100ms", "parallelism": 2, "progress": False, "local": folder / "local"}
    launcher = launcher or recovery.LocalProcesses()
    return recovery.run(
        of or program(), checkpoints=folder / "tree", launcher=launcher, tls=tls, **in_their_places(options)
    )


class Recorder(recovery.LocalProcesses):
    """Processes that reach their driver through a proxy, which records what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = bytearray()
        self._port = socket.create_server(("127.0.0.1", 0))

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str], object],
        tls: Tls | None = None,
    ) -> None:
        threading.Thread(target=self._accept, args=(driver,), daemon=True).start()
        super().start(Address(*self._port.getsockname()), secret, processes, trouble, tls)

    def _accept(self, driver: Address) -> None:
        with self._port, suppress(OSError):
            while True:
                near = self._port.accept()[0]
                far = socket.create_connection((driver.host, driver.port))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.recorded += data
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def stop(self, seconds: float) -> None:
        super().stop(seconds)
        self._port.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("encrypted", [True, False])
def test_rows_are_found_in_what_a_proxy_records_only_if_the_job_is_not_encrypted(
    tmp_path: Path, tls: Tls, encrypted: bool
) -> None:
    proxy = Recorder()
    run = start(tmp_path, tls if encrypted else None, launcher=proxy)
    run.wait(PATIENCE)
    assert len(list(run.rows("out"))) == 300
    assert len(proxy.recorded) > 10_000
    assert (b"a-name-that-is-easy-to-find" in proxy.recorded) == (not encrypted)
    assert (b"Hello" in proxy.recorded) == (not encrypted)


@pytest.fixture
def running(tmp_path: Path, tls: Tls) -> Iterator[recovery.Run]:
    gate = tmp_path / "gate"
    endless = Stream.read(Collection([(NAME % 1, 1)], NAMES), uid="names").filter(lambda row: _wait_for(gate))
    run = start(tmp_path, tls, endless.key_by("name").sum("n", uid="count").write(ToDriver(), uid="out"))
    yield run
    gate.touch()
    run.wait(PATIENCE)


def _wait_for(gate: Path) -> bool:
    import time

    while not gate.exists():
        time.sleep(0.01)
    return True


def refusal(run: recovery.Run, told_of: Callable[[PeerRefused], bool]) -> PeerRefused:
    """The first that is told of in this way."""
    found: list[PeerRefused] = []
    there = threading.Event()

    def heard(event: AnyEvent) -> None:
        if isinstance(event, PeerRefused) and told_of(event):
            found.append(event)
            there.set()

    stop = run.listen(heard)
    for event in run.events:
        heard(event)
    assert there.wait(PATIENCE)
    stop()
    return found[0]


def test_somebody_else_at_the_drivers_port_is_turned_away_by_both_and_the_event_says_why(
    running: recovery.Run, tmp_path: Path, authority: Authority, tls: Tls
) -> None:
    found = reach.read(tmp_path / "local")
    stranger = Authority(tmp_path / "theirs").issue()
    wrong = Tls(stranger.certificate, stranger.key, tls.authorities)
    with pytest.raises(DriverLost, match="it does not accept our certificate, or the connection: unknown ca"):
        run_worker(found.address, found.secret, 0, 0, wrong)
    event = refusal(running, lambda event: "certificate" in event.reason)
    assert event.reason == "TlsRefused: its certificate is not accepted: unable to get local issuer certificate"
    with pytest.raises(DriverLost, match="that is TLS, which is off in this run"):
        run_worker(found.address, found.secret, 0, 0)
    refusal(running, lambda event: "it does not speak TLS, as this run does" in event.reason)
    assert running.status().restarts == 0


def test_the_commands_of_a_job_are_encrypted_too(running: recovery.Run, tmp_path: Path) -> None:
    with closing(recovery.attach(tmp_path / "tree", job_folder=tmp_path / "local")) as attached:
        assert attached.status().job == running.job
    file = tmp_path / "local" / reach.FILE
    said = json.loads(file.read_text())
    stranger = Authority(tmp_path / "theirs").issue()
    for key, why in ((str(stranger.key), "do not go together"), ("absent", "cannot be read")):
        file.write_text(json.dumps({**said, "tls": {**said["tls"], "key": key}}))
        with pytest.raises(recovery.NotAllowed, match=why):
            recovery.attach(job_folder=tmp_path / "local")
    theirs = dict(zip(("certificate", "key", "authorities"), stranger.paths, strict=True))
    file.write_text(json.dumps({**said, "tls": theirs}))
    with pytest.raises(recovery.NotAllowed, match="TlsRefused: its certificate is not accepted"):
        recovery.attach(job_folder=tmp_path / "local")
    file.write_text(json.dumps(said))
    address = Address(said["address"]["host"], said["address"]["port"])
    with socket.create_connection((address.host, address.port)) as plain:
        plain.sendall(b"epochcut\x01c" + bytes(32))
        assert plain.recv(100).startswith(b"\x15\x03")


def test_the_key_is_nowhere_but_in_its_file(tmp_path: Path, tls: Tls) -> None:
    run = start(tmp_path, tls)
    run.wait(PATIENCE)
    body = "".join(Path(tls.key).read_text().splitlines()[1:-1])
    pieces = [body[at : at + 20].encode() for at in range(0, len(body) - 20, 20)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in file.name for file in files)
    for file in files:
        content = file.read_bytes()
        assert not any(piece in content for piece in pieces), file
        assert b"PRIVATE KEY" not in content, file


ON_SPARK = """
import os, sys
from pyspark.sql import SparkSession
import recovery
from recovery.events import Trouble
from tests.test_running_locally import program

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def start(name, *files):
    tls = recovery.Tls(*files)
    return recovery.run(program(), spark, checkpoints=name, local=name + "-local", tls=tls, progress=False)

run = start("good", "job.pem", "job.key", "authority.pem")
run.wait()
print(len(list(run.rows("out"))))
os.chdir("only-the-driver-is-here")
run = start("bad", "job.pem", "job.key", "authority.pem")
troubles = []
run.listen(lambda event: troubles.append(event.reason) if isinstance(event, Trouble) else None)
while not troubles:
    try:
        run.wait(0.1)
    except TimeoutError:
        pass
run.cancel()
print(troubles[0])
spark.stop()
"""


@pytest.mark.timeout(600)
def test_spark_tasks_find_files_beside_them_and_say_which_are_not_there(tmp_path: Path, tls: Tls) -> None:
    there, elsewhere = tmp_path / "executors", tmp_path / "executors" / "only-the-driver-is-here"
    for folder in (there, elsewhere):
        folder.mkdir()
        for path, name in zip(tls.paths, ("job.pem", "job.key", "authority.pem"), strict=True):
            shutil.copy(path, folder / name)
    (there / "job.key").rename(there / "moved.key")
    script = ON_SPARK.replace('"job.key"', '"moved.key"', 1)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=there,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(Path(__file__).parent.parent),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, trouble = done.stdout.splitlines()[-2:]
    assert rows == "60"
    assert f"UnusableTls: the key {there / 'job.key'} cannot be read" in trouble


def test_nothing_starts_with_files_that_cannot_be_used(tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(UnusableTls, match=r"the key .*absent.* cannot be read"):
        start(tmp_path, replace(tls, key=tmp_path / "absent"))
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(("mode", "unwise"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_driver_warns_of_a_key_that_others_can_read(
    authority: Authority, caplog: pytest.LogCaptureFixture, mode: int, unwise: bool
) -> None:
    files = authority.issue()
    Path(files.key).chmod(mode)
    program = Stream.read(Nothing(NAMES), uid="names").write(ToDriver(), uid="out")
    with pytest.raises(UnsuitableStore):
        recovery.run(program, checkpoints="nowhere://tree", tls=files)
    told = f"other users of this host can read the key {files.key} (mode {mode:04o}); give it mode 0600"
    assert (told in caplog.messages) is unwise
