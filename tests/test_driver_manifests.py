"""From acknowledgements to a manifest, and from there to what every operator of every partition starts from."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from recovery.driver.settings.program_fit import ProgramDoesNotFit, compare
from recovery.driver.tree.manifests import (
    DriversPart,
    broadcast_states,
    dealer_from,
    known_in,
    manifest_of,
    moves_output,
    reading_in,
    roles_from,
    transactions_in,
    without_output,
)
from snapshot import Collection, Program, Stream, ToDriver
from snapshot.cut.frames import Watermark
from snapshot.epochs.coordinator_events import Publish
from snapshot.epochs.transaction_events import Committable
from snapshot.host.protocol.messages import Acknowledgement, PartitionCost
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.program.plan import Plan
from snapshot.tree.frozen_json import NULL, Json
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    Inline,
    Manifest,
    ManifestKind,
    SplitPosition,
    SubtaskSnapshot,
)
from snapshot.tree.manifest_json import decode, encode
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keygroups import range_of
from tests.program_parts import Nothing

NUMBERS, COUNT, OUT = Uid("numbers"), Uid("count"), Uid("out")
EPOCH = Epoch(Generation(2), 7)
ATTEMPT = Incarnation(Generation(2), Attempt(3))
MOST = 8
SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64()})
COST = PartitionCost(Partition(0), 0, 0, 0, 0, 0, 0)


def program(source: str = "numbers", count: str = "count", out: str = "out") -> Program:
    numbers = Stream.read(Collection([("a", 1)], SCHEMA, splits=4), uid=source)
    return numbers.key_by("k").sum("n", uid=count).write(ToDriver(), uid=out)


def plan(**uids: str) -> Plan:
    return program(**uids).plan(MOST)


def channel(sender: int, receiver: int) -> ChannelId:
    (edge,) = [edge for stage in plan().stages for edge in stage.edges]
    return edge.channel(Partition(sender), Partition(receiver))


def state(partition: int, parallelism: int = 2) -> FileSet:
    groups = range_of(Partition(partition), parallelism, MOST)
    file = FileRef(f"shared/2-{partition}-3-1.sst", (groups,), EPOCH, FileKind.DELTA, 10, "sha256:00")
    return FileSet(groups, (file,))


def committable(partition: int) -> Committable[CommitPayload]:
    return Committable(TransactionId(f"j/out/2-3-{partition}-1"), EPOCH, CommitPayload(NULL))


def acknowledged(
    partition: int,
    received: tuple[ChannelState, ...] = (),
    overtaken: tuple[ChannelState, ...] = (),
    broadcast: bytes = b"",
) -> Acknowledgement:
    positions = (SplitPosition(f"s{partition}", Json.of({"at": 5})), SplitPosition(f"t{partition}", NULL))
    own = Partition(partition)
    subtasks = {
        OUT: SubtaskSnapshot(own, committables=(committable(partition),)),
        NUMBERS: SubtaskSnapshot(own, positions=positions, watermark=Watermark(40 + partition)),
        COUNT: SubtaskSnapshot(own, state(partition), watermark=Watermark(30 + partition), channels=received),
    }
    states = {COUNT: broadcast} if broadcast else {}
    return Acknowledgement(ATTEMPT, own, EPOCH, subtasks, overtaken, states, COST)


def publish(*contents: Acknowledgement, savepoint: bool = False, base: Epoch | None = None) -> Publish[Acknowledgement]:
    return Publish(EPOCH, base, ATTEMPT, savepoint, {one.partition: one for one in contents}, has_committables=True)


PART = DriversPart(JobId("j"), MOST, 1234, {NUMBERS: Json.of(["s8", "s9"])}, {}, key_types={COUNT: "int64"})


def manifest(*contents: Acknowledgement) -> Manifest:
    return manifest_of(publish(*(contents or (acknowledged(0), acknowledged(1)))), PART)


def operator(made: Manifest, uid: Uid) -> tuple[SubtaskSnapshot, ...]:
    return next(one.subtasks for one in made.operators if one.uid == uid)


# --- into the manifest


def test_a_manifest_has_every_operator_of_every_partition_and_what_the_driver_knows() -> None:
    made = manifest_of(publish(acknowledged(1), acknowledged(0), savepoint=True, base=Epoch(Generation(1), 6)), PART)
    assert [one.uid for one in made.operators] == [COUNT, NUMBERS, OUT]
    assert all([s.partition for s in one.subtasks] == [0, 1] for one in made.operators)
    assert [one.enumerator for one in made.operators] == [NULL, Json.of(["s8", "s9"]), NULL]
    assert made.parent == Epoch(Generation(1), 6)
    assert (made.attempt, made.created_at, made.job) == (3, 1234, "j")
    assert made.kind is ManifestKind.SAVEPOINT
    assert [one.key_type for one in made.operators] == ["int64", "", ""]
    assert decode(encode(made), "x") == made
    assert manifest().kind is ManifestKind.CHECKPOINT
    assert manifest().parent == NO_EPOCH


def test_what_the_receiver_noted_comes_before_what_the_marker_overtook_at_the_sender() -> None:
    received = ChannelState(channel(1, 0), (Inline(b"1"), Inline(b"2")))
    overtaken = ChannelState(channel(1, 0), (Inline(b"3"),))
    only_overtaken = ChannelState(channel(1, 1), (Inline(b"4"),))
    only_received = ChannelState(channel(0, 0), (Inline(b"5"),))
    made = manifest(
        acknowledged(0, received=(only_received, received)),
        acknowledged(1, overtaken=(overtaken, only_overtaken)),
    )
    first, second = operator(made, COUNT)
    both = ChannelState(channel(1, 0), (Inline(b"1"), Inline(b"2"), Inline(b"3")))
    assert first.channels == (only_received, both)
    assert second.channels == (only_overtaken,)


def test_a_part_without_overtaken_rows_stays_in_the_form_in_which_it_came() -> None:
    nothing = ChannelState(channel(1, 0), ())
    one = acknowledged(0)
    made = manifest(one, acknowledged(1, overtaken=(nothing,)))
    assert operator(made, COUNT)[0] is one.subtasks[COUNT]


def test_broadcast_state_is_taken_from_the_first_partition() -> None:
    said = publish(acknowledged(0, broadcast=b"rules"), acknowledged(1, broadcast=b"rules"))
    assert broadcast_states(said) == {COUNT: b"rules"}
    made = manifest_of(said, replace(PART, broadcast={COUNT: Inline(b"rules")}))
    assert [one.broadcast for one in made.operators] == [Inline(b"rules"), None, None]


# --- out of the manifest


def test_at_the_beginning_keyed_operators_have_empty_state_of_their_key_groups() -> None:
    roles = roles_from(None, plan(), 3, {})
    assert [role[COUNT].state for role in roles] == [FileSet(range_of(Partition(i), 3, MOST)) for i in range(3)]
    assert all(role[NUMBERS].state is None and not role[NUMBERS].positions for role in roles)


def test_at_the_same_parallelism_everybody_gets_back_what_it_gave() -> None:
    received = ChannelState(channel(1, 0), (Inline(b"1"),))
    made = manifest(acknowledged(0, received=(received,)), acknowledged(1))
    for partition, role in enumerate(roles_from(made, plan(), 2, {COUNT: b"rules"})):
        assert role[COUNT].state == state(partition)
        assert role[COUNT].watermark == Watermark(30 + partition)
        assert role[COUNT].channels == ((received,) if partition == 0 else ())
        assert role[COUNT].broadcast == b"rules"
        assert role[NUMBERS].positions == {f"s{partition}": Json.of({"at": 5}), f"t{partition}": NULL}
        assert role[NUMBERS].broadcast is None
        assert role[OUT].committables == (committable(partition),)


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_at_another_parallelism_all_of_it_is_there_once(parallelism: int) -> None:
    roles = roles_from(manifest(), plan(), parallelism, {COUNT: b"rules"})
    states = [role[COUNT].state for role in roles]
    assert [files.range for files in states if files is not None] == [
        range_of(Partition(index), parallelism, MOST) for index in range(parallelism)
    ]
    splits = sorted(split for role in roles for split in role[NUMBERS].positions)
    assert splits == ["s0", "s1", "t0", "t1"]
    committables = [one for role in roles for one in role[OUT].committables]
    assert sorted(one.transaction for one in committables) == ["j/out/2-3-0-1", "j/out/2-3-1-1"]
    assert all(role[COUNT].broadcast == b"rules" for role in roles)


def test_a_keyed_operator_that_is_new_in_the_program_has_empty_state() -> None:
    roles = roles_from(manifest(), plan(count="total"), 2, {})
    assert [role[Uid("total")].state for role in roles] == [FileSet(range_of(Partition(i), 2, MOST)) for i in (0, 1)]


def test_splits_that_were_finished_assigned_or_left_are_known_after_a_restore() -> None:
    made = manifest()
    source = plan().sources[NUMBERS]
    dealer = dealer_from(NUMBERS, source, made, roles_from(made, plan(), 2, {}), found=["s0", "s9"])
    assert list(dealer.unassigned) == ["s8", "s9"], "what is known is not found again"
    assert dealer.discovered(["s0", "t1", "s9"]) == []
    assert list(dealer.unassigned) == ["s8", "s9"]


def test_what_a_source_that_grows_has_at_the_start_is_all_for_a_run_that_reads_what_is_there_now() -> None:
    made, source = manifest(), Nothing(pa.schema({"n": pa.int64()}), on_demand=True, discover_every=1.0)
    roles = roles_from(made, plan(), 2, {})
    for available_now in (False, True):
        dealer = dealer_from(NUMBERS, source, made, roles, ["s8", "new"], available_now=available_now)
        dealer.started()
        assert list(dealer.unassigned) == ["s8", "s9", "new"]
        given = [dealer.wanted(Partition(0)) for _ in range(4)]
        assert [assignment.last for some in given for assignment in some] == (
            [False, False, True, True] if available_now else [False, False, False]
        )


def test_how_far_a_source_was_read_and_what_is_known_of_it_is_in_the_epoch() -> None:
    assert reading_in(None, NUMBERS) == {}
    assert reading_in(manifest(), NUMBERS) == {"s0": 5, "s1": 5, "s8": None, "s9": None}
    assert known_in(manifest(), NUMBERS) == {"s0", "s1", "s8", "s9", "t0", "t1"}


def test_the_splits_of_a_source_that_the_epoch_does_not_know_are_those_that_were_found() -> None:
    uid = Uid("figures")
    other = plan(source="figures")
    for known in (None, manifest()):
        dealer = dealer_from(uid, other.sources[uid], known, roles_from(known, other, 2, {}), found=["a", "b"])
        assert list(dealer.unassigned) == ["a", "b"]


def test_the_transactions_that_an_epoch_names_are_those_of_its_sinks() -> None:
    assert transactions_in(None) == {}
    assert transactions_in(manifest())[OUT] == {"j/out/2-3-0-1", "j/out/2-3-1-1"}


# --- whether a program fits


def test_output_stays_with_its_keys_if_the_generation_that_sealed_it_had_as_many_partitions() -> None:
    made = manifest(acknowledged(0), acknowledged(1))
    assert not moves_output(None, 2)
    assert not moves_output(made, 2)
    assert moves_output(made, 3)
    assert moves_output(replace(made, epoch=Epoch(Generation(3), 8)), 2)
    assert not moves_output(without_output(made), 3)


def test_the_program_that_made_an_epoch_fits_it() -> None:
    fit = compare(plan(), manifest(), unsettled=True)
    assert (fit.added, fit.removed, fit.changed, fit.lost) == ((), (), (), ())
    fit.check(allow_non_restored_state=False)


def test_what_was_added_alone_is_no_hindrance() -> None:
    more = Stream.read(Collection([("a", 1)], SCHEMA), uid="more").write(ToDriver(), uid="out2")
    fit = compare((program() + more).plan(MOST), manifest(), unsettled=True)
    assert fit.added == ("more (source)", "out2 (sink)")
    fit.check(allow_non_restored_state=False)


def test_what_was_removed_is_dropped_only_if_that_is_asked_for() -> None:
    fit = compare(plan(count="total"), manifest(), unsettled=False)
    assert fit.removed == ("count, with keyed state",)
    with pytest.raises(ProgramDoesNotFit, match=r"(?s)epoch 7-2; .*allow_non_restored_state=True.*added: total"):
        fit.check(allow_non_restored_state=False)
    fit.check(allow_non_restored_state=True)


def test_output_that_is_not_committed_is_never_dropped() -> None:
    fit = compare(plan(out="elsewhere"), manifest(), unsettled=True)
    with pytest.raises(ProgramDoesNotFit, match="cannot be dropped: out, with output that is not committed yet"):
        fit.check(allow_non_restored_state=True)
    compare(plan(out="elsewhere"), manifest(), unsettled=False).check(allow_non_restored_state=False)


def test_an_operator_that_became_another_kind_does_not_fit_whatever_is_allowed() -> None:
    fit = compare(plan(source="count", count="numbers"), manifest(), unsettled=False)
    with pytest.raises(ProgramDoesNotFit) as error:
        fit.check(allow_non_restored_state=True)
    assert "changed: count is a source and was a keyed operator" in str(error.value)
    assert "changed: numbers is a keyed operator and was a source" in str(error.value)


def test_another_maximum_parallelism_does_not_fit() -> None:
    fit = compare(program().plan(16), manifest(), unsettled=False)
    with pytest.raises(ProgramDoesNotFit, match="the maximum parallelism is 16 and was 8"):
        fit.check(allow_non_restored_state=True)


def test_rows_in_flight_on_an_input_that_is_gone_do_not_fit() -> None:
    stray = ChannelState(ChannelId(Uid("gone"), COUNT, Partition(1), Partition(0)), (Inline(b"1"),))
    fit = compare(plan(), manifest(acknowledged(0, received=(stray,)), acknowledged(1)), unsettled=False)
    with pytest.raises(ProgramDoesNotFit, match="count has rows in flight on an input that is gone: gone -> count"):
        fit.check(allow_non_restored_state=True)
