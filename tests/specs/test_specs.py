"""TLC accepts the histories of our machines and rejects those of broken ones; run by `make test-specs` alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot.testing import Statistics
from snapshot.testing.history import Violation
from snapshot.testing.tla import Tlc, accept
from tests.specs import marker_rule

pytestmark = pytest.mark.specs

FOLDER = Path(__file__).parent
RULE = FOLDER / "ChandyLamport.tla"
TLC = Tlc()
RING = 'Nodes = {"a", "b", "c"}\nChannels <- Ring\n'


def mutated(specification: Path, wrong: tuple[str, str]) -> dict[str, str]:
    text = specification.read_text()
    assert text.count(wrong[0]) == 1, f"{wrong[0]} is there {text.count(wrong[0])} times"
    return {specification.stem: text.replace(*wrong)}


# --- the marker rule --------------------------------------------------------------------------------------------------


def test_histories_of_the_marker_rule_are_accepted(sample_factor: int) -> None:
    statistics = Statistics()
    traces = marker_rule.traces(500 * min(sample_factor, 10), statistics=statistics)
    print(f"{statistics}; {sum(len(trace.steps) for trace in traces)} steps of the specification")
    accept(TLC.check(RULE, traces))


def test_histories_of_a_broken_marker_rule_are_rejected() -> None:
    traces = [trace for wrong in marker_rule.WRONG for trace in marker_rule.traces(25, wrong)]
    rejected = {one.trace.name: one for one in TLC.check(RULE, traces)}
    for name, one in rejected.items():
        print(f"{name}: {one.step}")
    assert {f"a history of {wrong.__name__}" for wrong in marker_rule.WRONG} == set(rejected)


def test_a_mutated_marker_rule_rejects_honest_histories() -> None:
    traces = marker_rule.traces(25, seed=1)
    for sentence, wrong in marker_rule.MUTATIONS.items():
        assert TLC.check(RULE, traces, mutated(RULE, wrong)), f"a specification in which {sentence} accepts all"


MODELS = {
    "two processes, two snapshots": ('{"a", "b"}', "Pair", "{1, 2}", 1),
    "a ring of three": ('{"a", "b", "c"}', "Ring", "{1}", 1),
    "three, and a chord": ('{"a", "b", "c"}', "Chord", "{1}", 1),
}


@pytest.mark.parametrize("instance", MODELS)
def test_every_behaviour_of_a_small_instance_records_consistent_states(instance: str) -> None:
    nodes, channels, snapshots, messages = MODELS[instance]
    config = (
        f"CONSTANTS\nNodes = {nodes}\nChannels <- {channels}\nSnapshots = {snapshots}\nMaxMessages = {messages}\n"
        "SPECIFICATION Spec\nINVARIANTS Safe FinishedWhenSettled\nCHECK_DEADLOCK FALSE\n"
    )
    print(instance, TLC.explore(FOLDER / "ChandyLamportModel.tla", config))


def test_a_mutated_marker_rule_breaks_its_promise_in_a_small_instance() -> None:
    config = (
        'CONSTANTS\nNodes = {"a", "b"}\nChannels <- Pair\nSnapshots = {1}\nMaxMessages = 1\n'
        "SPECIFICATION Spec\nINVARIANTS Safe FinishedWhenSettled\nCHECK_DEADLOCK FALSE\n"
    )
    wrong = marker_rule.MUTATIONS["what arrives between cut and marker is not in flight"]
    with pytest.raises(Violation, match="Safe is violated"):
        TLC.explore(FOLDER / "ChandyLamportModel.tla", config, mutated(RULE, wrong))
