"""Both sides prove the secret, or the connection ends with a reason; nothing is understood before the proof."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.seals import Seals
from snapshot.host.net.connection_kinds import (
    MAX_KIND,
    ChannelOf,
    CommandOf,
    ConnectionKind,
    ControlOf,
    HeartbeatOf,
    LastWordsOf,
    PeerOf,
    UnusableKind,
    kind_bytes,
    parse_kind,
)
from snapshot.host.net.handshake import (
    MAX_REASON,
    NONCE_SIZE,
    CallerHandshake,
    HandshakeRefused,
    HostHandshake,
    MalformedKind,
    OtherVersion,
    OverLongKind,
    StrangeBytes,
    TurnedAway,
    WrongSecret,
)
from snapshot.ids import ChannelId, Copy, Peering, Replica
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.readable import readable

SECRET = b"s" * 32
CONTROL = ControlOf("w")
GREETING = 8 + 1 + 1 + NONCE_SIZE

names = st.text(max_size=30)
numbers = st.integers(0, 2**32 - 1)
channels = st.builds(ChannelId, names.map(Uid), names.map(Uid), numbers.map(Partition), numbers.map(Partition), numbers)
copies = st.builds(Copy, channels, numbers.map(Replica), numbers.map(Replica))
peerings = st.builds(Peering, numbers.map(Partition), numbers.map(Replica), numbers.map(Replica))
incarnations = st.builds(Incarnation, numbers.map(Generation), numbers.map(Attempt))
kinds: st.SearchStrategy[ConnectionKind] = (
    st.builds(ControlOf, names)
    | st.builds(HeartbeatOf, names)
    | st.builds(LastWordsOf, names)
    | st.builds(CommandOf, names)
    | st.builds(ChannelOf, copies, incarnations)
    | st.builds(PeerOf, peerings, incarnations)
)
secrets = st.binary(min_size=16, max_size=40)
nonces = st.binary(min_size=NONCE_SIZE, max_size=NONCE_SIZE)


def host(secret: bytes = SECRET, nonce: bytes = b"h" * NONCE_SIZE) -> HostHandshake:
    return HostHandshake(secret, nonce)


def caller(secret: bytes = SECRET, nonce: bytes = b"c" * NONCE_SIZE, kind: ConnectionKind = CONTROL) -> CallerHandshake:
    return CallerHandshake(secret, nonce, kind)


def told(side: HostHandshake | CallerHandshake, sent: bytes, step: int = 10_000) -> bytes:
    """What a side says to these bytes, of which it reads no more than it wants, in pieces of at most `step`."""
    said = b""
    while sent:
        wanted = min(side.wanted, step)
        assert wanted, "it is not its turn to read"
        said += side.receive(sent[:wanted])
        sent = sent[wanted:]
    return said


def proved(a: CallerHandshake, b: HostHandshake, step: int = 10_000) -> None:
    told(b, told(a, told(b, a.greeting, step), step), step)


@given(kinds, secrets, nonces, nonces, st.integers(1, 200))
def test_both_sides_agree_on_the_purpose_whatever_the_pieces(
    kind: ConnectionKind, secret: bytes, ours: bytes, theirs: bytes, step: int
) -> None:
    if ours == theirs:
        return
    a, b = caller(secret, ours, kind), host(secret, theirs)
    proved(a, b, step)
    assert b.kind == kind
    assert [a.accepted, told(a, b.accept(), step), a.accepted] == [False, b"", True]
    assert a.wanted == b.wanted == 0


def seals_of(a: CallerHandshake, b: HostHandshake) -> tuple[Seals, Seals]:
    """The keys of both ends after the handshake."""
    proved(a, b)
    told(a, b.accept())
    assert a.seals is not None
    assert b.seals is not None
    return a.seals, b.seals


@given(kinds, secrets)
def test_afterwards_both_have_the_same_two_keys_one_for_each_direction(kind: ConnectionKind, secret: bytes) -> None:
    a, b = seals_of(caller(secret, kind=kind), host(secret))
    assert (a.speaking, a.hearing) == (b.hearing, b.speaking)
    assert a.speaking != a.hearing
    assert len(a.speaking) == len(a.hearing) == 32


def test_no_two_connections_have_a_key_in_common() -> None:
    pairs = [
        seals_of(caller(), host()),
        seals_of(caller(nonce=b"C" * NONCE_SIZE), host()),
        seals_of(caller(), host(nonce=b"H" * NONCE_SIZE)),
        seals_of(caller(kind=HeartbeatOf("w")), host()),
        seals_of(caller(b"S" * 32), host(b"S" * 32)),
    ]
    keys = [key for a, _ in pairs for key in (a.speaking, a.hearing)]
    assert len(set(keys)) == 10


def test_there_are_no_keys_before_both_have_proved_the_secret_and_none_with_tls() -> None:
    a, b = caller(), host()
    for side in (a, b):
        with pytest.raises(ValueError, match="before both sides have proved"):
            _ = side.seals
    for side in (a, b):
        side.bind(b"a session of TLS")
    proved(a, b)
    with pytest.raises(ValueError, match="before both sides have proved"):
        _ = b.seals
    told(a, b.accept())
    assert a.seals is b.seals is None


@given(st.text(max_size=300))
def test_the_caller_hears_why_it_is_turned_away(reason: str) -> None:
    a, b = caller(), host()
    proved(a, b)
    with pytest.raises(TurnedAway) as refusal:
        told(a, b.refuse(reason))
    assert str(refusal.value) == readable(reason)
    assert not a.accepted


def test_a_reason_that_is_too_long_is_cut_off() -> None:
    a, b = caller(), host()
    proved(a, b)
    with pytest.raises(TurnedAway, match=rf"^x{{{MAX_REASON}}}$"):
        told(a, b.refuse("x" * 70_000))


def test_a_host_refuses_who_has_another_secret_before_it_looks_at_the_purpose() -> None:
    a, b = caller(b"other" * 8), host()
    with pytest.raises(WrongSecret):
        proved(a, b)
    assert b.kind is None
    assert b.parting == b""
    with pytest.raises(ValueError, match="not proved"):
        b.accept()


def test_a_caller_refuses_a_host_that_has_another_secret_and_claims_to_accept() -> None:
    a, b, impostor = caller(), host(), host(b"other" * 8)
    claim = told(a, told(b, a.greeting))
    told(impostor, caller(b"other" * 8).greeting)
    told(b, claim)
    forged = bytes(32) + b.accept()[32:]
    with pytest.raises(WrongSecret):
        told(a, forged)
    assert not a.accepted


def test_what_was_recorded_proves_nothing_to_a_host_with_a_fresh_nonce() -> None:
    a, b = caller(), host()
    claim = told(a, told(b, a.greeting))
    again = host(nonce=b"H" * NONCE_SIZE)
    told(again, a.greeting)
    with pytest.raises(WrongSecret):
        told(again, claim)


def test_a_recorded_answer_proves_nothing_to_a_caller_with_a_fresh_nonce() -> None:
    a, b = caller(), host()
    greeting = told(b, a.greeting)
    told(b, told(a, greeting))
    answer = b.accept()
    again = caller(nonce=b"C" * NONCE_SIZE)
    told(again, greeting)
    with pytest.raises(WrongSecret):
        told(again, answer)


def test_what_a_side_said_proves_nothing_when_it_is_sent_back() -> None:
    a = caller()
    with pytest.raises(StrangeBytes, match="sent back"):
        told(a, a.greeting)
    a = caller()
    claim = told(a, told(host(), a.greeting))
    with pytest.raises(HandshakeRefused):
        told(a, claim)
    # An attacker that takes the host's nonce for its own, on a second connection, does not get the caller's proof.
    b = host()
    mine = a.greeting[:10] + b"h" * NONCE_SIZE
    with pytest.raises(StrangeBytes, match="sent back"):
        told(b, mine)


@given(st.integers(0, 8 * 200 - 1))
def test_a_flipped_bit_anywhere_is_refused(bit: int) -> None:
    a, b = caller(), host()
    parts = [bytearray(a.greeting)]
    parts.append(bytearray(told(b, bytes(parts[0]))))
    parts.append(bytearray(told(a, bytes(parts[1]))))
    told(b, bytes(parts[2]))
    parts.append(bytearray(b.accept()))
    flat = [(part, at) for part, content in enumerate(parts) for at in range(len(content))]
    part, at = flat[bit // 8 % len(flat)]
    parts[part][at] ^= 1 << bit % 8
    a, b = caller(), host()
    sides: list[HostHandshake | CallerHandshake] = [b, a]
    with suppress(HandshakeRefused):  # if nothing is refused, one waits for bytes that never come
        for number, content in enumerate(parts):
            told(sides[number % 2], bytes(content))
            if number == 2 and b.kind is not None:
                b.accept()
    assert not a.accepted


@given(st.binary(min_size=1, max_size=5_000))
def test_random_bytes_are_refused_by_name_or_waited_for_and_nothing_is_said_to_them(stream: bytes) -> None:
    b = host()
    said = b""
    try:
        while stream:
            said += b.receive(stream[: b.wanted])
            stream = stream[b.wanted or 1 :]
    except StrangeBytes:
        pass
    assert said == b""
    assert b.kind is None


@given(st.binary(min_size=1, max_size=5_000))
def test_random_bytes_behind_a_greeting_prove_nothing(stream: bytes) -> None:
    b = host()
    told(b, caller().greeting)
    try:
        while stream:
            wanted = b.wanted
            assert b.receive(stream[:wanted]) == b""
            stream = stream[wanted:]
    except (WrongSecret, OverLongKind):
        pass
    assert b.kind is None


def test_a_web_browser_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(StrangeBytes, match="GET / HTTP"):
        told(host(), b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" + bytes(10))


def test_another_version_is_named_on_both_sides() -> None:
    b = host()
    greeting = bytearray(caller().greeting)
    greeting[8] = 9
    with pytest.raises(OtherVersion, match="version 9"):
        told(b, bytes(greeting))
    newer = bytearray(b.parting)
    newer[8] = 9
    with pytest.raises(OtherVersion, match="version 9"):
        told(caller(), bytes(newer))


def test_no_more_is_read_than_a_purpose_may_have() -> None:
    b = host()
    told(b, caller().greeting)
    with pytest.raises(OverLongKind, match="65535 bytes"):
        told(b, bytes(32) + b"\xff\xff")
    with pytest.raises(UnusableKind, match="use shorter names"):
        caller(kind=ControlOf("w" * MAX_KIND))


def test_who_says_more_than_is_its_turn_is_refused() -> None:
    b = host()
    with pytest.raises(StrangeBytes):
        b.receive(caller().greeting + b"more")
    a, b = caller(), host()
    proved(a, b)
    assert b.wanted == 0
    with pytest.raises(StrangeBytes):
        b.receive(b"more")


def test_a_purpose_without_sense_is_refused_after_the_proof_and_the_caller_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snapshot.host.net.handshake.kind_bytes", lambda kind: b'["telephone"]')
    a, b = caller(), host()
    with pytest.raises(MalformedKind, match="telephone"):
        proved(a, b)
    with pytest.raises(TurnedAway, match="telephone"):
        told(a, b.parting)


@given(
    st.binary(max_size=80)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
    | st.lists(st.just("channel") | names | numbers | st.integers() | st.booleans(), min_size=8, max_size=11).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_a_purpose_is_read_as_it_was_written_or_refused(sent: bytes) -> None:
    try:
        kind = parse_kind(sent)
    except UnusableKind:
        return
    assert parse_kind(kind_bytes(kind)) == kind


@pytest.mark.parametrize(
    "sent",
    [b"[" * MAX_KIND, b"9" * MAX_KIND, b'["control", 1]', b'["channel","a","b",0,0,0,0,0,1,true]', b"\xff", b"{}"],
    ids=["deep", "large number", "no name", "a truth", "no text", "no list"],
)
def test_a_strange_purpose_is_refused_by_name(sent: bytes) -> None:
    with pytest.raises(UnusableKind):
        parse_kind(sent)


def test_a_secret_or_a_nonce_of_a_wrong_length_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="16 bytes at least"):
        host(b"short")
    with pytest.raises(ValueError, match="32 bytes"):
        host(nonce=os.urandom(8))
