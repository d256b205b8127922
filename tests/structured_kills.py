"""A query of Spark's that feeds a program, and kills at random: of its tasks, of its executors, of its driver, of the
program's partitions and of the program's driver. In the end each row has to count once.

Invariant: what is killed when follows from the seed, though what a moment meets does not.

    python -m tests.structured_kills --kills 100 --seed 1
    python -m tests.structured_kills --kills 100 --seed 1 --source kafka

A broker of Kafka and Spark's source for it are those of `make test-servers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

import recovery
from snapshot import SparkSource, Stream, ToFiles

ROOT: Final = Path(__file__).parent.parent
ROWS: Final = 50
"""In each file that the query reads."""
FILES: Final = 4
"""In a batch, at most."""
AHEAD: Final = 3
"""Batches that the files are ahead of the query."""
USERS: Final = 17
TOPIC: Final = "rows"
PATIENCE: Final = 600.0
COLUMNS: Final = "user bigint, n bigint"
KINDS: Final = ("task", "executor", "query", "partition", "program")
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "99",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.memory": "512m",
}


def run_query(folder: Path, bootstrap: str) -> None:
    """The query, until it is killed."""
    from pyspark.sql import SparkSession

    from snapshot.structured import register

    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if bootstrap:
        from tests.servers.spark_kafka import jars, read_topic

        spark = builder.config("spark.jars", jars()).getOrCreate()
        rows = read_topic(spark, bootstrap, TOPIC, COLUMNS, FILES * ROWS)
    else:
        spark = builder.getOrCreate()
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", FILES).json(str(folder / "in"))
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    query = rows.repartition(2).writeStream.format("epochcut.stream").trigger(processingTime="100 milliseconds")
    query.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "log")).awaitTermination()


def run_program(folder: Path) -> None:
    """The program, until it is killed, or told to kill one of its partitions or to end."""
    rows = Stream.read(SparkSource("user bigint, n bigint", str(folder / "log"), splits=4), uid="rows")
    counts = (
        rows.key_by("user").count(uid="counts", per="record").write(ToFiles(str(folder / "out"), "jsonl"), uid="out")
    )
    launcher = recovery.LocalProcesses()
    run = recovery.run(
        counts,
        checkpoints=str(folder / "tree"),
        launcher=launcher,
        every="200ms",
        progress=False,
        scheme=recovery.Passive(restarts=recovery.FixedDelay(attempts=10**6, delay="100ms")),
    )
    for line in sys.stdin:
        if line.strip() == "end":
            run.drain(PATIENCE)
            return
        pids = list(launcher.pids.values())
        if pids:
            os.kill(pids[int(line) % len(pids)], signal.SIGKILL)


class Feeder(Thread):
    """Files or records with rows, some after the others, until told to stop, and never many more than are taken."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._folder, self._taken, self._stop_now = folder / "in", folder / "log" / "batches", Event()
        self._put = _in_topic(bootstrap) if bootstrap else self._in_file
        self.files = 0

    def run(self) -> None:
        """Let rows appear, some each second."""
        while not self._stop_now.wait(0.15):
            if self.files >= FILES * (len(list(self._taken.glob("*.json"))) + AHEAD):
                continue
            numbers = range(self.files * ROWS, (self.files + 1) * ROWS)
            self._put([json.dumps({"user": number % USERS, "n": number}) for number in numbers])
            self.files += 1

    def _in_file(self, rows: Sequence[str]) -> None:
        path = self._folder / f".{self.files}.json"
        path.write_text("\n".join(rows))
        path.rename(self._folder / f"{self.files}.json")

    def stop(self) -> int:
        """Stop; return the number of all rows."""
        self._stop_now.set()
        self.join()
        return self.files * ROWS


def _in_topic(bootstrap: str) -> Callable[[Sequence[str]], None]:
    """Return a function that writes rows to the topic, and waits until the broker has them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def put(rows: Sequence[str]) -> None:
        for row in rows:
            producer.produce(TOPIC, row.encode())
        producer.flush()

    return put


@contextmanager
def broker(folder: Path, source: str) -> Iterator[str]:
    """A broker with the topic, if there is to be one; its address."""
    if source == "files":
        yield ""
        return
    from confluent_kafka.admin import NewTopic

    from tests.servers.kafka import running_kafka

    with running_kafka(folder) as server:
        admin = server.admin()  # its end would be that of the request
        admin.create_topics([NewTopic(TOPIC, num_partitions=3)])[TOPIC].result(timeout=PATIENCE)
        yield server.bootstrap


class Process:
    """One of the two, which is started again whenever it was killed."""

    def __init__(self, folder: Path, which: str, bootstrap: str) -> None:
        self._command = [sys.executable, "-m", "tests.structured_kills", which, str(folder), "--bootstrap", bootstrap]
        self._log = folder / f"{which.strip('-')}.log"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def end(self) -> None:
        self.say("end")
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill it with all that it has started."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_one(self, chance: Random, *words: str) -> bool:
        """Kill one of Spark's processes with these words in its command; false if there is none now."""
        command = ["ps", "-o", "pid=,args=", "-g", str(self._process.pid)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        found = [int(line.split()[0]) for line in listed if all(word in line for word in words)]
        if not found:
            return False
        with suppress(ProcessLookupError):  # it has ended
            os.kill(chance.choice(found), signal.SIGKILL)
        return True


def written(folder: Path) -> list[tuple[int, int]]:
    """What a reader of the output sees."""
    found = []
    for path in (folder / "out").glob("part-*"):
        rows = map(json.loads, path.read_text().splitlines())
        found += [(row["user"], row["count"]) for row in rows]
    return found


def wait_for(folder: Path, rows: int) -> None:
    """Wait until so many rows are visible."""
    give_up = time.monotonic() + PATIENCE
    while len(written(folder)) < rows:
        if time.monotonic() > give_up:
            raise SystemExit(f"nothing goes on: {len(written(folder))} rows are visible; see the logs in {folder}")
        time.sleep(0.1)


def carry_out(
    folder: Path, kills: int, seed: int, kinds: Sequence[str], bootstrap: str
) -> tuple[Counter[str], int, Counter[tuple[int, int]]]:
    """Run all of it; return what was killed, how many rows there were, and the output that is wrong."""
    (folder / "in").mkdir()
    chance, done, feeder = Random(seed), Counter[str](), Feeder(folder, bootstrap)
    feeder.start()
    query, program = Process(folder, "--query", bootstrap), Process(folder, "--program", bootstrap)
    try:
        while done.total() < kills:
            print(f"{done.total()} kills, {len(written(folder)):,} rows", file=sys.stderr, flush=True)
            wait_for(folder, len(written(folder)) + 1)
            time.sleep(chance.uniform(0, 1.5))
            match chance.choice(kinds):
                case "task":
                    done["task"] += query.kill_one(chance, "pyspark", "daemon")
                case "executor":
                    done["executor"] += query.kill_one(chance, "CoarseGrainedExecutorBackend")
                case "query":
                    query.kill()
                    query.start()
                    done["query"] += 1
                case "partition":
                    program.say(str(chance.randrange(2)))
                    done["partition"] += 1
                case _:
                    program.kill()
                    program.start()
                    done["program"] += 1
        rows = feeder.stop()
        wait_for(folder, rows)
        program.end()
    finally:
        for process in (query, program):
            process.kill()
    expected = Counter((user, count) for user in range(USERS) for count in range(1, len(range(user, rows, USERS)) + 1))
    found = Counter(written(folder))
    return done, rows, (found - expected) + (expected - found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.structured_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what is killed (%(default)s)")
    parser.add_argument("--source", choices=("files", "kafka"), default="files", help="of the query (%(default)s)")
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    parser.add_argument("--query", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--program", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.query or given.program:
        run_query(given.query, given.bootstrap) if given.query else run_program(given.program)
        return 0
    with TemporaryDirectory() as folder, broker(Path(folder), given.source) as bootstrap:
        done, rows, wrong = carry_out(Path(folder), given.kills, given.seed, given.kinds.split(","), bootstrap)
    killed = ", ".join(f"{count} of a {kind}" for kind, count in sorted(done.items()))
    print(f"{done.total()} kills ({killed}); {rows:,} rows: {wrong.total()} counts lost, twice or wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
