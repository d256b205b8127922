"""Text of end users, servers and other people's trees commands no terminal."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import time
import traceback
import unicodedata
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recovery
from recovery.command.arguments import in_columns, in_lines
from recovery.command.main import main
from recovery.decisions import notes
from recovery.decisions.notes import Notes, Origin
from recovery.driver.report.logs import JobLogger
from recovery.driver.tree.identity import WrongJob
from recovery.events import Trouble
from recovery.offline.job_tree import open_tree
from recovery.offline.reading import NoSuchState
from recovery.offline.stopped_job import take_over
from recovery.schemes.rolling_back import JobFailed
from snapshot import Collection, Stream, ToDriver
from snapshot.operators.transforms import WrongResult
from statebackend.errors import EpochcutError
from statebackend.ids import Epoch
from statebackend.readable import one_line, readable
from statebackend.snapshots.file_set_json import FileSetJsonError
from tests.command_line import run_command
from tests.shop_job import tree_of

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
C1_TITLE = "\x9d0;owned\x9c"


@given(st.text(st.characters()))
def test_nothing_that_comes_out_commands_a_terminal_and_all_of_it_can_be_encoded(text: str) -> None:
    out = readable(text)
    out.encode()
    assert {unicodedata.category(character) for character in out.replace("\n", "")}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    assert not any(
        unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI") for c in out
    )
    assert readable(out) == out
    assert one_line(text) == out.replace("\n", "\\n")


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert readable(text) == text == one_line(text)


def test_letters_of_any_script_stay_as_they_are() -> None:
    text = "Zürich 東京\u3000مرحبا 👩\u200d👩\u200d👧 e\u0301"
    assert readable(text) == text


def test_control_characters_are_written_as_people_know_them() -> None:
    assert readable(f"{TITLE}a\r\tb\nc") == r"\x1b]0;owned\x07a\r\tb" + "\nc"
    assert one_line("a\nb\u202ec\ud800\x7f\U000e0041") == r"a\nb\u202ec\ud800\x7f\U000e0041"


def test_no_text_in_a_table_makes_a_line_of_its_own() -> None:
    lines = in_columns(("name", "size"), [("a\n99-1", "1"), ("b\u2028c", "2")])
    assert lines == ["name      size", r"a\n99-1   1", r"b\u2028c  2"]
    assert in_lines(["one\ntwo", "three"]) == "one\\ntwo\nthree"


def test_a_hostile_note_and_a_hostile_key_are_shown_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(tmp_path)
    found = open_tree(str(tree))
    job, newest = take_over(found, "test"), found.find()
    origin = Origin(f"fork{CLIPBOARD}", f"/elsewhere\nmanifest {TITLE}", 0, found.birth.job, newest.record.epoch)
    job.publish(replace(job.remade(newest.manifest, "fork"), notes=notes.to_json(Notes(C1_TITLE, (), origin))))
    edited = run_command(
        capsys, "edit", "--checkpoints", tree, "--uid", "baskets", "--state", "last",
        "--key", '["a", 1]', "--set", '"' + "\\u001b]0;owned\\u0007\\nepoch 99-9\\u202e" + '"',
    )  # fmt: skip
    assert edited.code == 0, edited.err
    for verb in (["list"], ["show"], ["show", "--epoch", str(job_epoch(tree))], ["history"], ["verify"]):
        told = run_command(capsys, *verb, "--checkpoints", tree)
        assert told.code == 0, told.err
        assert not controls(told.out + told.err), verb
    shown = run_command(capsys, "show", "--checkpoints", tree).out
    assert r"fork\x1b]52;c;cm0gLXJmIH4=\x07" in shown
    assert r"/elsewhere\nmanifest \x1b]0;owned\x07" in shown
    rows = run_command(
        capsys, "inspect", "--checkpoints", tree, "--uid", "baskets", "--state", "last", "--key", '["a", 1]'
    ).out
    assert r"\x1b]0;owned\x07\nepoch 99-9\u202e" in rows
    assert not controls(rows)
    assert len(rows.splitlines()) == 2


def job_epoch(tree: Path) -> Epoch:
    return open_tree(str(tree)).record().epoch


def controls(text: str) -> list[str]:
    return [character for character in text if character != "\n" and unicodedata.category(character) in ("Cc", "Cf")]


def test_what_is_wrong_is_told_without_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_command(capsys, "list", tmp_path / f"no{TITLE}where")
    assert told.code != 0
    assert r"no\x1b]0;owned\x07where" in told.err
    assert not controls(told.err)


def test_a_mistake_of_ours_is_shown_in_full_without_controls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit):
        main(["--version"])
    try:
        raise AssertionError(TITLE)
    except AssertionError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("AssertionError: \\x1b]0;owned\\x07\n")


def test_events_are_logged_without_controls() -> None:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logging.getLogger("epochcut").addHandler(handler)
    try:
        JobLogger("clicks").say(
            Trouble(at=time.time(), what="sink", reason=f"the server answers {CLIPBOARD}\nand more")
        )
    finally:
        logging.getLogger("epochcut").removeHandler(handler)
    assert heard.getvalue() == "job clicks: sink: the server answers \\x1b]52;c;cm0gLXJmIH4=\\x07\nand more\n"


@pytest.mark.parametrize(
    "error",
    [
        EpochcutError(f"it says {TITLE}"),
        WrongJob(f"there is no job called {TITLE}"),  # a `ValueError` as well
        WrongResult(f"a function gave {TITLE}"),  # a `TypeError`
        NoSuchState(f"there is no state {TITLE}"),  # a `LookupError`
        FileSetJsonError("", f"there is no {TITLE}"),
        JobFailed("a reason", f"ValueError: {TITLE}"),
    ],
)
def test_the_text_of_an_error_has_no_controls_when_python_prints_it(error: EpochcutError) -> None:
    for printed in (str(error), "".join(traceback.format_exception(error)), f"{pickle.loads(pickle.dumps(error))}"):
        assert r"\x1b]0;owned\x07" in printed
        assert "\x1b" not in printed


def test_what_a_program_ends_with_that_meets_a_hostile_record_has_no_controls(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.string()})

    def refuse(row: object) -> tuple[str]:
        raise ValueError(f"what is this: {getattr(row, 'k', None)}")

    source = Stream.read(Collection([(f"{TITLE}{CLIPBOARD}\x1b[2J",)], schema), uid="rows")
    run = recovery.run(
        source.map(refuse, schema=schema).write(ToDriver(), uid="out"),
        checkpoints=tmp_path / "tree",
        local=tmp_path / "local",
        parallelism=1,
        progress=False,
        scheme=recovery.Passive(poisoned_after=1),
    )
    with pytest.raises(recovery.JobFailed, match="what is this") as error:
        run.wait(60)
    printed = "".join(traceback.format_exception(error.value))
    assert r"\x1b]0;owned" in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed
