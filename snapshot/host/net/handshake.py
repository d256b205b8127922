"""Two strangers on a connection prove to each other that they know the run's secret; no I/O.

Invariant: the secret is never sent, nothing that a peer says is interpreted before it has proved that it
knows the secret, and each side reads exactly the bytes of the handshake, so that what follows is still in the socket.

    caller -> host   greeting: magic 8, version 1, role 1, nonce 32
    host -> caller   greeting
    caller -> host   proof 32, length of the kind 2, kind
    host -> caller   proof 32, accepted or not 1, length of the reason 2, reason

A proof is the HMAC-SHA-256, with the secret as its key, of who proves it, the version, both nonces, the kind and,
for the host, its answer; with TLS the key comes from the secret and both certificates. As every nonce is fresh,
recorded bytes prove nothing; as a proof names who proves it, neither does a proof that is sent back. The host proves
nothing to who has not.

Without TLS the connection is not encrypted afterwards. What steers the job on it is sealed with keys that are drawn
from the secret, both nonces and the kind (`snapshot.cut.seals`): the messages between driver and processes, beats,
and on channels markers, watermarks, ends and allowances. So a stranger on the path, without the secret, can run
no code and move no marker. Such a person can read all that is sent, passwords in the program and in `storage_options`
included, can change rows on channels and the last words of a process, and can break connections. TLS protects these,
too.
"""

from __future__ import annotations

import hmac
import struct
from enum import Enum, auto
from typing import Final

from snapshot.cut.seals import Seals
from snapshot.host.net.connection_kinds import MAX_KIND, ConnectionKind, UnusableKind, kind_bytes, parse_kind
from statebackend.errors import JobError

VERSION: Final = 2
NONCE_SIZE: Final = 32
LEAST_SECRET: Final = 16
MAX_REASON: Final = 4096

_MAGIC = b"epochcut"
_CALLER, _HOST = b"c", b"h"
_SEALING = b"s"
"""The role that a proof names, so that no proof is ever a key."""
_PROOF = 32
_TLS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of an alert and of a handshake of TLS."""
_GREETING = struct.Struct(f">{len(_MAGIC)}sBc{NONCE_SIZE}s")
_CLAIM = struct.Struct(f">{_PROOF}sH")
_ANSWER = struct.Struct(f">{_PROOF}sBH")


class HandshakeRefused(JobError):
    """The connection is to be closed. The text is for the log, and says what the peer did."""


class StrangeBytes(HandshakeRefused):
    """The peer speaks something else."""


class OtherVersion(HandshakeRefused):
    """The peer speaks another version of this protocol."""


class WrongSecret(HandshakeRefused):
    """The peer does not know the secret; or an attacker repeats recorded messages."""


class OverLongKind(HandshakeRefused):
    """The peer announces more than a kind, or an answer, may have."""


class MalformedKind(HandshakeRefused):
    """The peer knows the secret, and what it wants makes no sense."""


class TurnedAway(HandshakeRefused):
    """The host knows the secret, and does not want this connection; the text is its reason."""


class _Step(Enum):
    GREETING = auto()
    HEAD = auto()
    REST = auto()
    JUDGEMENT = auto()
    OVER = auto()


class _Side:
    """The base of both sides: it puts the bytes of the next step together, and asks for no byte more."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        if len(secret) < LEAST_SECRET:
            raise ValueError(f"a secret has {LEAST_SECRET} bytes at least, not {len(secret)}")
        if len(nonce) != NONCE_SIZE:
            raise ValueError(f"a nonce has {NONCE_SIZE} bytes, not {len(nonce)}")
        self._secret = secret
        self._nonce = nonce
        self._session = b""
        self._step = _Step.GREETING
        self._needed = _GREETING.size
        self._arrived = bytearray()
        self._nonces = b""
        self.parting = b""
        """The bytes to send after a refusal, before the connection is closed."""

    @property
    def wanted(self) -> int:
        """Return how many bytes to read from the peer at most; 0 if it is our turn, or the handshake is over."""
        return self._needed - len(self._arrived)

    @property
    def was_greeted(self) -> bool:
        """True if the peer's greeting has come; a caller answers it with its proof."""
        return self._step is not _Step.GREETING

    def bind(self, session: bytes) -> None:
        """Let the proofs hold for this session of TLS alone, before any is made; see `TlsSocket.session`."""
        self._session = session

    def _whole(self, arrived: bytes) -> bytes | None:
        """Return the bytes of this step once all have arrived, None before; raise `StrangeBytes` if they are wrong."""
        if self._step in (_Step.JUDGEMENT, _Step.OVER) or len(arrived) > self.wanted:
            raise StrangeBytes("it sent more than was its turn to say")
        self._arrived += arrived
        if self._step is _Step.GREETING and not _MAGIC.startswith(self._arrived[: len(_MAGIC)]):
            tls = "; that is TLS, which is off in this run" if self._arrived.startswith(_TLS) else ""
            raise StrangeBytes(f"it does not speak our protocol; it began with {bytes(self._arrived[:16])!r}{tls}")
        if self.wanted:
            return None
        whole = bytes(self._arrived)
        self._arrived.clear()
        return whole

    def _expect(self, step: _Step, needed: int) -> None:
        self._step, self._needed = step, needed

    def _peer_nonce(self, greeting: bytes, role: bytes) -> bytes:
        _, version, said, nonce = _GREETING.unpack(greeting)
        if version != VERSION:
            raise OtherVersion(f"it speaks version {version} of the handshake; this program speaks version {VERSION}")
        if said != role or nonce == self._nonce:
            raise StrangeBytes("it sent back what was sent to it, or took the wrong side of the handshake")
        return bytes(nonce)

    def _greeting(self, role: bytes) -> bytes:
        return _GREETING.pack(_MAGIC, VERSION, role, self._nonce)

    def _proof(self, role: bytes, said: bytes) -> bytes:
        """Return the proof; as nonces are of fixed length, two different sayings are never the same bytes."""
        key = hmac.digest(self._secret, self._session, "sha256") if self._session else self._secret
        return hmac.digest(key, role + bytes([VERSION]) + self._nonces + said, "sha256")

    def _seals(self, own: bytes, peers: bytes, kind: bytes) -> Seals | None:
        if self._step is not _Step.OVER:
            raise ValueError("there are no keys before both sides have proved that they know the secret")
        if self._session:
            return None
        return Seals(*(self._proof(_SEALING + role, kind) for role in (own, peers)))

    def _over(self) -> None:
        self._expect(_Step.OVER, 0)


class HostHandshake(_Side):
    """The side that was connected to. Give `receive` what arrives until `kind` is there; then `accept` or `refuse`.

    `nonce` must be fresh. After a `HandshakeRefused` send its `parting` bytes, if there are any, and close.
    """

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        super().__init__(secret, nonce)
        self._claim = b""
        self._said = b""
        self.kind: ConnectionKind | None = None

    def receive(self, arrived: bytes) -> bytes:
        """Take at most `wanted` bytes and return the bytes to send; raise `HandshakeRefused` if they are wrong."""
        whole = self._whole(arrived)
        if whole is None:
            return b""
        match self._step:
            case _Step.GREETING:
                return self._greet(whole)
            case _Step.HEAD:
                length = _CLAIM.unpack(whole)[1]
                if length > MAX_KIND:
                    raise OverLongKind(f"it announced a kind of {length} bytes; at most {MAX_KIND} are read")
                self._claim = whole
                self._expect(_Step.REST, length)
                return self.receive(b"") if not length else b""
            case _:
                self._check(whole)
                return b""

    def accept(self) -> bytes:
        """Return the bytes that say yes, which end the handshake."""
        return self._answer(b"", accepted=True)

    @property
    def seals(self) -> Seals | None:
        """Return the keys for what follows, once the handshake is over; None with TLS, which has its own."""
        return self._seals(_HOST, _CALLER, self._said)

    def refuse(self, reason: str) -> bytes:
        """Return the bytes to send before the connection is closed; `reason` is for the other side's log."""
        return self._answer(reason.encode()[:MAX_REASON], accepted=False)

    def _greet(self, greeting: bytes) -> bytes:
        try:
            nonce = self._peer_nonce(greeting, _CALLER)
        except OtherVersion:
            self.parting = self._greeting(_HOST)  # so that the other side can say what is wrong as well
            raise
        self._nonces = nonce + self._nonce
        self._expect(_Step.HEAD, _CLAIM.size)
        return self._greeting(_HOST)

    def _check(self, said: bytes) -> None:
        proof = _CLAIM.unpack(self._claim)[0]
        if not hmac.compare_digest(proof, self._proof(_CALLER, said)):
            raise WrongSecret("it could not prove that it knows the run's secret")
        self._said = said
        self._expect(_Step.JUDGEMENT, 0)
        try:
            self.kind = parse_kind(said)
        except UnusableKind as error:
            self.parting = self.refuse(str(error))
            raise MalformedKind(f"it knows the secret, but {error}") from error

    def _answer(self, reason: bytes, *, accepted: bool) -> bytes:
        if self._step is not _Step.JUDGEMENT:
            raise ValueError("there is nothing to accept or refuse: the peer has not proved that it knows the secret")
        self._over()
        said = struct.pack(">I", len(self._said)) + self._said + bytes([accepted]) + reason
        return _ANSWER.pack(self._proof(_HOST, said), accepted, len(reason)) + reason


class CallerHandshake(_Side):
    """The side that connects. Send `greeting`, give `receive` what arrives, until `accepted`.

    `nonce` must be fresh. After a `HandshakeRefused` close the connection.
    """

    def __init__(self, secret: bytes, nonce: bytes, kind: ConnectionKind) -> None:
        super().__init__(secret, nonce)
        self._kind = kind_bytes(kind)
        self._head = b""
        self.accepted = False

    @property
    def greeting(self) -> bytes:
        """Return the first bytes to send."""
        return self._greeting(_CALLER)

    @property
    def seals(self) -> Seals | None:
        """Return the keys for what follows, once the handshake is over; None with TLS, which has its own."""
        return self._seals(_CALLER, _HOST, self._kind)

    def receive(self, arrived: bytes) -> bytes:
        """Take at most `wanted` bytes and return the bytes to send; raise `HandshakeRefused` if they are wrong."""
        whole = self._whole(arrived)
        if whole is None:
            return b""
        match self._step:
            case _Step.GREETING:
                self._nonces = self._nonce + self._peer_nonce(whole, _HOST)
                self._expect(_Step.HEAD, _ANSWER.size)
                return _CLAIM.pack(self._proof(_CALLER, self._kind), len(self._kind)) + self._kind
            case _Step.HEAD:
                length = _ANSWER.unpack(whole)[2]
                if length > MAX_REASON:
                    raise OverLongKind(f"it announced an answer of {length} bytes; at most {MAX_REASON} are read")
                self._head = whole
                self._expect(_Step.REST, length)
                return self.receive(b"") if not length else b""
            case _:
                self._check(whole)
                return b""

    def _check(self, reason: bytes) -> None:
        proof, accepted, _ = _ANSWER.unpack(self._head)
        said = struct.pack(">I", len(self._kind)) + self._kind + bytes([accepted]) + reason
        if not hmac.compare_digest(proof, self._proof(_HOST, said)):
            raise WrongSecret("it could not prove that it knows the run's secret")
        self._over()
        if not accepted:
            raise TurnedAway(reason.decode(errors="replace"))
        self.accepted = True
