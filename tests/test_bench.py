"""The benchmarks' command line, and that what is simulated is what is measured: exact cuts, the same in every run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from snapshot.cut.frames import Data, Frame, Marker, MarkerMode
from snapshot.cut.outbox import Outbox
from snapshot.testing.line_plot import Line, Panel, Scale, as_svg
from statebackend.ids import Epoch
from tests.bench import __main__ as command
from tests.bench import alignment, coordinator, pipeline
from tests.bench.figures import Figure, figure
from tests.bench.pipeline import InexactCut, Settings, run

PRESSED = Settings(2, 3, 1.1, MarkerMode.UNALIGNED, warm_up=pipeline.SECOND, window=pipeline.SECOND)
FIELDS = {"workload", "figure", "value", "unit", "runs", "cpu_s"}


# --- the command line -------------------------------------------------------------------------------------------------


_SLOW = (
    "slow", "structured", "W1", "W2", "W3", "W4", "W6", "standbys", "sinks", "processes", "schemes", "pausing",
    "telemetry",
)  # fmt: skip
"""They start jobs again and again, whose processes take seconds to come: PROFILE=thorough tries them as well."""


def test_each_figure_is_one_line_of_json_and_its_value_the_median_of_its_runs(
    capsys: pytest.CaptureFixture[str], search_factor: int
) -> None:
    chosen = [name for name in command.workloads(small=True) if search_factor > 1 or not name.startswith(_SLOW)]
    assert command.main(["--small", *chosen]) == 0
    out, err = capsys.readouterr()
    figures = [json.loads(line) for line in out.splitlines()]
    assert all(figure.keys() == FIELDS for figure in figures)
    assert {figure["workload"] for figure in figures} == {name.partition("/")[0] for name in chosen}
    assert all(min(figure["runs"]) <= figure["value"] <= max(figure["runs"]) for figure in figures)
    assert "alignment: parallelism 2" in err


def test_only_the_named_workloads_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["coordinator", "--small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {json.loads(line)["workload"] for line in lines} == {"coordinator"}
    assert "epoch_ms_20_partitions" in {json.loads(line)["figure"] for line in lines}


def test_the_first_part_of_a_name_chooses_all_workloads_that_begin_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(name: str) -> Callable[[object], Iterator[Figure]]:
        return lambda _: iter([figure("state", name, "s", [1.0], 0.0)])

    parts = ["throughput", "pauses", "uploads", "memory", "rescale", "rewind", "collections"]
    for part in parts:
        monkeypatch.setattr(f"tests.bench.state_{part}.figures", named(part))
    assert command.main(["state"]) == 0
    names = [json.loads(line)["figure"] for line in capsys.readouterr().out.splitlines()]
    assert names == parts


def test_an_unknown_workload_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["coordinator", "alignement"])
    assert refused.value.code == 2
    assert "there is no alignement; known are coordinator, alignment," in capsys.readouterr().err


def test_small_sizes_never_become_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["alignment", "--small", "--write"])
    assert "leave one of the two out" in capsys.readouterr().err


def test_the_help_shows_an_example() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.bench", "--help"], capture_output=True, text=True, check=True)
    assert "make bench ONLY=" in done.stdout


def test_ctrl_c_ends_a_benchmark_after_its_last_whole_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> Iterator[Figure]:
        yield figure("coordinator", "first", "ms", [1.0], 0.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "figures", stopped)
    assert command.main(["coordinator", "alignment"]) == command.STOPPED
    out, err = capsys.readouterr()
    assert [json.loads(line)["figure"] for line in out.splitlines()] == ["first"]
    assert "stopped" in err


# --- the coordinator's epoch ------------------------------------------------------------------------------------------


def test_the_driver_removes_what_the_epoch_before_leaves_behind() -> None:
    driver = coordinator.Driver(3)
    for _ in range(5):
        driver.epoch()
    assert driver.removed is not None
    assert driver.removed.epochs == (Epoch(driver.coordinator.incarnation.generation, 4),)
    assert sorted(driver.removed.files) == [f"shared/3-{partition}-1-2.sst" for partition in range(3)]
    assert all(spent > 0 for spent in driver.seconds.values())


# --- the simulated pipeline -------------------------------------------------------------------------------------------


def test_equal_settings_give_equal_results() -> None:
    assert run(PRESSED) == run(PRESSED)


def test_what_is_recorded_in_flight_and_what_was_processed_make_up_what_an_aligned_cut_holds() -> None:
    """The check that every run makes; an aligned cut holds, at each stage, just what the sources have sent."""
    aligned, unaligned = run(replace(PRESSED, mode=MarkerMode.ALIGNED)), run(PRESSED)
    assert len(aligned.epochs) > 1
    assert len(unaligned.epochs) > 1
    assert all(epoch.recorded == 0 for epoch in aligned.epochs)
    assert all(epoch.recorded > 0 for epoch in unaligned.epochs)


def test_a_cut_that_loses_what_its_marker_overtook_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Outbox):
        def put(self, frame: Frame) -> tuple[Data, ...]:
            super().put(frame)
            return ()

    monkeypatch.setattr(pipeline, "Outbox", Forgetful)
    with pytest.raises(InexactCut, match="stage 1 had processed"):
        run(PRESSED)


def test_an_aligned_cut_whose_marker_goes_ahead_of_data_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(Outbox):
        def take(self) -> Frame:
            frames = [super(Hasty, self).take() for _ in range(len(self))]
            first = next((frame for frame in frames if isinstance(frame, Marker)), frames[0])
            frames.remove(first)
            for frame in frames:
                self.put(frame)
            return first

    monkeypatch.setattr(pipeline, "Outbox", Hasty)
    with pytest.raises(InexactCut):
        run(replace(PRESSED, mode=MarkerMode.ALIGNED))


def test_epochs_cost_no_frame_under_a_load_that_leaves_time() -> None:
    calm = replace(PRESSED, load=0.7)
    modes = (None, MarkerMode.ALIGNED, MarkerMode.UNALIGNED)
    assert len({run(replace(calm, mode=mode)).delivered for mode in modes}) == 1


def test_the_slow_subtask_sets_the_pace_under_back_pressure() -> None:
    result = run(PRESSED)
    capacity = PRESSED.parallelism * PRESSED.window / pipeline.SLOW_SERVICE
    assert 0.9 * capacity < result.delivered < 1.1 * capacity


# --- the committed results --------------------------------------------------------------------------------------------


def test_the_committed_table_is_what_the_simulation_gives() -> None:
    committed = (alignment.RESULTS / "alignment.md").read_text().splitlines()
    assert alignment.line(alignment.row(2, 2, 0.7)) in committed
    assert alignment.line(alignment.row(1, 2, 1.1)) in committed


def test_the_committed_table_has_a_line_for_each_pipeline_and_load() -> None:
    committed = (alignment.RESULTS / "alignment.md").read_text()
    expected = len(alignment.SHUFFLES) * len(alignment.PARALLELISM) * len(alignment.LOADS)
    assert sum(line.startswith("| ") and "%" in line for line in committed.splitlines()) == expected


def test_the_committed_plot_has_a_panel_for_each_parallelism_and_quantity() -> None:
    root = ElementTree.fromstring((alignment.RESULTS / "alignment.svg").read_text())
    frames = [item for item in root.iter() if item.get("class") == "frame"]
    assert len(frames) == 2 * len(alignment.PARALLELISM)


def test_lines_of_a_plot_differ_without_colour() -> None:
    points = ((1.0, 1.0), (2.0, 10.0))
    looks = [(dashed, hollow) for dashed in (False, True) for hollow in (False, True)]
    panels = [Panel("", (Line("x", points, dashed=dashed, hollow=hollow),)) for dashed, hollow in looks]
    drawings = [as_svg("x", ((Scale("y", 1, 100), (panel,)),)) for panel in panels]
    colourless = {svg.replace("#1f5fa8", "black").replace("#c2571a", "black") for svg in drawings}
    assert len(colourless) == len(looks)
