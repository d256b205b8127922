"""A small comparison in real processes: faults strike, rows are timed and compared, and it goes on after an end."""

from __future__ import annotations

from pathlib import Path

import pytest

import recovery
from recovery.command.main import main
from recovery.comparison.programs import totals
from recovery.comparison.record import Outcome
from recovery.comparison.runs import NoResults, OtherResults, Results, results

SCHEMES = ("none", "passive", "active")
SHORT = {"warm": "1s", "before": "1s", "after": "3s", "every": "200ms"}


def compared(folder: Path, told: list[str], **more: object) -> Results:
    return recovery.compare(
        totals(keys=50),
        folder,
        schemes=SCHEMES,
        rate=400,
        repeats=1,
        name="totals",
        told=told.append,
        **{**SHORT, **more},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[str]]:
    told: list[str] = []
    return compared(tmp_path_factory.mktemp("compared") / "results", told), told


def test_every_scheme_is_measured_and_no_row_is_lost_or_wrong(done: tuple[Results, list[str]]) -> None:
    found, told = done
    assert [(one.scheme, one.outcome, one.why) for one in found.records if one.outcome is not Outcome.MEASURED] == []
    assert {one.scheme for one in found.records} == set(SCHEMES)
    assert found.rows_differ == ""
    for one in found.records:
        assert one.difference is not None
        assert (one.difference.expected, one.difference.lost, one.difference.wrong) == (2000, 0, 0)
        assert one.cost is not None
        assert one.cost.steady_cpu > 0
        assert one.cost.memory_bytes > 0
        assert one.throughput == pytest.approx(400, rel=0.3)
    assert len(told) == 2 + len(SCHEMES)
    assert told[0].startswith("run 1 of 5: without faults, 1 of 2; about")


def test_a_kill_rolls_a_passive_job_back_and_is_masked_by_a_replica(done: tuple[Results, list[str]]) -> None:
    runs = {one.scheme: one for one in done[0].records}
    assert (runs["passive"].restarts, runs["passive"].masked) == (1, 0)
    assert (runs["active"].restarts, runs["active"].masked) == (0, 1)
    assert (runs["none"].restarts, runs["none"].struck, runs["none"].outage) == (0, (), None)
    for scheme in ("passive", "active"):
        outage, (struck,) = runs[scheme].outage, runs[scheme].struck
        assert struck.order == "kill worker:0"
        assert outage is not None
        assert outage.no_output_s > 0


def test_the_report_and_the_figures_are_in_the_folder(done: tuple[Results, list[str]]) -> None:
    folder = done[0].folder
    assert "Latency around the fault" in (folder / "report.html").read_text()
    assert {file.name for file in folder.iterdir()} == {
        "plan.json",
        "truth-400.parquet",
        "runs",
        "report.html",
        "figures.parquet",
    }
    assert results(folder) == done[0]


def test_what_is_in_the_folder_is_not_done_again(done: tuple[Results, list[str]]) -> None:
    folder = done[0].folder
    told: list[str] = []
    (folder / "runs" / "00-none.parquet").unlink()
    again = compared(folder, told)
    assert [text.partition(";")[0] for text in told] == ["run 3 of 5: none, 1 of 1"]
    assert len(again.records) == len(SCHEMES)


def test_a_folder_with_the_results_of_another_plan_is_refused(
    done: tuple[Results, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = done[0].folder
    with pytest.raises(OtherResults, match="has results of another plan; choose another folder"):
        compared(folder, [], after="4s")
    assert main(["compare", "recovery.comparison.programs:totals", "--folder", str(folder)]) == 2
    assert "has results of another program" in capsys.readouterr().err


def test_a_plan_that_cannot_be_read_is_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"plan": ')
    with pytest.raises(NoResults, match="has no comparison that can be read"):
        results(tmp_path)
    with pytest.raises(NoResults, match="choose another folder"):
        compared(tmp_path, [])
