"""The search finds what is wrong, shrinks it, draws it, and can show it again."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import settings

from examples import third_party_protocol, wrong_protocol
from snapshot.testing import (
    Acted,
    Action,
    Cut,
    Effect,
    Event,
    Faults,
    History,
    Kind,
    Received,
    Schedule,
    Send,
    Simulation,
    Violation,
    as_svg,
    as_text,
)
from snapshot.testing.search import Counterexample, check, replay, search


class Clerk:
    """Sends five letters to the archive and trusts that each arrives."""

    def __init__(self) -> None:
        self.letters = 5
        self.archive: list[object] = []

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted():
                self.letters -= 1
                return [Send("archive", self.letters)]
            case Received(_, letter):
                self.archive.append(letter)
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        return [Action("send")] if self.letters else []


class Archive(Clerk):
    def actions(self) -> Sequence[Action]:
        return []


def run(schedule: Schedule) -> None:
    processes = {"clerk": Clerk, "archive": Archive}
    simulation = Simulation(processes, schedule, Faults(crashes=1, cuts=2, pauses=2, crashable=["clerk"]))
    simulation.run()
    if len(simulation.processes["archive"].archive) < 5:
        raise Violation("the archive misses a letter")


def test_a_failure_is_found_and_shrunk_to_one_fault() -> None:
    found = search(run)
    assert found is not None
    assert found.history is not None
    assert str(found.violation) == "the archive misses a letter"
    assert len(found.history.kinds(Kind.CRASHED, Kind.CUT)) == 1
    assert not found.history.kinds(Kind.PAUSED)
    assert len(found.schedule) <= 12


def test_without_shrinking_the_first_failure_is_the_answer_and_the_seed_decides_which() -> None:
    first, again, other = (search(run, seed=seed, shrink=False) for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.schedule == again.schedule != other.schedule


def test_a_counterexample_is_seen_again_from_its_line_of_digits() -> None:
    found = search(run, shrink=False)
    assert found is not None
    again = replay(run, found.schedule.hex())
    assert isinstance(again, Counterexample)
    assert str(again) == str(found)
    assert f"replay(run, {found.schedule.hex()!r})" in str(found)
    assert replay(run, "") is None


def test_a_failing_check_shows_the_picture_and_how_to_see_it_again() -> None:
    with pytest.raises(AssertionError, match="the archive misses a letter") as caught:
        check(run)
    assert "clerk" in str(caught.value)
    assert "replay(run, " in str(caught.value)


def test_a_plain_assertion_is_a_failure_too_and_nothing_else_is() -> None:
    def asserts(schedule: Schedule) -> None:
        assert schedule.number(256) < 200

    found = search(asserts)
    assert found is not None
    assert found.schedule == bytes([200])
    assert found.text() == found.svg() == ""

    def raises(schedule: Schedule) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        search(raises)


def test_a_search_that_finds_nothing_says_so() -> None:
    assert search(lambda schedule: None, histories=20) is None
    check(lambda schedule: None, histories=20)


def small_history() -> History:
    history = History(("a", "b", "c"))
    for name in history.processes:
        history.append(name, 0, Kind.STARTED)
    first = history.append("a", 0, Kind.SENT, "c", "x<y")
    late = history.append("b", 0, Kind.SENT, "a", 7)
    history.append("a", 0, Kind.RECEIVED, "b", 7, late)
    history.append("c", 0, Kind.RECEIVED, "a", "x<y", first)
    history.append("b", 0, Kind.CRASHED)
    lost = history.append("a", 0, Kind.SENT, "b", 8)
    history.append("a", 0, Kind.LOST, "b", 8, lost)
    history.append("b", 1, Kind.STARTED, payload="saved")
    return history


def test_in_text_a_process_is_a_column_and_a_message_an_arrow() -> None:
    assert as_text(small_history(), marked=[5]).splitlines()[:-2] == [
        "         a         b         c",
        "    #3   ●─m1─▸    │         │        a sent x<y to c  (m1)",
        "    #4   │    ◂─m2─●         │        b sent 7 to a  (m2)",
        ">   #5   ●◂╌╌╌╌m2╌╌│         │        a received 7 from b  (m2)",
        "    #6   │╌╌m1╌╌╌╌╌┼╌╌╌╌╌╌╌╌▸●        c received x<y from a  (m1)",
        "    #7   │         ✗         │        b crashed",
        "    #8   ●─m3─▸              │        a sent 8 to b  (m3)",
        "    #9   │─m3─✗              │        a lost 8 on its way to b  (m3)",
        "   #10   │         ○         │        b started from saved",
    ]


def history_of_everything() -> History:
    history = History(("a", "b"))
    history.append("a", 0, Kind.NOTED, payload="x" * 120)
    history.append("a", 0, Kind.SAVED, payload=5)
    to_itself = history.append("a", 0, Kind.SENT, "a", "self")
    history.append("a", 0, Kind.RECEIVED, "a", "self", to_itself)
    history.append("b", 0, Kind.SENT, "a", "forever under way")
    history.append("b", 0, Kind.PAUSED)
    history.append("a", 0, Kind.CUT, "b")
    history.append("a", 0, Kind.BROKEN, "b")
    history.append("b", 0, Kind.RESUMED)
    history.append("b", 0, Kind.CRASHED)
    history.append("b", 1, Kind.STARTED)
    return history


def test_in_text_whatever_happens_has_its_sign() -> None:
    rows = as_text(history_of_everything()).splitlines()[1:-2]
    assert [row[9:20].rstrip() for row in rows] == [
        "◆         │",
        "▪         │",
        "●─m1─◂    │".replace("◂", "▸"),
        "●─m1─◂    │",
        "│    ◂─m2─●",
        "│         ‖",
        "●         ┊",
        "≀         ┊",
        "│         ▷",
        "│         ✗",
        "│         ○",
    ]
    assert "a was cut off from b" in rows[6]
    assert rows[0].endswith("xxx…")


def test_of_a_very_long_history_the_text_shows_what_is_near_its_ends_and_near_what_is_marked() -> None:
    history = History(("a",))
    for number in range(2000):
        history.append("a", 0, Kind.NOTED, payload=number)
    rows = as_text(history, marked=[1000]).splitlines()
    assert len(rows) < 300
    for number in (0, 1000, 1999):
        assert any(row.endswith(f"a noted: {number}") for row in rows)
    gaps = [int(row.split()[1]) for row in rows if "... " in row]
    assert sum(gaps) + sum("a noted" in row for row in rows) == 2000


def test_in_an_svg_whatever_happens_is_labelled() -> None:
    drawing = as_svg(history_of_everything(), Cut({}))
    texts = {element.text for element in ElementTree.fromstring(drawing).iter() if element.text}
    assert {"x" * 21 + "…", "saves 5", "self", "paused", "⚡ b", "resumed", "crashed", "starts anew"} <= texts
    assert "#0 a noted: " + "x" * 120 in texts


def test_in_text_the_past_of_a_cut_stands_above_it() -> None:
    cut = Cut({"a": 5, "b": 2, "c": 2}, name="epoch 1")
    lines = as_text(small_history(), cut).splitlines()
    line = next(number for number, text in enumerate(lines) if text.endswith("═ epoch 1"))
    above, below = "\n".join(lines[:line]), "\n".join(lines[line:])
    assert "a received 7 from b  (m2)  <-- not sent yet" in above
    assert "a sent x<y to c  (m1)  in flight across the cut" in above
    assert "b sent 7 to a" in below
    assert "c received x<y from a" in below


def test_an_svg_is_well_formed_and_tells_messages_apart_by_what_the_cut_makes_of_them() -> None:
    cut = Cut({"a": 5, "b": 2, "c": 2}, name="epoch <1>")
    drawing = as_svg(small_history(), cut, marked=[5])
    texts = [element.text for element in ElementTree.fromstring(drawing).iter() if element.text]
    assert "m1: x<y, in flight across the cut" in texts
    assert "m2: 7, received inside the cut, but sent outside of it" in texts
    assert "m3: 8, lost" in texts
    assert "epoch <1>" in texts
    assert {"a", "b", "c", "x<y", "crashed", "starts from saved"} <= set(texts)


def test_the_labels_of_an_svg_do_not_overlap() -> None:
    found = search(wrong_protocol.run_wrong, shrink=False)
    assert found is not None
    places = []
    for element in ElementTree.fromstring(found.svg()).iter("{http://www.w3.org/2000/svg}text"):
        if element.get("text-anchor") == "middle" and element.get("class") is None and element.get("style") is None:
            half = len(element.text or "") * 3
            places.append((float(element.get("x", "")) - half, float(element.get("x", "")) + half))
    places.sort()
    assert len(places) > 10
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_the_third_party_protocol_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    third_party_protocol.main(["--histories", "200", "--svg", str(tmp_path / "right.svg")])
    out = capsys.readouterr().out
    assert "each snapshot is consistent" in out
    assert "in flight across the cut" in out
    assert "not sent yet" not in out
    assert (tmp_path / "right.svg").read_text().startswith("<svg")


def test_the_wrong_protocol_is_caught_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong_protocol.main(["--svg", str(tmp_path / "wrong.svg")])
    out = capsys.readouterr().out
    assert "the snapshot is not consistent" in out
    assert "<-- not sent yet" in out
    assert "received inside the cut, but sent outside of it" in (tmp_path / "wrong.svg").read_text()
    schedule = out.rsplit("'", 2)[1]
    wrong_protocol.main(["--replay", schedule])
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("main", [third_party_protocol.main, wrong_protocol.main])
def test_the_examples_explain_themselves(main: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(main)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--svg FILE" in capsys.readouterr().out


def test_on_fifo_channels_the_wrong_protocol_would_be_right() -> None:
    """What is wrong with it is only seen by a network that lets messages overtake each other."""
    third = third_party_protocol

    def run_in_order(schedule: Schedule) -> None:
        accounts = third.open_accounts(schedule, wrong_protocol.WaitsForTheAnnouncement)
        third.check_snapshot(Simulation(accounts, schedule).run(), accounts)

    check(run_in_order, histories=3 * settings().max_examples)
