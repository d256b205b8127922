"""Manifests: what was written is what is read, for good; anything else is refused with the file and the place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Watermark
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.tree.frozen_json import NULL, Json, JsonLike, NotJson
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    DamagedManifest,
    ForeignJob,
    Inline,
    InvalidManifest,
    JournalEnd,
    Manifest,
    ManifestError,
    ManifestKind,
    NewerManifest,
    OperatorSnapshot,
    PointsOutside,
    SplitPosition,
    StoredFile,
    SubtaskSnapshot,
    check_job,
    only_carries,
)
from snapshot.tree.manifest_json import decode, decode_subtask, digest, encode, encode_subtask
from statebackend.files import FileKind, FileRef, FileSet, FileSetError
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Incarnation, KeyGroup, Partition, Uid
from statebackend.keygroups import KeyGroupRange, range_of

GOLDEN = Path(__file__).parent / "golden"
WHERE = "epochs/17-2-a1b2/manifest.json"


def epoch(number: int, generation: int = 2) -> Epoch:
    return Epoch(Generation(generation), number)


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


def state_file(name: str, made: Epoch, kind: FileKind, *ranges: KeyGroupRange) -> FileRef:
    return FileRef(f"shared/{name}.sst", ranges, made, kind, 4096, "sha256:0123456789abcdef")


# --- one manifest with something of everything, of two partitions that were one before

SHARED = state_file("1-0-0-0", epoch(9, 1), FileKind.DELTA, groups(0, 3), groups(4, 8))
COUNT_0 = SubtaskSnapshot(
    partition=Partition(0),
    state=FileSet.of(
        groups(0, 4),
        [
            replace(SHARED, ranges=(groups(0, 3),)),
            state_file("2-0-1-4", epoch(16), FileKind.BASE, groups(3, 4)),
            state_file("2-0-1-5", epoch(17), FileKind.DELTA, groups(0, 4)),
        ],
    ),
    watermark=Watermark(1_700_000_000_000, idle=False),
    channels=(
        ChannelState(
            ChannelId(Uid("clicks"), Uid("count"), Partition(0), Partition(0)),
            (Inline(b"\x00rows\xff"), StoredFile("shared/2-0-1-6.channel", 70_000, "crc32:0badcafe")),
        ),
        ChannelState(ChannelId(Uid("clicks"), Uid("count"), Partition(1), Partition(0), port=1), ()),
    ),
)
COUNT_1 = SubtaskSnapshot(
    partition=Partition(1),
    state=FileSet(groups(4, 8), (replace(SHARED, ranges=(groups(4, 8),)),)),
    watermark=Watermark(-(2**63), idle=True),
)
OUT = SubtaskSnapshot(
    partition=Partition(0),
    committables=(
        Committable(
            TransactionId("clicks/out/2-1-0-7"), epoch(16), CommitPayload(Json.of({"producer": "out-0", "seq": [1, 2]}))
        ),
        Committable(
            TransactionId("clicks/out/2-1-0-8"),
            epoch(17),
            CommitPayload(NULL, (StoredFile("shared/2-0-1-8.staged", 12, "crc32:00000000"),)),
        ),
    ),
)
CLICKS = (
    SubtaskSnapshot(
        Partition(0),
        positions=(SplitPosition("clicks-0", Json.of(4711)), SplitPosition('Ω "quoted"', Json.of({"offset": 1.5}))),
    ),
    SubtaskSnapshot(Partition(1)),
)
RICH = Manifest(
    job=JobId("clicks"),
    epoch=epoch(17),
    attempt=Attempt(1),
    kind=ManifestKind.SAVEPOINT,
    max_parallelism=8,
    created_at=1_700_000_001_234,
    operators=(
        OperatorSnapshot(Uid("clicks"), 2, CLICKS, enumerator=Json.of({"unassigned": ["clicks-2"]})),
        OperatorSnapshot(Uid("count"), 2, (COUNT_0, COUNT_1)),
        OperatorSnapshot(Uid("out"), 1, (OUT,)),
    ),
    parent=epoch(9, 1),
)


def test_the_golden_manifest_of_version_1_stays_readable_and_means_what_it_meant() -> None:
    assert decode((GOLDEN / "manifest-v1.json").read_bytes(), "manifest-v1.json") == RICH


def test_a_manifest_is_written_as_the_golden_one_of_the_newest_version() -> None:
    assert encode(RICH) == (GOLDEN / "manifest-v1.json").read_bytes()


def test_how_far_the_journal_had_come_is_read_as_it_was_written() -> None:
    ends = (JournalEnd(57, epoch(16)), JournalEnd(1, NO_EPOCH))
    for number, end in enumerate(ends):
        golden = GOLDEN / f"manifest-v1-journal-{number}.json"
        assert decode(golden.read_bytes(), golden.name) == replace(RICH, journal=end)
        assert encode(replace(RICH, journal=end)) == golden.read_bytes()
    with pytest.raises(DamagedManifest):
        decode(encode(replace(RICH, journal=ends[0])).replace(b'"number":57', b'"number":58'), WHERE)


def test_a_manifest_refers_to_the_files_of_state_of_channels_and_of_staged_rows() -> None:
    names = ["1-0-0-0.sst", "2-0-1-4.sst", "2-0-1-5.sst", "2-0-1-6.channel", "2-0-1-8.staged"]
    assert RICH.references() == {f"shared/{name}" for name in names}


BROADCAST_FILE = StoredFile("shared/2-0-1-9.channel", 300_000, "crc32:0badcafe")
RULES = replace(RICH.operators[1], broadcast=BROADCAST_FILE)


@pytest.mark.parametrize("broadcast", [Inline(b"rules\x00"), Inline(b""), BROADCAST_FILE])
def test_broadcast_state_is_kept_once_for_all_partitions(broadcast: StoredFile | Inline) -> None:
    manifest = with_operator(1, replace(RULES, broadcast=broadcast))()
    assert decode(encode(manifest), WHERE) == manifest
    assert decode(encode(manifest), WHERE) != RICH


def test_a_manifest_refers_to_the_files_of_broadcast_state() -> None:
    assert with_operator(1, RULES)().references() == RICH.references() | {BROADCAST_FILE.path}


@pytest.mark.parametrize(
    ("sealed_in", "held", "carries"),
    [(17, False, False), (17, True, True), (16, False, True), (16, True, True)],
    ids=["its own", "its own, held", "an earlier one's", "an earlier one's, held"],
)
def test_an_epoch_has_output_if_it_has_some_of_its_own_that_is_to_be_seen(
    sealed_in: int, held: bool, carries: bool
) -> None:
    committable = Committable(TransactionId("t"), epoch(sealed_in), CommitPayload(NULL, held=held))
    bare = [
        replace(operator, subtasks=tuple(replace(part, committables=()) for part in operator.subtasks))
        for operator in RICH.operators
    ]
    first = bare[0]
    with_it = replace(first, subtasks=(replace(first.subtasks[0], committables=(committable,)), *first.subtasks[1:]))
    assert only_carries(replace(RICH, operators=(with_it, *bare[1:])), epoch(16)) is carries
    assert not only_carries(replace(RICH, operators=tuple(bare)), epoch(16))


def test_a_manifest_says_who_made_it() -> None:
    assert RICH.incarnation == Incarnation(Generation(2), Attempt(1))


# --- round trips

small = st.integers(0, 10**6)
json_values: st.SearchStrategy[JsonLike] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
jsons = json_values.map(Json.of)
checksums = st.sampled_from(["crc32:0badcafe", "sha256:00"])
texts = st.text(min_size=1)
past = st.integers(0, 16).map(lambda number: epoch(number, 1 if number < 10 else 2))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    most = draw(st.integers(1, 8))
    uids = sorted(draw(st.lists(texts, max_size=3, unique=True)))
    names = (f"{number}" for number in range(10_000))
    operators = tuple(draw(operator_snapshots(Uid(uid), most, names.__next__)) for uid in uids)
    return Manifest(
        job=JobId(draw(texts)),
        epoch=epoch(17),
        attempt=Attempt(draw(small)),
        kind=draw(st.sampled_from(ManifestKind)),
        max_parallelism=most,
        created_at=draw(small),
        operators=operators,
        parent=draw(st.just(NO_EPOCH) | past),
    )


@st.composite
def operator_snapshots(draw: st.DrawFn, uid: Uid, most: int, name: Callable[[], str]) -> OperatorSnapshot:
    parallelism = draw(st.integers(1, most))
    ranges = [range_of(Partition(partition), parallelism, most) for partition in range(parallelism)]
    keyed = draw(st.booleans())
    subtasks = tuple(
        draw(subtask_snapshots(uid, Partition(partition), own if keyed else None, name))
        for partition, own in enumerate(ranges)
    )
    broadcast = draw(st.none() | st.binary(max_size=5).map(Inline) | small.map(lambda size: stored(name(), size)))
    return OperatorSnapshot(uid, parallelism, subtasks, draw(jsons), broadcast)


def stored(path: str, size: int) -> StoredFile:
    return StoredFile(path, size, "crc32:0badcafe")


@st.composite
def subtask_snapshots(
    draw: st.DrawFn, uid: Uid, partition: Partition, own: KeyGroupRange | None, name: Callable[[], str]
) -> SubtaskSnapshot:
    def files(most: int) -> tuple[StoredFile, ...]:
        return tuple(StoredFile(name(), draw(small), draw(checksums)) for _ in range(draw(st.integers(0, most))))

    senders = sorted(draw(st.sets(st.integers(0, 9).map(Partition), max_size=2)))
    return SubtaskSnapshot(
        partition=partition,
        state=None if own is None else FileSet.of(own, draw(state_files(own, name))),
        positions=tuple(
            SplitPosition(split, draw(jsons)) for split in sorted(draw(st.lists(st.text(), max_size=2, unique=True)))
        ),
        watermark=draw(st.none() | st.builds(Watermark, st.integers(-(2**63), 2**63 - 1), st.booleans())),
        channels=tuple(
            ChannelState(ChannelId(uid, uid, sender, partition), (*files(1), Inline(draw(st.binary(max_size=5)))))
            for sender in senders
        ),
        committables=tuple(
            Committable(TransactionId(name()), draw(past), CommitPayload(draw(jsons), files(2), draw(st.booleans())))
            for _ in range(draw(st.integers(0, 2)))
        ),
    )


@st.composite
def state_files(draw: st.DrawFn, own: KeyGroupRange, name: Callable[[], str]) -> list[FileRef]:
    return [
        FileRef(name(), (own,), draw(past), FileKind.DELTA, draw(small), draw(checksums))
        for _ in range(draw(st.integers(0, 3)))
    ]


@given(manifests())
def test_what_is_read_is_what_was_written(manifest: Manifest) -> None:
    data = encode(manifest)
    assert decode(data, WHERE) == manifest
    assert json.loads(data)["body"]["job"] == manifest.job


@given(st.integers(0, len(encode(RICH)) - 1), st.integers(1, 255))
def test_a_manifest_with_one_changed_byte_is_refused(at: int, change: int) -> None:
    data = bytearray(encode(RICH))
    data[at] ^= change
    with pytest.raises(ManifestError, match=WHERE):
        decode(bytes(data), WHERE)


def test_a_changed_body_is_told_by_its_checksum() -> None:
    with pytest.raises(DamagedManifest, match="its checksum does not match, so it was changed or cut short"):
        decode(encode(RICH).replace(b'"size":4096', b'"size":4097'), WHERE)


def test_a_manifest_with_something_after_its_end_is_refused() -> None:
    for tail in (b"}", b"\n", b"}\n", b" "):
        with pytest.raises(DamagedManifest):
            decode(encode(RICH) + tail, WHERE)
    with pytest.raises(DamagedManifest, match="not in the form in which manifests are written"):
        decode(encode(RICH)[:-2] + b" }", WHERE)


def test_a_manifest_that_was_cut_short_anywhere_is_refused() -> None:
    data = encode(RICH)
    for kept in range(len(data)):
        with pytest.raises(DamagedManifest, match=f"{WHERE} is damaged"):
            decode(data[:kept], WHERE)


@given(st.binary())
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedManifest):
        decode(data, WHERE)


def test_the_bytes_do_not_depend_on_the_order_in_which_a_dict_was_filled() -> None:
    assert Json.of({"a": 1, "b": {"c": 2, "d": 3}}) == Json.of({"b": {"d": 3, "c": 2}, "a": 1})


# --- a participant's part, as it goes to the driver


def decoded(part: SubtaskSnapshot) -> SubtaskSnapshot:
    return decode_subtask(encode_subtask(part), "the acknowledgement")


def test_a_manifest_of_parts_that_were_sent_is_the_same_as_of_those_that_were_made() -> None:
    sent = tuple(replace(one, subtasks=tuple(map(decoded, one.subtasks))) for one in RICH.operators)
    manifest = replace(RICH, operators=sent)
    assert all(part.written is not None for operator in sent for part in operator.subtasks)
    assert manifest == RICH
    assert encode(manifest) == encode(RICH)
    assert manifest.references() == RICH.references()


def test_a_changed_copy_of_a_part_that_was_sent_is_written_as_it_is_now() -> None:
    copy = replace(decoded(COUNT_1), watermark=Watermark(1_700_000_000_999))
    assert copy.written is None
    assert decoded(copy) == copy != COUNT_1
    assert b"1700000000999" in encode_subtask(copy)


@given(data=st.binary() | st.builds(lambda cut: encode_subtask(COUNT_0)[:cut], st.integers(0, 100)))
def test_a_part_that_is_not_as_it_was_sent_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match="the acknowledgement is damaged"):
        decode_subtask(data, "the acknowledgement")


def test_a_part_in_another_form_is_refused_as_it_would_make_the_manifest_unreadable() -> None:
    spaced = encode_subtask(COUNT_0).replace(b",", b", ")
    with pytest.raises(DamagedManifest, match="not in the form in which manifests are written"):
        decode_subtask(spaced, "the acknowledgement")


def test_a_part_that_points_outside_its_tree_is_refused() -> None:
    outside = encode_subtask(COUNT_0).replace(b"shared/", b"../shared/")
    with pytest.raises(PointsOutside, match="the acknowledgement points outside its tree"):
        decode_subtask(outside, "the acknowledgement")


# --- damage with a good checksum: a document that somebody else made up


def made_up(old: str, new: str) -> bytes:
    body = json.dumps(json.loads(encode(RICH))["body"], separators=(",", ":"))
    assert old in body
    return sealed(body.replace(old, new, 1))


def sealed(body: str) -> bytes:
    header = f'{{"format":"epochcut.manifest","version":1,"checksum":"{digest(body.encode())}","body":'
    return f"{header}{body}}}\n".encode()


FIRST_FILE = "body.operators[1].subtasks[0].files[0]"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"job":"clicks",', "", "body: missing fields ['job'], unknown fields []"),
        ('"job":"clicks"', '"job":"clicks","color":1', "body: missing fields [], unknown fields ['color']"),
        ('"job":"clicks"', '"job":7', "body.job: expected a text, found 7"),
        ('"job":"clicks"', '"job":"x","job":"clicks"', "not in the form in which manifests are written"),
        ('"created_at":1700000001234', '"created_at":1.7e12', "body.created_at: expected a whole number"),
        ('"attempt":1', '"attempt":true', "body.attempt: expected a whole number, found True"),
        ('"epoch":"17-2"', '"epoch":"17"', "'17' is not an epoch"),
        ('"kind":"savepoint"', '"kind":"backup"', "'backup' is not a valid ManifestKind"),
        ('"max_parallelism":8', '"max_parallelism":16', "count/0 has key groups [0, 4) instead of [0, 8)"),
        ('"kind":"delta"', '"kind":"diff"', f"{FIRST_FILE}: 'diff' is not a valid FileKind"),
        ('"size":4096', '"size":-1', f"{FIRST_FILE}: shared/1-0-0-0.sst has a size of -1 bytes"),
        ('"sha256:0123456789abcdef"', '"good"', f"{FIRST_FILE}: shared/1-0-0-0.sst has checksum 'good'"),
        ('"key_groups":[[0,3]]', '"key_groups":[[3,0]]', f"{FIRST_FILE}.key_groups[0]: key groups [3, 0)"),
        ('"key_groups":[[0,3]]', '"key_groups":[[0,"3"]]', f"{FIRST_FILE}.key_groups[0]: expected [first, end]"),
        ('"key_groups":[[0,3]]', '"key_groups":7', f"{FIRST_FILE}.key_groups: expected a list, found 7"),
        ('"key_groups":[0,4]', '"key_groups":null', "subtasks[0]: it has files and no key groups"),
        ('"positions":{}', '"positions":[]', "subtasks[1].positions: expected an object, found []"),
        ('"idle":false', '"idle":0', "subtasks[0].watermark.idle: expected true or false, found 0"),
        ('"watermark":null', '"watermark":5', "subtasks[0].watermark: expected an object, found 5"),
        ('"AHJvd3P/"', '"AHJvd3P"', "channels[0].parts[0]: Incorrect padding"),
        ('"AHJvd3P/"', '"AHJvd3\\n"', "channels[0].parts[0]: "),
        ('{"offset":1.5}', '{"offset":NaN}', "subtasks[0]: a value cannot be written as JSON"),
        ('{"offset":1.5}', '{"offset":1.50}', "not in the form in which manifests are written"),
        ('"parallelism":2', '"parallelism":2,"broadcast":null', "operators[0].broadcast[0]: expected an object"),
        (
            '"parallelism":2',
            '"parallelism":2,"key_type":"int"',
            "operators[0].key_type: 'int' is not the name of a key",
        ),
        (
            '"parallelism":2',
            '"parallelism":2,"key_type":"' + "struct<" * 500 + '"',
            "is not the name of a key type: more than 16 structs",
        ),
        ('"parallelism":2', '"parallelism":2,"broadcast":"A"', "operators[0].broadcast[0]: "),
        ('"parallelism":2', '"parallelism":2,"broadcast":"AA=="', "not in the form in which manifests are written"),
    ],
)
def test_a_made_up_manifest_is_refused_with_the_place(old: str, new: str, complaint: str) -> None:
    with pytest.raises(DamagedManifest, match=f"{WHERE} is damaged: .*{re.escape(complaint)}"):
        decode(made_up(old, new), WHERE)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "s3://other/x.sst", "shared/../../x.sst", "shared\\\\x.sst", "file:x.sst", ""]
)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("1-0-0-0.sst", "body.operators[1].subtasks[0].files[0]"),
        ("2-0-1-6.channel", "body.operators[1].subtasks[0].channels[0].parts[1]"),
        ("2-0-1-8.staged", "body.operators[2].subtasks[0].committables[1].staged[0]"),
    ],
)
def test_a_manifest_that_points_outside_its_tree_is_refused(name: str, place: str, path: str) -> None:
    with pytest.raises(PointsOutside, match=f"{WHERE} points outside its tree: {re.escape(place)}: "):
        decode(made_up(f'"shared/{name}"', f'"{path}"'), WHERE)


def test_a_body_that_nests_without_end_is_refused() -> None:
    with pytest.raises(DamagedManifest, match="recursion"):
        decode(sealed("[" * 100_000 + "]" * 100_000), WHERE)


# --- other files


def test_a_newer_manifest_is_refused_with_both_versions_and_what_to_do() -> None:
    newer = encode(RICH).replace(b'"version":1', b'"version":12')
    with pytest.raises(
        NewerManifest, match=r"version 12 .* up to version 1; use a release of epochcut at least as new"
    ):
        decode(newer, WHERE)
    with pytest.raises(NewerManifest, match="version 2 "):
        decode(b'{ "version": 2, "format": "epochcut.manifest", "anything": [] }', WHERE)


@pytest.mark.parametrize("data", [b"{}", b"[1]", b'{"format":"epochcut.journal.entry","version":1}', b"null"])
def test_the_file_of_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match=f"{WHERE} is not a manifest"):
        decode(data, WHERE)


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"PK\x03\x04", "Ω".encode("utf-16")])
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match=f"{WHERE} is damaged: {len(data)} bytes that are not JSON"):
        decode(data, WHERE)


def test_a_manifest_that_a_tool_has_rewritten_is_refused() -> None:
    pretty = json.dumps(json.loads(encode(RICH)), indent=2).encode()
    with pytest.raises(DamagedManifest, match="its header is not in the form"):
        decode(pretty, WHERE)


def test_a_manifest_of_another_job_is_refused() -> None:
    check_job(RICH, JobId("clicks"), WHERE)
    with pytest.raises(ForeignJob, match=f"{WHERE} belongs to job 'clicks', not to 'orders'; .* fork it"):
        check_job(RICH, JobId("orders"), WHERE)


# --- the rules of a manifest


def with_operator(index: int, operator: OperatorSnapshot) -> Callable[[], Manifest]:
    operators = (*RICH.operators[:index], operator, *RICH.operators[index + 1 :])
    return lambda: replace(RICH, operators=operators)


def with_count(subtask: SubtaskSnapshot) -> Callable[[], Manifest]:
    return with_operator(1, OperatorSnapshot(Uid("count"), 2, (subtask, COUNT_1)))


def with_out(subtask: SubtaskSnapshot) -> Callable[[], Manifest]:
    return with_operator(2, OperatorSnapshot(Uid("out"), 1, (subtask,)))


assert COUNT_0.state is not None
LATER = COUNT_0.state.added(state_file("later", epoch(18), FileKind.DELTA, groups(0, 4)))
OTHER_SIZE = FileSet(groups(0, 4), (replace(SHARED, ranges=(groups(0, 3),), size=1),))
STAGED = StoredFile("shared/2-0-1-6.channel", 70_000, "crc32:0badcafe")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: replace(RICH, job=JobId("")), "without a job id"),
        (lambda: replace(RICH, epoch=NO_EPOCH), "was never triggered"),
        (lambda: replace(RICH, created_at=-1), "was never triggered"),
        (lambda: replace(RICH, parent=epoch(17)), "based on 17-2, which is not older"),
        (lambda: replace(RICH, parent=epoch(2, 3)), "begins with a later generation"),
        (lambda: replace(RICH, operators=RICH.operators[::-1]), "not ordered by uid"),
        (lambda: replace(RICH, operators=RICH.operators[:1] * 2), "one is there twice"),
        (with_operator(2, OperatorSnapshot(Uid("out"), 9, (OUT,))), "out: parallelism 9 is out of bounds"),
        (with_operator(2, OperatorSnapshot(Uid("out"), 2, (OUT,))), "out: expected each of the partitions 0 to 1 once"),
        (with_count(replace(COUNT_0, state=None)), "some have none"),
        (with_count(replace(COUNT_0, state=FileSet(groups(0, 3)))), r"count/0 has key groups \[0, 3\) instead"),
        (with_count(replace(COUNT_0, state=LATER)), "count/0 has file shared/later.sst of a later epoch, 18-2"),
        (with_count(replace(COUNT_0, state=OTHER_SIZE)), "1-0-0-0.sst is referred to twice"),
        (with_count(replace(COUNT_0, channels=COUNT_0.channels[::-1])), "channels are not in order"),
        (with_out(replace(OUT, channels=COUNT_0.channels)), "out/0 has state of channel .* which leads elsewhere"),
        (lambda: replace(OUT, positions=CLICKS[0].positions[::-1]), "partition 0: the splits are not in order"),
        (with_out(replace(OUT, committables=OUT.committables * 2)), "is referred to twice|is there twice"),
        (with_out(replace(OUT, committables=OUT.committables[:1] * 2)), "clicks/out/2-1-0-7 is there twice"),
        (
            with_out(replace(OUT, committables=(replace(OUT.committables[0], sealed_in=epoch(18)),))),
            "out/0: transaction clicks/out/2-1-0-7 was sealed after epoch 17-2",
        ),
        (
            with_out(
                replace(OUT, committables=(replace(OUT.committables[0], payload=CommitPayload(NULL, (STAGED,))),))
            ),
            "2-0-1-6.channel is referred to twice",
        ),
        (with_operator(1, replace(RULES, broadcast=STAGED)), "2-0-1-6.channel is referred to twice"),
    ],
)
def test_a_manifest_that_contradicts_itself_cannot_be_made(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(InvalidManifest, match=complaint):
        make()


def test_a_stored_file_without_a_checksum_is_refused() -> None:
    with pytest.raises(FileSetError, match="<algorithm>:<hex digits>"):
        StoredFile("shared/x.channel", 1, '","size":0')


# --- JSON values


@given(json_values)
def test_a_json_value_is_given_back_as_it_was(value: JsonLike) -> None:
    assert Json.of(value).value() == value


def test_a_json_value_stays_as_it_was_when_its_source_goes_on() -> None:
    offsets: dict[str, JsonLike] = {"0": 5}
    position = Json.of(offsets)
    offsets["0"] = 6
    assert position.value() == {"0": 5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, [{"a": {None: 1}}], {"a": b"x"}, object()])
def test_what_json_could_not_give_back_is_refused(value: JsonLike) -> None:
    with pytest.raises(NotJson):
        Json.of(value)


@pytest.mark.parametrize("text", ["", "{", '{"b":1,"a":2}', '{"a":1,"a":1}', "1 ", "NaN", "1e999"])
def test_text_that_is_not_canonical_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        Json(text)
