"""Trees that somebody has forged, under every verb of the command and a start: nothing outside of them is touched."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import recovery
from recovery.command.exits import Exit
from recovery.command.main import _parser
from snapshot import Kafka
from statebackend.readable import readable
from tests.command_line import run_command
from tests.forger import FORGERIES, LEFT, Forger, program, stopped_tree
from tests.shop_job import SALES
from tests.survey import survey

LOOKING = (
    ("list",),
    ("show", "--files"),
    ("history",),
    ("status",),
    ("stop", "--dry-run"),
    ("cancel", "--dry-run"),
    ("savepoint", "--timeout", "1s"),
    ("inject", "kill", "--target", "random"),
    ("inspect",),
    ("inspect", "--uid", "totals", "--key", "tea"),
    ("inspect", "--uid", "baskets", "--limit", "0"),
    ("export", "--uid", "totals", "--into", "INTO/exported"),
    ("diff", "--epoch", "newest-savepoint", "--epoch", "newest"),
    ("rescale", "--to", "2", "--dry-run"),
    ("sinks", "list"),
    ("sinks", "commit", "PROGRAM", "--dry-run"),
    ("sinks", "abort", "PROGRAM", "--accept-loss", "--dry-run"),
    ("upgrade", "PROGRAM"),
    ("verify",),
    ("gc", "--dry-run", "--take-over"),
    ("dispose", "--epoch", "newest-savepoint", "--dry-run"),
    ("repair", "--dry-run"),
    ("fork", "--into", "INTO/forked"),
    ("copy", "--into", "INTO/copied"),
    ("report", "--out", "INTO/report.html"),
)
"""What changes no tree; they go through the same one."""
CHANGING = (
    ("rescale", "--to", "2"),
    ("edit", "--uid", "totals", "--key", "tea", "--set", "5"),
    ("move", "--into", "INTO/moved"),
    ("upgrade", "PROGRAM", "--migrate"),
    ("sinks", "commit", "PROGRAM"),
    ("sinks", "abort", "PROGRAM", "--accept-loss"),
    ("gc", "--take-over"),
    ("dispose", "--epoch", "newest-savepoint"),
    ("repair",),
)
START = ("restore", "PROGRAM")
TO_PROCESSES = {
    "output for another folder",
    "rows held back for another folder",
    "notes that nest, of numbers beyond any",
    "splits that are not there",
    "state that is declared by nonsense",
    "rows in flight that are none",
}
"""Of trees that are refused by processes alone, one of each kind: starts of the others are for longer searches."""
ELSEWHERE = {"bootstrap", "compare", "page"}
"""Two make trees, and read none; a page goes on until Ctrl-C, and shows what a report has."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a job's tree, its program and its output, and things that are none of a tree's business."""
    folder = tmp_path_factory.mktemp("home")
    stopped_tree(folder)
    (folder / "outside").mkdir()
    (folder / "outside/thesis.doc").write_text("three years")
    (folder / "outside/.profile").write_text("PATH=/bin")
    (folder / "work").mkdir()
    (folder / "output/.staged").mkdir(exist_ok=True)
    (folder / f"output/.staged/{LEFT}").write_text("rows")
    made = f"forger.program(Path({str(folder / 'output')!r}))"
    (folder / "shop_of_the_forger.py").write_text(
        f"from pathlib import Path\n\nfrom tests import forger\n\nprogram = {made}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "work")
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("HOME", str(folder))
        patch.setenv("TMPDIR", str(folder / "temporary"))
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        (folder / "temporary").mkdir()
        yield folder


def test_every_verb_is_tried() -> None:
    [verbs] = [one for one in _parser(None)._actions if isinstance(one, argparse._SubParsersAction)]
    assert {verb[0] for verb in (*LOOKING, *CHANGING, START)} | ELSEWHERE == set(verbs.choices)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_tree_leads_nowhere_and_is_told_in_plain_words(
    name: str, home: Path, capsys: pytest.CaptureFixture[str], search_factor: int
) -> None:
    forged, used = home / "forged", home / "used"
    left_out = [home / name for name in ("forged", "used", "into", "output", "temporary", "tree", "local")]
    shutil.rmtree(forged, ignore_errors=True)
    shutil.copytree(home / "tree", forged)
    FORGERIES[name](Forger(forged, home / "outside"))
    before = survey(home, but=left_out)

    def run(tree: Path, verb: Sequence[str]) -> Exit:
        shutil.rmtree(home / "into", ignore_errors=True)
        program = f"{home}/shop_of_the_forger.py:program"
        given = [one.replace("INTO", str(home / "into")).replace("PROGRAM", program) for one in verb]
        said = run_command(capsys, *given, "--checkpoints", tree)
        assert said.code in set(Exit), (verb, said)
        for text in (said.out, said.err):
            assert readable(text) == text, verb
            named = (said.err.splitlines() or [""])[-1].startswith(("snapshot.", "statebackend.", "recovery."))
            assert "Traceback" not in text or (said.code == Exit.FAILED and named), verb
            assert not any(line.startswith("sound: 99-9") for line in text.splitlines()), verb
        now = survey(home, but=left_out)
        assert now == before, (verb, {path for path in now | before if now.get(path) != before.get(path)})
        strange = {path.name for path in (home / "temporary").iterdir()}
        assert not [one for one in strange if not one.startswith("epochcut-")], verb

        strange = {path.name for path in (home / "output").iterdir() if not path.name.startswith("part-shop-")}
        assert strange <= {".staged"}, verb
        return Exit(said.code)

    for looking in LOOKING:
        run(forged, looking)
    refused = run(forged, (*START, "--dry-run")) is not Exit.DONE
    starts = refused or name in TO_PROCESSES or search_factor > 1
    for verb in (*CHANGING, *([START] if starts else [])):
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(forged, used, symlinks=True, copy_function=_copied)
        run(used, verb)


def _copied(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.mark.timeout(120)
def test_a_forged_position_leads_to_no_topic_that_the_program_does_not_name(home: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(home / "tree", tree)
    Forger(tree, home / "outside").subtask("sales")(
        lambda part: part.update(positions={"salaries/0 from 0": {"at": {"offset": 7}}})
    )
    sales = Kafka("127.0.0.1:1", "sales", "json", SALES, grows=None)
    run = recovery.run(
        program(tmp_path / "output", sales),
        checkpoints=tree,
        job="shop",
        parallelism=1,
        local=tmp_path / "local",
        progress=False,
    )
    refusal = r"the job reads 'salaries/0 from 0', and the program names other topics .* \(the same will happen again\)"
    with pytest.raises(recovery.JobFailed, match=refusal):
        run.wait(60)
