"""The parts of a comparison: plans, faults in words, prepared programs, rows beside the truth, records, the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recovery
from recovery.command.main import main
from recovery.comparison import pictures
from recovery.comparison.machine import Reading, Span, describe_machine, memory_of_all, read_machine
from recovery.comparison.measuring import measure
from recovery.comparison.outages import Outage, Percentiles
from recovery.comparison.plan import PLANS, Plan, UnusablePlan
from recovery.comparison.prepared import NotComparable, Output, Prepared, Timed, code_of, own_rate, prepare
from recovery.comparison.programs import MADE, RATE, committed, totals
from recovery.comparison.record import Cost, Outcome, Record, Seen, Struck, UnreadableRun, read, read_rows, write
from recovery.comparison.report import FIGURES, write_report
from recovery.comparison.rows import Difference, Identities, Truth, difference, identities
from recovery.comparison.runs import Results
from recovery.comparison.summary import MEASURES, SILENCE, in_digits, sentences
from recovery.comparison.sustainable import NothingSustained, Search, sustainable
from recovery.comparison.truths import truth_of, why_rows_differ
from recovery.inject.faults import NotAFault, parse_fault
from recovery.inject.moments import AtEpoch
from recovery.inject.targets import ContradictingOrder, Kind, WorkerOf
from recovery.schemes.named import COMPARED, Compared
from snapshot import Collection, Generate, Program, Stream, ToDriver, ToFiles, ToKafka
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.program.sink import Sink, TakesCopies
from statebackend.ids import Partition

SECOND = 1_000_000

# --- plans and faults


def test_a_fault_is_said_in_one_line() -> None:
    fault = parse_fault("stop  worker:1 for 5s at epoch:next+0.3s")
    assert (fault.order.kind, fault.order.target, fault.order.lasting) == (Kind.STOP, WorkerOf(Partition(1)), 5000)
    assert isinstance(fault.at, AtEpoch)
    assert str(parse_fault("delay link:0-1 by 200ms for 10s").order) == "delay link:0-1 by 200 ms for 10 s"


@pytest.mark.parametrize("text", ["", "kill", "murder worker:0", "kill worker:0 tomorrow", "stop worker:0 5s"])
def test_what_says_no_fault_is_refused(text: str) -> None:
    with pytest.raises(NotAFault, match="is no fault; write KIND TARGET"):
        parse_fault(text)


def test_a_fault_whose_parts_contradict_each_other_is_refused() -> None:
    with pytest.raises(ContradictingOrder, match="needs a time to last"):
        parse_fault("stop worker:0")


def test_all_that_is_wrong_with_a_plan_is_said_at_once() -> None:
    plan = Plan(schemes=("passiv", "active"), rate=-1, repeats=0, every="soon", faults=("kill driver", "kill random"))
    with pytest.raises(UnusablePlan) as refused:
        plan.check()
    for part in ("'passiv': did you mean 'passive'", "rate is -1", "repeats is 0", "every: 'soon'", "kill driver"):
        assert part in str(refused.value)
    assert "kill random" in str(refused.value)


def test_faults_that_come_later_than_a_run_lasts_are_refused() -> None:
    with pytest.raises(UnusablePlan, match="later than `after` allows"):
        Plan(faults=("stop worker:0 for 5s at +4s",), after="8s").check()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_plans_that_have_names_can_be_carried_out(plan: Plan) -> None:
    plan.check()
    assert plan.schemes == tuple(COMPARED)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--schemes", "passive,nothing"], 2, "there is no scheme 'nothing': "),
        (["--fault", "kill worker:0 tomorrow"], 2, "is no fault; write KIND TARGET"),
        (["--rate", "10", "--share", "0.5"], 2, "rate and share are both given"),
        ([], 10, "no source of the program has a schedule"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    folder = tmp_path / "results"
    given = ["compare", f"{__name__}:unscheduled", "--folder", str(folder), *arguments]
    assert main(given) == code
    assert said in capsys.readouterr().err
    assert not folder.exists()


def unscheduled() -> Program:
    return Stream.read(Collection([(1,)], {"n": int}), uid="numbers").write(ToDriver(), uid="out")


# --- prepared programs


def sources(program: Program) -> list[Generate]:
    return [source for source in program.plan().sources.values() if isinstance(source, Generate)]


def test_a_prepared_program_has_another_rate_an_end_and_timed_sinks_and_the_same_steps() -> None:
    own = totals()
    prepared = prepare(own, 500.0, 4.0)
    (source,) = sources(prepared.program)
    assert (source.rate, source.count, prepared.rate) == (500.0, 2000, 500.0)
    assert own_rate(own) == RATE
    assert prepared.outputs["out"].created == MADE
    assert re.sub("Timed", "ToDriver", prepared.program.explain()) == own.explain()


def test_each_paced_source_keeps_its_share_and_what_ends_stays_as_it_is() -> None:
    once = Stream.read(Generate(lambda n: {"n": n, "at": n}, {"n": int, "at": int}, count=7), uid="once")
    paced = [
        Stream.read(
            Generate(lambda n: {"n": n}, {"n": int, "at": int}, rate=rate, scheduled="at"), uid=f"paced-{rate:g}"
        )
        for rate in (100.0, 300.0)
    ]
    program = once.union(*paced).key_by("n").count(uid="counts")
    with pytest.raises(NotComparable, match="no output of the program has a column 'at'"):
        prepare(program.write(ToDriver(), uid="out"), 200.0, 1.0)
    found = prepare(once.union(*paced).write(ToDriver(), uid="out"), 200.0, 1.0)
    assert sorted((source.rate or 0, source.count) for source in sources(found.program)) == [
        (0, 7),
        (50, 50),
        (150, 150),
    ]


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        (ToDriver(), Timed(at_commit=True, copies=False)),
        (ToDriver(at_commit=False), Timed(at_commit=False, copies=True)),
        (ToFiles("never", "jsonl"), Timed(at_commit=True, copies=False)),
        (ToKafka("nowhere:9092", "never", exactly_once=False), Timed(at_commit=False, copies=False)),
    ],
)
def test_a_sink_in_place_of_another_one_promises_what_that_does(sink: Sink, expected: Timed) -> None:
    rows = Stream.read(Generate(lambda n: {}, {"at": int}, rate=10, scheduled="at"), uid="rows")
    (output,) = prepare(rows.write(sink, uid="out"), None, 1.0).program.outputs
    assert output.sink == expected
    assert prepare(rows.write(sink, uid="out"), None, 1.0).outputs["out"].exactly_once == sink.exactly_once
    assert isinstance(output.sink, Timed)
    assert output.sink.takes_copies == (isinstance(sink, TakesCopies) and sink.takes_copies)


def test_the_code_of_a_program_changes_with_the_files_of_its_functions() -> None:
    rows = Stream.read(Generate(lambda n: {}, {"at": int}, rate=10, scheduled="at"), uid="rows")
    found = code_of(rows.map_batches(same, schema={"at": int}).write(ToDriver(), uid="out"))
    assert found == {__name__: sha256(Path(__file__).read_bytes()).hexdigest()[:16]}
    assert code_of(totals()).keys() >= {"recovery.comparison.programs"}


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_program_without_a_schedule_cannot_be_compared() -> None:
    with pytest.raises(NotComparable, match="no source of the program has a schedule"):
        own_rate(unscheduled())


# --- rows beside the truth

ROWS = st.lists(st.integers(0, 5), max_size=30)


@given(ROWS, ROWS)
def test_the_difference_is_that_of_the_counts(truth: list[int], found: list[int]) -> None:
    should, there = Counter(truth), Counter(found)
    more = there - should
    expected = Difference(
        len(truth),
        (should - there).total(),
        sum(count for row, count in more.items() if row in should),
        sum(count for row, count in more.items() if row not in should),
    )
    assert difference(np.array(truth, np.uint64), np.array(found, np.uint64)) == expected


def test_rows_are_equal_whatever_the_moments_of_their_run_are() -> None:
    def numbers(made: list[int], keys: Sequence[object]) -> list[int]:
        batch = pa.RecordBatch.from_pydict({"key": pa.array(keys), "made": pa.array(made)})
        return [int(number) for number in identities("out", [batch], {"made"})]

    assert numbers([1, 2], ["a", "b"]) == numbers([3, 4], ["a", "b"])
    assert len(set(numbers([1, 1, 1], ["a", "b", None]))) == 3
    assert numbers([1], [[1, {"b": 2.5}]][0:0] or [[1, 2]]) == numbers([2], [[1, 2]])


def test_rows_may_come_twice_only_to_outputs_that_are_not_exactly_once() -> None:
    truth = Truth({"out": np.array([1, 2], np.uint64)})
    twice = {"out": np.array([1, 2, 2], np.uint64)}
    assert truth.judge(twice, []) == (Difference(2, 0, 1, 0), "")
    assert truth.judge(twice, ["out"])[1] == "out: 0 rows lost, 1 twice, 0 wrong"
    assert truth.judge({"out": np.array([1], np.uint64)}, [])[1] == "out: 1 rows lost, 0 twice, 0 wrong"
    more = {"out": np.array([1, 2, 3, 3], np.uint64)}
    assert truth.judge(more, [])[1] == "out: 0 rows lost, 0 twice, 2 wrong"
    assert truth.judge(more, [], more=True) == (Difference(2, 0, 0, 2), "")
    assert truth.judge({"out": np.array([3], np.uint64)}, [], more=True)[1] == "out: 2 rows lost, 0 twice, 1 wrong"


def test_only_outputs_in_which_two_runs_agree_are_compared(tmp_path: Path) -> None:
    def run(number: int) -> dict[str, Identities]:
        return {"out": np.array([1, 2], np.uint64), "live": np.array([1, number + 5], np.uint64)}

    outputs = {name: Output(exactly_once=False, created=None) for name in ("out", "live")}
    prepared = replace(prepare(totals(), None, 1.0), outputs=outputs)
    for _ in range(2):  # from the runs, and from the file
        truth = truth_of(tmp_path, prepared, run)
        assert truth is not None
        assert {uid: rows.tolist() for uid, rows in truth.rows.items()} == {"out": [1, 2]}
    assert truth is not None
    assert truth.judge({**run(1), "live": np.array([9, 9, 9], np.uint64)}, ["live"]) == (Difference(2, 0, 0, 0), "")
    assert why_rows_differ(tmp_path) == "live: 2 rows"


def test_where_two_runs_agree_in_nothing_there_is_no_truth(tmp_path: Path) -> None:
    prepared = prepare(totals(), None, 1.0)
    assert truth_of(tmp_path, prepared, lambda number: {"out": np.array([number], np.uint64)}) is None


# --- the rate that is sustained


@given(st.floats(20, 50_000), st.floats(100, 20_000))
def test_the_search_ends_at_the_highest_rate_that_is_sustained(limit: float, first: float) -> None:
    search, tries = Search(first), 0
    while (rate := search.next) is not None:
        search.tried(rate, sustained=rate <= limit)
        tries += 1
    assert search.found is not None
    assert search.found <= limit <= search.found * 1.1 + 1e-6
    assert tries <= 20


def test_the_search_gives_up_where_no_rate_is_sustained() -> None:
    search = Search(1000)
    while (rate := search.next) is not None:
        search.tried(rate, sustained=False)
    assert search.found is None


def test_a_rate_whose_runs_are_not_ready_in_time_is_tried_again_and_not_called_too_high(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def keeps_up(prepared: Prepared, _scheme: object, trial: Plan, _folder: Path) -> tuple[Outcome, str]:
        assert (trial.warm_s, trial.share) == (5.0, None)
        tried.append(prepared.rate)
        if len(tried) in (1, 2):
            return Outcome.NO_FAULT, "not ready"
        return (Outcome.MEASURED, "") if prepared.rate <= 5_000 else (Outcome.FAILED, "behind")

    monkeypatch.setattr("recovery.comparison.sustainable.keeps_up", keeps_up)
    told: list[str] = []
    found = sustainable(totals(), COMPARED["passive"], Plan(share=0.5), tmp_path, told.append)
    assert 4_500 < found <= 5_000
    assert tried[:4] == [RATE, RATE, RATE, 4 * RATE]
    assert told[:2] == ["  2,000 rows a second: sustained", "  8,000 rows a second: behind"]
    monkeypatch.setattr("recovery.comparison.sustainable.keeps_up", lambda *_: (Outcome.NO_FAULT, "not ready"))
    with pytest.raises(NothingSustained, match="not ready"):
        sustainable(totals(), COMPARED["passive"], Plan(share=0.5), tmp_path, told.append)


# --- refusals


def test_what_a_scheme_refuses_is_the_result_of_its_run(tmp_path: Path) -> None:
    twice = Compared(recovery.MicroBatches(every="1s"), "an interval that the plan says as well")
    taken = measure(prepare(totals(), None, 1.0), twice, Plan(), tmp_path, None, ())
    assert taken.record.outcome is Outcome.REFUSED
    assert "every is given twice" in taken.record.why
    assert len(taken.seen.came) == 0


@pytest.mark.parametrize("compared", COMPARED.values(), ids=COMPARED)
def test_every_scheme_that_is_compared_takes_a_program_whose_output_is_exactly_once(compared: Compared) -> None:
    prepared = prepare(committed(), None, 1.0, shown_at_once=compared.shows_at_once)
    compared.scheme.check(CoordinatorOptions(), prepared.program.plan())


# --- records and reports


def record(scheme: str, repeat: int = 0, silence: float = 0.1, cpu: float = 0.5, **more: object) -> Record:
    known: dict[str, object] = {
        "began": 0,
        "ended": 12 * SECOND,
        "rate": 100.0,
        "struck": (Struck("kill worker:0", 4 * SECOND, 12.5),),
        "steady": Percentiles(2.0, 4.0, 9.0, 400),
        "outage": Outage(silence, False, silence * 1200, 0.5, True, 0.25),
        "throughput": 100.0,
        "cost": Cost(cpu, 30.0, 1 << 28, 1 << 20, 1 << 22, 0.01),
        "difference": Difference(1200, 0, 3, 0),
        "restarts": 1,
    }
    return Record(scheme, repeat, Outcome.MEASURED, **{**known, **more})  # type: ignore[arg-type]


def rows_of(one: Record) -> Seen:
    due = np.arange(1, one.ended, 10_000, dtype=np.int64)
    return Seen(due, due + 2_000, np.arange(len(due), dtype=np.uint64))


def results(folder: Path, records: Sequence[Record], program: str = "jobs:program") -> Results:
    (folder / "runs").mkdir()
    for one in records:
        write(folder / "runs", one, rows_of(one))
    names = tuple(dict.fromkeys(one.scheme for one in records))
    return Results(folder, program, "stage a", Plan(schemes=names, repeats=1), describe_machine(), records, "", {})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    for one in (record("passive"), Record("active", 3, Outcome.REFUSED, "not this sink")):
        write(tmp_path, one, rows_of(one))
        assert read(tmp_path / one.name) == one
    assert read_rows(tmp_path / record("passive").name).rows.tolist() == list(range(1200))


def test_a_file_that_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "00-passive.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UnreadableRun, match=r"00-passive\.parquet is not the file of a run"):
        read(tmp_path / "00-passive.parquet")


def test_only_first_sightings_of_timed_rows_count() -> None:
    due, came = np.array([5, 5, 5, 0]), np.array([30, 20, 25, 1])
    seen = Seen(due, came, np.array([1, 1, 2, 3], np.uint64)).sightings
    assert seen.came.tolist() == [20, 25]


def test_a_scheme_is_called_better_only_if_each_of_its_runs_was() -> None:
    apart = [record("passive", 0, 0.2), record("passive", 1, 0.3), record("active", 0, 0.01), record("active", 1, 0.02)]
    plan = Plan(schemes=("passive", "active"))
    (said,) = [one for one in sentences(plan, apart, "") if one.startswith("Output was silent shortest")]
    assert "under active" in said
    assert "Worse in every run: passive" in said
    mixed = [
        replace(one, outage=replace(one.outage, no_output_s=0.25)) if one.outage and n == 2 else one
        for n, one in enumerate(apart)
    ]
    (said,) = [one for one in sentences(plan, mixed, "") if one.startswith("Output was silent shortest")]
    assert "Not told apart" in said
    assert "Worse" not in said


def test_nothing_is_averaged_over_a_failed_run() -> None:
    runs = [
        record("passive", 0, 0.2),
        replace(record("passive", 1, 9.0), outcome=Outcome.FAILED, why="out: 3 rows lost"),
    ]
    assert SILENCE.values(runs) == [200.0]
    said = " ".join(sentences(Plan(schemes=("passive",)), runs, ""))
    assert "1 of 2 runs were measured" in said
    assert "1 runs failed (passive)" in said


def test_a_scheme_with_a_failed_run_is_not_called_best() -> None:
    runs = [record("passive", 0, 0.2), record("active", 0, 0.01), replace(record("active", 1), outcome=Outcome.FAILED)]
    said = sentences(Plan(schemes=("passive", "active")), runs, "")
    assert "1 runs failed (active); the reasons are below, and what follows leaves these schemes out." in said
    assert not any("under active" in one for one in said)
    assert "Where output may be silent for 0.2 s at most, passive costs least (0.5 s/s of CPU)." in said


def test_the_cheapest_scheme_that_is_quiet_enough_is_named() -> None:
    runs = [
        record("passive", 0, 0.15, 0.4),
        record("passive+standby-open", 0, 0.04, 0.5),
        record("active", 0, 0.01, 1.0),
    ]
    said = sentences(Plan(schemes=tuple(one.scheme for one in runs)), runs, "")
    assert "Where output may be silent for 50 ms at most, passive+standby-open costs least (0.5 s/s of CPU)." in said
    assert "Where output may be silent for 0.2 s at most, passive costs least (0.4 s/s of CPU)." in said
    runs.append(record("acks", 0, 0.03, 0.45))
    more = sentences(Plan(schemes=tuple(one.scheme for one in runs)), runs, "")
    assert (
        "Where output may be silent for 50 ms at most, acks costs least (0.45 s/s of CPU); it is at least once." in more
    )
    assert any("active replication has 10 ms of silence to 40 ms, and 2 times" in one for one in said)


def test_one_run_of_each_scheme_is_said_to_be_little() -> None:
    runs = [record("passive", 0, 0.2), record("active", 0, 0.01)]
    plan = Plan(schemes=("passive", "active"), repeats=1)
    assert any("may be chance" in one for one in sentences(plan, runs, ""))
    assert not any("may be chance" in one for one in sentences(replace(plan, repeats=2), runs, ""))


def test_figures_are_shown_with_three_digits() -> None:
    assert [in_digits(value) for value in (0.01234, 5.0, 123456.7, 99.95)] == ["0.0123", "5", "123,457", "100"]


def test_a_report_needs_no_network_shows_every_run_and_takes_no_text_for_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    runs = [
        record("passive", 0),
        record("active", 0, 0.01, disturbed=True, outage=Outage(8.25, True, 12.0, 7.75, False, None)),
        Record("synchronous", 0, Outcome.FAILED, evil),
        Record("micro-batches", 0, Outcome.REFUSED, "no such sink"),
    ]
    text = write_report(results(tmp_path, runs, evil)).read_text()
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)[^\"']*", text.replace("xlink:href", "xref"))
    assert "@import" not in text
    for one in MEASURES:
        assert f">{one.name} " in text.replace("&#x27;", "'"), one.name
    for part in ("no such sink", "&gt;8,250*", "&gt;7.75*", "Threats to validity", "stage a", "kill worker:0"):
        assert part in text
    assert text.count("<figure") == 3
    assert set(pa.parquet.read_table(tmp_path / FIGURES)["scheme"].to_pylist()) == {one.scheme for one in runs}


def test_schemes_are_told_apart_without_colour() -> None:
    for marks in (pictures._DASHES, pictures._SHAPES, pictures._COLOURS):
        assert len({str(mark) for mark in marks}) == len(marks) >= len(COMPARED)


# --- the machine


def test_the_machine_is_read_and_what_others_use_is_what_is_left() -> None:
    began, ended = Reading(1.0, 2.0, 10.0, 100), Reading(3.0, 3.5, 13.0, 400)
    assert Span.between(began, ended) == Span(2.0, 1.5, 1.5, 300)
    now = read_machine()
    assert 0 < now.ours_s <= now.machine_s
    assert memory_of_all() > 10_000_000
    assert int(describe_machine()["cores"]) > 0


def test_programs_that_are_shown_with_the_command_can_be_prepared() -> None:
    assert [prepare(program(), None, 1.0).outputs["out"].exactly_once for program in (totals, committed)] == [
        False,
        True,
    ]
