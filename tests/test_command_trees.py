"""`recovery rescale`, `fork`, `copy`, `move`, `restore`, `sinks` and `upgrade`: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recovery.command.exits import Exit
from recovery.offline import stopped_job
from recovery.offline.job_tree import open_tree
from snapshot.tree.layout import JOB
from tests.command_line import Printed, run_command
from tests.jobs.running_job import RunningJob
from tests.stopped_trees import Stopped, add_output, stop_one

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


class Terminal:
    """Commands for one tree; in what they print, names and quantities that differ from run to run have others."""

    def __init__(self, stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
        self._stopped, self._capsys = stopped, capsys

    def raw(self, *arguments: object) -> Printed:
        return run_command(self._capsys, *arguments, "--checkpoints", self._stopped.uri)

    def run(self, *arguments: object) -> Printed:
        said = self.raw(*arguments)
        return Printed(said.code, self.plainly(said.out), self.plainly(said.err))

    def json(self, *arguments: object) -> Any:
        said = self.raw(*arguments, "--json")
        assert (said.code, said.err) == (Exit.DONE, "")
        return json.loads(said.out)

    def plainly(self, text: str) -> str:
        text = text.replace(str(self._stopped.folder), "FOLDER")
        for pattern, name in (
            (r"(sequences|tried)-[0-9a-f]{8}/out/[0-9-]+", "TRANSACTION"),
            (r"sequences-[0-9a-f]{8}", "JOB"),
            (r"tried-[0-9a-f]{8}", "TRIED"),
            (r"\b\d+ files?, [0-9.]+ (kB|MB|bytes)", "FILES"),
            (r"[0-9.]+ (kB|MB|bytes)", "BYTES"),
            (r"\b\d+-\d+\b", "E"),
        ):
            text = re.sub(pattern, name, text)
        return text


@pytest.fixture
def terminal(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(stopped, capsys)


def everything(uri: str) -> dict[str, bytes]:
    return {str(file.relative_to(uri)): file.read_bytes() for file in Path(uri).rglob("*") if file.is_file()}


# --- rescale


def test_rescale_says_which_partition_reads_what_and_makes_a_savepoint(terminal: Terminal, stopped: Stopped) -> None:
    before = everything(stopped.uri)
    dry = terminal.run("rescale", "--to", "3", "--dry-run", "--files")
    assert (dry.code, dry.err) == (Exit.DONE, "")
    assert everything(stopped.uri) == before
    done = terminal.run("rescale", "--to", "3")
    assert done == Printed(
        Exit.DONE,
        "JOB, epoch E: from 2 partitions to 3; BYTES of state stay as they are\n"
        "numbers, partition 0: key groups [0, 43) of partition 0, FILES to read\n"
        "numbers, partition 1: key groups [43, 86) of partitions 0, 1, FILES to read\n"
        "numbers, partition 2: key groups [86, 128) of partition 1, FILES to read\n"
        "epoch E is made, a savepoint for 3 partitions\n",
        "",
    )
    lines = dry.out.splitlines()
    assert [line for line in lines if not line.startswith(("  ", "rows, "))] == [
        *done.out.splitlines()[:-1],
        "nothing was done, as this is a dry run",
    ]
    assert any(re.fullmatch(r"  shared/\S+\.sst, BYTES, groups \[\d+, \d+\).*", line) for line in lines)
    assert any(line.startswith("rows, partition 0: reads ") for line in lines)
    again = terminal.run("rescale", "--to", "3")
    assert again.out == "epoch E has 3 partitions already; there is nothing to do\n"


def test_rescale_as_json_has_the_whole_plan(terminal: Terminal, stopped: Stopped) -> None:
    done = terminal.json("rescale", "--to", "1")
    assert done["made"] == str(stopped.tree.record().epoch)
    (part,) = (part for part in done["plan"]["parts"] if part["uid"] == "numbers")
    assert part["bytes"] == done["plan"]["bytes"] == sum(file["size"] for file in part["files"])
    assert part["of"] == [0, 1]


# --- fork, copy and move


def test_fork_and_copy_say_what_the_new_tree_is(terminal: Terminal, stopped: Stopped) -> None:
    new, archive = stopped.folder / "new", stopped.folder / "archive"
    assert terminal.run("fork", "--into", new, "--name", "tried").out == (
        "epoch E of JOB becomes epoch E of TRIED in FOLDER/new: FILES\n"
    )
    dry = terminal.run("copy", "--into", archive, "--dry-run")
    assert dry.out == "copy: epoch E of JOB into FOLDER/archive, FILES; nothing was done, as this is a dry run\n"
    assert not archive.exists()
    assert terminal.run("copy", "--into", archive, "--epoch", "newest-savepoint").out == (
        "epoch E of JOB is now in FOLDER/archive too: FILES\n"
        "both are the same job: only one of the two may be started\n"
    )
    done = terminal.json("copy", "--into", f"{archive}-2")
    assert done["made"] == str(open_tree(f"{archive}-2").record().epoch)
    assert done["plan"]["job"] == done["plan"]["becomes"] == stopped.job


def test_a_fork_says_that_output_stays_behind(terminal: Terminal, stopped: Stopped) -> None:
    add_output(stopped)
    said = terminal.run("fork", "--into", stopped.folder / "new").out
    assert said.splitlines()[1] == "output that is not yet committed stays with the origin: 1 transaction"


def test_a_moved_job_is_found_where_it_is(terminal: Terminal, stopped: Stopped) -> None:
    into = stopped.folder / "new"
    count = len(stopped.tree.state.usable)
    assert terminal.run("move", "--into", into).out == f"JOB is now in FOLDER/new, with {count} epochs: FILES\n"
    assert terminal.run("move", "--into", into).out == "JOB is in FOLDER/new already\n"
    gone = terminal.run("rescale", "--to", "3")
    assert (gone.code, gone.out) == (Exit.NOT_RUNNING, "")
    assert gone.err.startswith("recovery: job JOB was moved from FOLDER/tree to FOLDER/new; use that; to begin")


# --- restore


def test_a_dry_run_says_what_would_be_started(terminal: Terminal, stopped: Stopped) -> None:
    program, before = f"{stopped.program_file}:program", everything(stopped.uri)
    said = terminal.run("restore", program, "--parallelism", "3", "--dry-run")
    assert said == Printed(
        Exit.DONE, "JOB goes on from epoch E with 3 partitions; nothing was done, as this is a dry run\n", ""
    )
    oldest = stopped.tree.state.usable[0].epoch
    fork = ("restore", program, "--epoch", oldest, "--no-claim", "--into", stopped.folder / "new", "--dry-run")
    said = terminal.run(*fork)
    assert (said.code, said.out) == (Exit.DECLINED, "")
    assert "would be made once more; go on from the newest epoch, or accept the repeated output" in said.err
    assert said.err.endswith("(--accept-duplicates)\n")
    plan = terminal.json(*fork, "--accept-duplicates")
    assert plan["plan"]["epoch"] == str(oldest)
    assert plan["plan"]["gives_up"] == []
    assert plan["plan"]["repeats"]["epochs"] > 0
    assert everything(stopped.uri) == before


@pytest.mark.timeout(200)
def test_a_program_runs_to_its_end(terminal: Terminal, stopped: Stopped) -> None:
    stopped.settings.gate.touch()
    folder = stopped.folder / "local"
    said = terminal.run(
        "restore", f"{stopped.program_file}:program", "--every", "100ms", "--parallelism", "1", "--job-folder", folder,
        "--option", "retain=2", "--option", "progress=false",
    )  # fmt: skip
    assert said == Printed(Exit.DONE, "JOB has finished with epoch E\n", "JOB goes on from epoch E with 1 partition\n")
    assert RunningJob(stopped.settings).compare().exact


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("sent", "name", "code", "end"),
    [
        (signal.SIGINT, "Ctrl-C", Exit.INTERRUPTED, "recovery: interrupted\n"),
        (signal.SIGTERM, "SIGTERM", Exit.TERMINATED, "(option interrupt_timeout)\n"),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_ctrl_c_and_sigterm_stop_the_job_behind_one_more_epoch(
    stopped: Stopped, sent: signal.Signals, name: str, code: Exit, end: str
) -> None:
    events = stopped.folder / "local" / "events.jsonl"
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "recovery", "restore", f"{stopped.program_file}:program"),
            *("--checkpoints", stopped.uri, "--job-folder", stopped.folder / "local", "--every", "100ms"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_line(events, '"EpochCommitted"', running)
    running.send_signal(sent)
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out) == (code, ""), err
    assert f"after one more epoch; {name} again cancels it" in err
    assert err.endswith(end)
    assert '"Stopped"' in events.read_text().splitlines()[-1]
    assert stopped.finish().exact


def wait_for_line(file: Path, text: str, writer: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists() or text not in file.read_text():
        assert writer.poll() is None, writer.communicate()
        assert time.monotonic() < deadline
        os.sched_yield()


# --- sinks and upgrade


def test_output_is_listed_and_given_up(terminal: Terminal, stopped: Stopped) -> None:
    program = f"{stopped.program_file}:program"
    add_output(stopped)
    listed = (
        "epoch E of JOB carries 1 transaction, which are not known to be committed\n"
        "out, partition 0: TRANSACTION, sealed in E\n"
    )
    assert terminal.run("sinks", "list") == Printed(Exit.DONE, listed, "")
    (output,) = terminal.json("sinks", "list")["output"]
    assert (output["uid"], output["committed"]) == ("out", False)
    assert terminal.run("sinks", "commit", program, "--dry-run").out == (
        "JOB: epoch E carries 1 transaction to commit\nout, partition 0: TRANSACTION, sealed in E\n"
        "nothing was done, as this is a dry run\n"
    )
    assert terminal.run("sinks", "abort", program).out == (
        "JOB: what no complete epoch names is aborted in out\n"
        "epoch E carries 1 transaction, which the next start commits\n"
    )
    assert terminal.run("sinks", "abort", program, "--accept-loss").out == (
        "JOB: what no complete epoch names is aborted in out\n"
        "output of epoch E is given up; the job goes on from epoch E:\nout, partition 0: TRANSACTION, sealed in E\n"
    )
    assert terminal.run("sinks", "list").out == "epoch E of JOB carries no output\n"
    nothing = terminal.run("sinks", "commit", program)
    assert nothing.out == "JOB: all up to epoch E is committed; there is nothing to do\n"


_CHANGED = """
from pathlib import Path
from tests import upgraded_sequences as them
FOLDER = Path({folder!r})
def decimal():
    return them.program(FOLDER, them.InDecimal)
def unfit():
    return them.program(FOLDER, them.NotMigrated)
def other():
    return them.program_elsewhere(FOLDER)
"""


def test_upgrade_says_what_fits_and_migrates(terminal: Terminal, stopped: Stopped) -> None:
    file = stopped.folder / "changed_programs.py"
    file.write_text(_CHANGED.format(folder=str(stopped.folder)))
    older = "fits: older values are migrated when they are read"
    said = terminal.run("upgrade", f"{file}:decimal").out
    assert said.splitlines()[0] == "the program can go on from epoch E of JOB"
    assert "numbers.number: fits (value of int, version 1)" in said
    assert (
        f"numbers.total: {older} (value of int, version 1 -> value of decimal, version 2, which reads from 1)" in said
    )
    assert "numbers.seen: new: it begins empty (value of bool, version 1)" in said
    unfit = terminal.run("upgrade", f"{file}:unfit").out
    assert unfit.splitlines()[0] == "the program cannot go on from epoch E of JOB as it is"
    assert "numbers: state 'total': its codec was int, and is declared as decimal" in unfit
    refused = terminal.run("upgrade", f"{file}:unfit", "--migrate")
    assert (refused.code, refused.out) == (Exit.UNFIT, "")
    done = terminal.json("upgrade", f"{file}:decimal", "--migrate")
    assert done["made"] == str(stopped.tree.record().epoch)
    assert terminal.run("upgrade", f"{file}:decimal", "--migrate").out == (
        "all values of epoch E are as declared; there is nothing to do\n"
    )
    other = terminal.run("upgrade", f"{file}:other").out
    assert "removed: numbers, with keyed state" in other
    assert "added: sums (keyed operator)" in other


# --- bad input


class Running:
    """A driver that answers."""

    job, pid = "sequences-1", 4711

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("verb", ["rescale", "move", "restore", "commit", "abort", "upgrade"])
def test_a_job_that_runs_has_to_be_stopped(
    terminal: Terminal, stopped: Stopped, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, before = f"{stopped.program_file}:program", everything(stopped.uri)
    monkeypatch.setattr(stopped_job, "attach", lambda *_, **__: Running())
    said = terminal.run(
        *{
            "rescale": ("rescale", "--to", "3"),
            "move": ("move", "--into", stopped.folder / "new"),
            "restore": ("restore", program),
            "commit": ("sinks", "commit", program),
            "abort": ("sinks", "abort", program),
            "upgrade": ("upgrade", program, "--migrate"),
        }[verb]
    )
    assert (said.code, said.out) == (Exit.RUNS, "")
    assert said.err == (
        "recovery: job sequences-1 runs (driver process 4711); stop it first: recovery stop --savepoint "
        "--checkpoints FOLDER/tree\n"
    )
    assert everything(stopped.uri) == before


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("rescale", "--to", "129"), Exit.DECLINED, "129 partitions are out of bounds: 1 to 128"),
        (("rescale", "--to", "many"), Exit.USAGE, "invalid int value: 'many'"),
        (("rescale", "--to", "3", "--epoch", "99"), Exit.NOTHING_THERE, "has no epoch '99'; it has "),
        (("rescale", "--to", "3", "--epoch", "now"), Exit.NOTHING_THERE, "'now' names no epoch; give newest"),
        (("rescale", "--to", "3", "--epoch", "OLDEST"), Exit.DECLINED, "may be committed and would be made once more"),
        (("fork", "--into", "TREE"), Exit.EXISTS, "there is a job already; give the new one a place of its own"),
        (("fork", "--into", "FULL"), Exit.EXISTS, "it is not empty, there is mine.txt"),
        (("fork", "--into", "NEW", "--name", "a b"), Exit.NOT_RUNNING, "'a b' is no name of a job"),
        (("copy", "--into", "/proc/nowhere/x"), Exit.DECLINED, "could not open"),
        (("copy", "--into", "gopher://x"), Exit.DECLINED, "the store behind gopher:// is not known"),
        (("move", "--into", "TREE"), Exit.EXISTS, "there is a job already"),
        (("restore", "no_such_module:program"), Exit.UNFIT, "cannot be imported: ModuleNotFoundError"),
        (("restore", "PROGRAM:nothing"), Exit.UNFIT, "has no 'nothing'"),
        (("restore", "PROGRAM:program", "--parallelism", "200"), Exit.DECLINED, "1 to the maximum parallelism 128"),
        (("restore", "PROGRAM:program", "--no-claim"), Exit.USAGE, "--no-claim and --into go together"),
        (("restore", "PROGRAM:program", "--into", "NEW"), Exit.USAGE, "--no-claim and --into go together"),
        (("restore", "PROGRAM:program", "--option", "retain"), Exit.USAGE, "write name=value"),
        (("restore", "PROGRAM:program", "--option", "retian=3"), Exit.USAGE, "did you mean 'retain'?"),
        (("restore", "PROGRAM:program", "--ignore-state", "me"), Exit.UNFIT, "has no such operator, but numbers, out"),
        (("restore", "PROGRAM:program", "--every", "often"), Exit.USAGE, "'often' is no duration"),
        (("restore", "PROGRAM:program", "--epoch", "OLDEST"), Exit.DECLINED, "would be made once more"),
        (("sinks", "commit", "PROGRAM"), Exit.UNFIT, "names no program; write module:function"),
        (("upgrade", "PROGRAM:program", "--migrate", "--epoch", "OLDEST"), Exit.USAGE, "fork an older one"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_code_and_changes_nothing(
    terminal: Terminal, stopped: Stopped, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    add_output(stopped)
    (stopped.folder / "full").mkdir()
    (stopped.folder / "full" / "mine.txt").write_text("mine")
    names = {
        "TREE": stopped.uri,
        "FULL": str(stopped.folder / "full"),
        "NEW": str(stopped.folder / "new"),
        "OLDEST": str(stopped.tree.state.usable[0].epoch),
    }
    program = str(stopped.program_file)
    given = [names.get(argument, argument.replace("PROGRAM", program)) for argument in arguments]
    before = {path: data for path, data in everything(stopped.uri).items() if not path.startswith("journal/")}
    said = terminal.run(*given)
    assert (said.code, said.out) == (code, ""), said
    assert sentence in said.err
    after = {path: data for path, data in everything(stopped.uri).items() if not path.startswith("journal/")}
    assert after == before
    assert not (stopped.folder / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [("rescale", "--to", "3"), ("copy", "--into", "NEW"), ("sinks", "list"), ("upgrade", "PROGRAM")],
)
def test_where_no_job_is_and_where_a_newer_program_wrote(
    terminal: Terminal, stopped: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    program = f"{stopped.program_file}:program"
    given = [{"NEW": str(tmp_path / "new"), "PROGRAM": program}.get(argument, argument) for argument in arguments]
    nowhere = run_command(capsys, *given, "--checkpoints", tmp_path / "nowhere")
    assert nowhere.code in (Exit.DECLINED, Exit.NOT_RUNNING)
    assert "there is no such folder" in nowhere.err
    (tmp_path / "empty").mkdir()
    empty = run_command(capsys, *given, "--checkpoints", tmp_path / "empty")
    assert (empty.code, empty.out) == (Exit.NOT_RUNNING, "")
    assert "there is no job at" in empty.err
    job = Path(stopped.uri) / JOB
    job.write_text(json.dumps({**json.loads(job.read_text()), "version": 99}))
    newer = terminal.run(*given)
    assert (newer.code, newer.out) == (Exit.NOT_RUNNING, "")
    assert "has version 99; a newer program wrote it" in newer.err


def test_a_damaged_newest_epoch_is_passed_over_only_with_a_word(terminal: Terminal, stopped: Stopped) -> None:
    add_output(stopped)
    manifest = Path(stopped.uri) / stopped.tree.record().manifest
    manifest.write_bytes(manifest.read_bytes()[:-9])
    for arguments in (("rescale", "--to", "3"), ("copy", "--into", stopped.folder / "copied")):
        said = terminal.run(*arguments)
        assert (said.code, said.out) == (Exit.DAMAGED, "")
        assert "the output of 1 epoch after E, up to epoch E, may be committed and would be made once more" in said.err
        assert "or accept the repeated output (--accept-duplicates)" in said.err
    said = terminal.run("sinks", "abort", f"{stopped.program_file}:program")
    assert "or accept the repeated output (recovery restore --accept-duplicates)" in said.err, "it has no such option"
    for option in ("--dry-run", "--json"):
        said = terminal.run("rescale", "--to", "3", option)
        assert (said.code, said.out) == (Exit.DAMAGED, "")
    said = terminal.run("rescale", "--to", "3", "--accept-duplicates")
    assert said.code == Exit.DONE
    assert said.out.startswith("passed over: epoch E cannot be used: its manifest is damaged (")
    again = "the output of 1 epoch after E, up to epoch E, may be committed and is made once more from there"
    assert f"\nback to epoch E; given up: E\n{again}\n" in said.out


def test_a_missing_file_is_named(terminal: Terminal, stopped: Stopped) -> None:
    for file in (Path(stopped.uri) / "shared").iterdir():
        file.unlink()
    said = terminal.run("copy", "--into", stopped.folder / "new")
    assert (said.code, said.out) == (Exit.DAMAGED, "")
    assert "files that it refers to are missing or cut short (shared/" in said.err


def test_a_file_that_is_cut_short_makes_its_epoch_as_unusable_as_one_that_is_missing(
    terminal: Terminal, stopped: Stopped
) -> None:
    for file in (Path(stopped.uri) / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    for arguments in (("copy", "--into", stopped.folder / "new"), ("rescale", "--to", "3")):
        said = terminal.run(*arguments)
        assert (said.code, said.out) == (Exit.DAMAGED, "")
        assert "files that it refers to are missing or cut short (shared/" in said.err


def test_each_verb_has_an_example_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["rescale"], ["fork"], ["copy"], ["move"], ["restore"], ["sinks"], ["sinks", "abort"], ["upgrade"]):
        said = run_command(capsys, *verb, "--help")
        assert said.code == 0
        assert "$ recovery " in said.out, verb
