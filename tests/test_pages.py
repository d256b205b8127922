"""The pages tell the truth: their programs do what they show, and the files, commands and places they name exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import split

import pyarrow as pa
import pytest

import recovery
from examples import points
from recovery import events
from recovery.command.main import _parser
from snapshot import Collection, Stream, ToDriver
from tests.command_line import run_command
from tests.planted import seeds  # noqa: F401  (importing fills the tables)
from tests.planted.error import ERRORS, SELDOM

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0


def pages() -> dict[str, str]:
    """Return the text of every page, by its path."""
    places = ("*.md", ".github/*.md", "*/README.md", "recovery/*.md", "snapshot/*/README.md", "tests/bench/**/*.md")
    paths = sorted({path for place in places for path in ROOT.glob(place)})
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


PAGES = pages()


@dataclass(frozen=True)
class Block:
    """A code block of a page. `shown` is the block without a language after it: its output, if there is one."""

    page: str
    number: int
    language: str
    text: str
    shown: str | None = None

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks(page: str) -> Iterator[Block]:
    texts = re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
    for number, (language, text) in enumerate(texts):
        shown = texts[number + 1][1] if number + 1 < len(texts) and not texts[number + 1][0] else None
        yield Block(page, number, language, text, shown)


BLOCKS = [block for page in PAGES for block in blocks(page)]


def in_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


PROGRAMS = [block for block in in_language("python") if block.page != ".github/CONTRIBUTING.md"]
QUERIES = in_language("py")
COMMANDS = in_language("sh")
TOURS = in_language("console")


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {block.language for block in BLOCKS} == {"python", "py", "sh", "console", ""}
    outputs = [block for block in BLOCKS if block.shown is not None]
    assert len(outputs) == len(in_language("")), "a block without a language stands behind the program that prints it"
    assert all(block.language == "python" for block in outputs)
    assert [block.page for block in TOURS] == ["recovery/README.md"]


PROGRAMS_IN_ONE_PROCESS = """\
import runpy
import shutil
import sys
from pathlib import Path

for program in sys.argv[1:]:
    runpy.run_path(program, run_name="__main__")
    print(end="\\0", flush=True)
    for path in Path().iterdir():  # the next program finds an empty folder
        path.unlink() if path.is_file() else shutil.rmtree(path)
"""


def test_each_program_prints_what_its_page_shows(tmp_path: Path) -> None:
    """One after the other in one process, as each start costs more than most of the programs."""
    files = [tmp_path / f"{number}.py" for number in range(len(PROGRAMS))]
    for file, program in zip(files, PROGRAMS, strict=True):
        file.write_text(program.text)
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS_IN_ONE_PROCESS, *map(str, files)],
        cwd=tmp_path / "here", env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    *printed, rest = done.stdout.split("\0")
    for program, said in zip(PROGRAMS, printed, strict=False):
        lines = [line for line in said.splitlines() if line.strip() and "hears of a broken link" not in line]
        assert lines == [line for line in (program.shown or "").splitlines() if line.strip()], program
    failed = PROGRAMS[min(len(printed), len(PROGRAMS) - 1)]
    assert (len(printed), rest, done.returncode, done.stderr) == (len(PROGRAMS), "", 0, ""), failed


QUERIES_IN_ONE_SESSION = """\
import shutil
import sqlite3
import sys
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for block in map(Path, sys.argv[1:]):
    Path("in").mkdir()
    Path("in/rows.json").write_text('{"user": "ann", "count": 2}\\n{"user": "bob", "count": 1}\\n')
    df = spark.readStream.schema("user string, count long").json("in")
    exec(block.read_text(), {"spark": spark, "df": df, "Path": Path})
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    print(sorted(user for user, _ in sqlite3.connect("totals.db").execute("SELECT user, count FROM totals")))
    for path in Path().iterdir():  # the next block has the same names
        path.unlink() if path.is_file() else shutil.rmtree(path)
spark.stop()
"""


def test_each_query_of_spark_writes_its_rows(tmp_path: Path) -> None:
    for number, query in enumerate(QUERIES):
        (tmp_path / f"{number}.py").write_text(query.text)
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", QUERIES_IN_ONE_SESSION, *(f"{tmp_path}/{number}.py" for number in range(len(QUERIES)))],
        cwd=tmp_path / "here",
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout.splitlines()
    first_wrong = QUERIES[min(len(said), len(QUERIES) - 1)]
    assert said == ["['ann', 'bob']"] * len(QUERIES), f"{first_wrong}: {done.stderr[-3000:]}"


def lines_of(block: Block) -> list[str]:
    return [line.split(" #")[0].strip() for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_a_command_of_a_page_can_be_given(block: Block) -> None:
    for line in lines_of(block):
        words = [word for word in split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        match words:
            case ["make", *_]:
                continue  # a test of its own looks for all targets
            case ["recovery", *arguments]:
                _parser(None).parse_args(arguments)
            case [python, "-m", module, *_] if python.endswith("python"):
                assert find_spec(module), line
            case ["spark-submit", *_]:
                assert set(re.findall(r"--conf (spark\.[\w.]+)=", line)) <= SETTINGS
            case _:
                pytest.fail(f"{block}: nothing checks {line!r}")


SETTINGS = {
    name
    for path in ("recovery/driver/launchers/spark_settings.py", "tests/servers/test_yarn.py", "tests/servers/yarn.py")
    for name in re.findall(r"spark\.[\w.]+\w", (ROOT / path).read_text())
}


EPOCH = re.compile(r"\b\d+-\d\b")


def alike(text: str) -> str:
    """Return a transcript without what differs from run to run: numbers, sizes, times, names, widths of columns."""
    text = re.sub(r"[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b[\d.]+ (?:bytes|[kMG]B)", "SIZE", text)
    text = re.sub(r"\d+(?:-\d+)?", "N", text)
    text = re.sub(r"\bN(?:, N)+\b", "N, N", text)  # a job that ends may leave one epoch more to be removed later
    text = re.sub(r"\bfiles?\b", "file", text)
    return "\n".join(re.sub(r"[ ]+", " ", line).strip() for line in text.splitlines())


class Tour:
    """A folder in which the tour's job runs, and commands are given; those that run on, as in other terminals."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        shutil.copy(ROOT / "examples" / "points.py", folder)
        self._checkpoints = str(folder / "points")
        self._run = recovery.run(
            points.program(str(folder / "points-output")), checkpoints=self._checkpoints, job="points", parallelism=2
        )
        self._restored: list[subprocess.Popen[str]] = []
        committed = threading.Semaphore(0)  # asked of the run itself, as its tree may not be there yet
        self._run.listen(lambda event: committed.release() if isinstance(event, events.EpochCommitted) else None)
        for _ in range(3):
            assert committed.acquire(timeout=PATIENCE), "nothing happens"

    def await_commits(self, count: int) -> None:
        with recovery.attach(self._checkpoints, timeout=PATIENCE) as job:
            job.follow()
            while count:
                event = job.next_event(PATIENCE)
                assert event is not None, "nothing happens"
                count -= isinstance(event, events.EpochCommitted)

    def give(self, command: str) -> str:
        """Return what a command prints; of `restore`, which runs on, the first line, when its job has committed."""
        if not command.startswith("recovery restore"):
            said = run_command(self._capsys, *split(command)[1:])
            assert (said.code, said.err) == (0, ""), said.err
            return said.out.replace(str(self.folder), "/jobs")
        started = subprocess.Popen(
            [sys.executable, "-m", *split(command)],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._restored.append(started)
        assert started.stderr is not None
        first = started.stderr.readline()
        while not self._runs_here():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"{command} has ended with {started.wait(0.1)}")
        self.await_commits(1)
        return first

    def _runs_here(self) -> bool:
        try:
            recovery.attach(self._checkpoints).close()
        except recovery.JobNotRunning:
            return False
        return True

    def close(self) -> None:
        self._run.cancel()
        for one in self._restored:
            one.kill()
            one.communicate()


def test_the_tour_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (page,) = TOURS
    steps = re.findall(r"^\$ (recovery .*)\n((?:(?!\$ ).*\n?)*)", page.text, re.MULTILINE)
    assert len(steps) >= 9
    tour = Tour(tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    epochs: dict[str, str] = {}
    """Those of this run, by those of the page."""

    def present(found: re.Match[str]) -> str:
        return epochs[found[0]]

    try:
        for command, shown in steps:
            printed = tour.give(EPOCH.sub(present, command))
            assert alike(printed).split() == alike(shown).split(), command
            epochs.update(zip(EPOCH.findall(shown), EPOCH.findall(printed), strict=False))
    finally:
        tour.close()


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`((?:tests|snapshot|statebackend|recovery)/[\w/.]+(?:\.(?:py|md|svg|json)|/))`", PAGES[page])
    tests = {path.name for path in (ROOT / "tests").glob("**/test_*.py")}
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert set(re.findall(r"`(test_\w+\.py)`", PAGES[page])) <= tests


@pytest.mark.parametrize("page", PAGES)
def test_the_modules_that_a_page_names_can_be_imported(page: str) -> None:
    for name in set(re.findall(r"`((?:snapshot|statebackend|recovery)(?:\.[a-z_]+)+)`", PAGES[page])):
        module, _, last = name.rpartition(".")
        assert find_spec(name) or hasattr(import_module(module), last), name


WALKS = [page for page in PAGES if "## The walk" in PAGES[page]]


@pytest.mark.parametrize("page", WALKS)
def test_a_walk_names_functions_and_classes_that_are_there(page: str) -> None:
    """What stands before a file's name in parentheses, and whatever has a capital or a dot in it, is defined there."""
    walks = "".join(re.findall(r"^## The walk.*?(?=^## (?!The walk)|\Z)", PAGES[page], re.DOTALL | re.MULTILINE))
    assert walks.count("\n") <= 66
    sources = "\n".join(
        path.read_text()
        for package in ("snapshot", "statebackend", "recovery")
        for path in (ROOT / package).rglob("*.py")
    )
    names = {name for name in re.findall(r"`(\w+(?:\.\w+)*)(?:\(\w*\))?`", walks) if not name.islower() or "_" in name}
    missing = [
        name
        for name in names
        for part in name.split(".")
        if not re.search(rf"\b(?:class|def) {part}\b|^ *{part}(?:: \w+)? = ", sources, re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings], target


def test_a_recorded_run_is_replayed_as_the_page_says(tmp_path: Path) -> None:
    numbers = Stream.read(Collection([{"n": n} for n in range(100)], pa.schema({"n": pa.int64()})), uid="numbers")
    with recovery.run(
        numbers.write(ToDriver(), uid="out"),
        checkpoints=tmp_path / "tree",
        advanced={"trace": tmp_path / "trace.jsonl"},
    ) as run:
        assert len(list(run.rows("out"))) == 100
    (program,) = [block for block in in_language("python") if block.page == ".github/CONTRIBUTING.md"]
    done = subprocess.run(
        [sys.executable, "-c", program.text],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.fullmatch(r"\d+ events, all answered as in the run\n", done.stdout), done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_that_a_page_names_exist(page: str) -> None:
    names = set(re.findall(r"\bexamples\.(\w+)`", PAGES[page]))
    assert all((ROOT / "examples" / f"{name}.py").exists() for name in names), names


def test_the_commands_that_pages_name_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {one for page in PAGES.values() for one in re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE)}
    assert named <= targets


def test_the_planted_errors_are_counted_right() -> None:
    assert f"{len(ERRORS)} planted errors" in PAGES["tests/README.md"]
    assert f"{len(SELDOM)} others" in PAGES["tests/README.md"]


def test_the_first_page_stays_short() -> None:
    assert PAGES["README.md"].count("\n") <= 150


def test_the_description_of_the_package_has_no_links_to_files_beside_it() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    description = settings["metadata"]["long_description"]
    assert description.startswith("\nEpochcut runs stream programs")
    assert "](" not in description
    assert "file:" not in description
