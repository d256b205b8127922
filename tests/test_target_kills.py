"""A job writes to a target that needs no server, and is killed; the same against real servers is in `tests/servers`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from snapshot import ToFiles
from tests.jobs.numbered import SCHEMA
from tests.target_kills import Reader, carry_out
from tests.targets import TARGETS
from tests.targets.target import Target


@pytest.mark.timeout(600)
def test_readers_of_files_see_every_row_once_and_none_of_an_epoch_that_was_not_complete(tmp_path: Path) -> None:
    report = carry_out("files", TARGETS["files"], tmp_path / "trial", kills=3, restarts=0, seed=3)
    assert report.workers + report.drivers >= 2
    assert report.reads > 0
    assert report.exact, (report.compared.examples, report.seen)


@pytest.mark.timeout(600)
def test_rows_that_wait_for_a_larger_file_survive_every_kill(tmp_path: Path) -> None:
    report = carry_out("files-rolled", TARGETS["files-rolled"], tmp_path / "trial", kills=3, restarts=0, seed=4)
    assert report.workers + report.drivers >= 2
    assert report.exact, (report.compared.examples, report.seen)


def test_a_reader_complains_of_rows_that_come_too_early_come_twice_or_go(tmp_path: Path) -> None:
    reader = Reader(Target(ToFiles(str(tmp_path)), None, SCHEMA.empty_table), tmp_path)
    reader._judge(np.array([0, 1, 4]), {0: 2, 1: 1})
    assert reader.complaints == []
    reader._judge(np.array([0, 1, 4, 8]), {0: 2, 1: 1})
    assert [complaint.split(":")[0] for complaint in reader.complaints] == [
        "row 8 was seen before its epoch was complete"
    ]
    reader._judge(np.array([0, 1, 1, 8]), {0: 3, 1: 1})
    assert reader.complaints[1:] == ["1 rows are there twice", "1 rows have gone, such as [4]"]
