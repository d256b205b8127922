"""TLS on the connections of a job: what both sides show and ask for, and a socket that encrypts what it carries.

Invariant: who uses such a socket sees the same bytes in the same order as on a plain one, and none of them before the
peer has shown a certificate that the authorities signed. The key stays where it is: only its path travels. The run's
secret says which peer it is, not a host's name; what is proved with it holds for these two certificates alone
(`TlsSocket.session`), so an attacker in the middle, who has another one, cannot hand the proofs on.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Final, NoReturn

from snapshot.cut.wire import Buffer
from snapshot.host.net.event_loop import KeepingSocket
from snapshot.host.net.handshake import HandshakeRefused
from statebackend import means
from statebackend.errors import OptionError

_AT_ONCE: Final = 64 << 10
"""So much is encrypted before the kernel is asked whether it takes it, or read before it is decrypted: four records."""
_FIRST_RECORDS: Final = (20, 21, 22)
"""The first bytes with which a conversation in TLS can begin."""
_FAREWELL: Final = bytes.fromhex("15030100020246")
"""The answer to a caller that speaks something else: an alert that names the protocol."""
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ERRNO: Final = re.compile(r"^\[Errno \d+\] ")


class UnusableTls(OptionError):
    """There can be no TLS with these files on this host; the message says which, and why."""


class TlsRefused(HandshakeRefused, OSError):
    """The peer does not speak TLS, shows no certificate that is good, or did not like ours. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Encrypt all connections of a job, by TLS 1.3; both ends show a certificate and check the other's.

    Three files in PEM, which must be there on the driver's host and on every host that runs its processes, as with
    `spark.ssl.*`; their contents may differ. A relative path is taken from the working directory of each process, so
    that files can come with `spark-submit --files` on YARN. But for their paths, and the certificates that each side
    shows the other, nothing of them is sent, written or logged.
    """

    certificate: str | Path
    """The certificate of the host or the job, with those between it and an authority behind it. It is used as a
    server's and as a client's, so an extended key usage must name both. Names of hosts in it are not looked at."""
    key: str | Path
    """Its private key, without a password. Give the file mode 0600: a driver whose key other users of the host can read
    warns of it, as they could stand for a process of the job if they had the run's secret as well."""
    authorities: str | Path
    """The certificates that may have signed the other side's. Best is an authority of your own for this purpose. No
    list of revoked certificates is asked for: a lost one counts until it expires, or its authority is left out here."""

    @property
    def paths(self) -> tuple[str, str, str]:
        """Return the paths of the certificate, the key and the authorities."""
        return fspath(self.certificate), fspath(self.key), fspath(self.authorities)

    def absolute(self) -> Tls:
        """Return the same files by absolute paths, for processes with another working directory."""
        return Tls(*(str(Path(path).absolute()) for path in self.paths))

    def load(self) -> TlsSide:
        """Read the files; raise `UnusableTls` if they are missing, damaged, or do not go together."""
        return TlsSide(self)


class TlsSide:
    """The certificates that were read, for all connections of this process. A new file counts from the next start."""

    def __init__(self, tls: Tls) -> None:
        self.files = tls
        certificate, key, authorities = tls.paths
        self.warning = ""
        """The unwise property of the files, in a sentence; empty if there is none."""
        for path, what in ((certificate, "certificate"), (key, "key"), (authorities, "authorities")):
            _check_readable(path, what)
        if (mode := stat.S_IMODE(Path(key).stat().st_mode)) & 0o077:
            self.warning = f"other users of this host can read the key {key} (mode {mode:04o}); give it mode 0600"
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authorities)
        self._server.num_tickets = 0  # nobody would come back with one, and who only sends would never read it
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authorities)
        found = _CERTIFICATE.search(Path(certificate).read_bytes())
        if found is None:
            raise UnusableTls(f"{certificate} has no certificate in PEM")
        self._own = ssl.PEM_cert_to_DER_cert(found.group().decode())

    def accept(self, sock: socket.socket) -> TlsSocket:
        """Return the socket of the side that was connected to; `sock` is given up."""
        return TlsSocket(sock, self._server, self._own, server=True)

    def call(self, sock: socket.socket) -> TlsSocket:
        """Return the socket of the side that has connected, and begin the handshake; `sock` is given up."""
        return TlsSocket(sock, self._client, self._own, server=False)


class TlsSocket(KeepingSocket):
    """A connected, non-blocking socket, of which only what is below may be used to read and to send.

    The handshake goes on with each `recv`. What is sent before it is over is encrypted and sent as soon as it is.
    All that goes wrong is an `OSError`, as with any socket; a `TlsRefused` if it is for TLS's own reasons.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, own: bytes, *, server: bool) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.setblocking(False)
        self._arriving, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arriving, self._leaving, server_side=server)
        self._own = own
        self._is_server = server
        self._stands = False
        self._begun = False
        self._early = bytearray()
        self._scratch = memoryview(bytearray(_AT_ONCE))
        self._rest = memoryview(b"")  # encrypted, and not taken by the kernel
        self._refused: TlsRefused | None = None
        self._unsendable: OSError | None = None
        if not server:
            with suppress(ssl.SSLWantReadError):
                self._shake()

    # --- what the loop asks for ---------------------------------------------------------------------------------------

    @property
    def holds_arrived(self) -> bool:
        """True if a read may give bytes, or the error that ended the connection, though the kernel holds none."""
        gone = self._refused is not None or self._unsendable is not None
        return gone or bool(self._arriving.pending or self._tls.pending())

    @property
    def unsent(self) -> int:
        """Return how many encrypted bytes the kernel has not taken."""
        return len(self._rest)

    def push(self) -> None:
        """Offer the encrypted bytes to the kernel; keep its error for the next read or send."""
        try:
            while self._rest or self._leaving.pending:
                if not self._rest:
                    self._rest = memoryview(self._leaving.read())
                self._rest = self._rest[super().send(self._rest) :]
        except BlockingIOError:
            if self.on_kept is not None:
                self.on_kept()
        except OSError as error:
            self._unsendable = error  # what the peer said last can still be read
            self._rest = memoryview(b"")

    def version(self) -> str | None:
        """Return the version of TLS; None until the handshake is over."""
        return self._tls.version()

    @property
    def session(self) -> bytes:
        """Return both certificates' digests, which only this connection's two ends share, once something was read."""
        peer = self._tls.getpeercert(binary_form=True) or b""
        caller, host = (peer, self._own) if self._is_server else (self._own, peer)
        return hashlib.sha256(caller).digest() + hashlib.sha256(host).digest()

    # --- reading ------------------------------------------------------------------------------------------------------

    def recv(self, size: int, _flags: int = 0, /) -> bytes:
        """Read like `socket.recv`."""
        buffer = bytearray(min(size, _AT_ONCE))
        return bytes(buffer[: self._read(memoryview(buffer))])

    def recv_into(self, buffer: Buffer, nbytes: int = 0, _flags: int = 0, /) -> int:  # type: ignore[override]
        """Read like `socket.recv_into`, and fill the buffer as far as possible without waiting."""
        view = memoryview(buffer).cast("B")
        return self._read(view[:nbytes] if nbytes else view)

    def _read(self, buffer: memoryview) -> int:
        """Read into the buffer until it is full, or there is no more; return 0 if the peer has ended the connection."""
        size = 0
        try:
            while size < len(buffer):
                try:
                    size += self._decrypt(buffer[size:])
                except ssl.SSLWantReadError:
                    if not self._take_in():
                        break
        except OSError:
            if not size:
                raise
            # What was read comes first: the next time there is the error again, or the end of the connection.
        if self._leaving.pending:  # TLS has an answer of its own
            self.push()
        return size

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypt what has arrived, of one record at most."""
        if self._refused is not None:
            raise self._refused
        try:
            if not self._stands:
                self._shake()
            return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            self.push()  # it is told why
            self._refuse(_reason_of(error))

    def _take_in(self) -> bool:
        """Move bytes from the kernel into the TLS layer; False at the end, `BlockingIOError` if none have arrived."""
        try:
            size = super().recv_into(self._scratch)
        except BlockingIOError:
            if self._unsendable is not None:
                raise self._unsendable from None
            raise
        except ConnectionError as error:
            self._hung_up(_ERRNO.sub("", str(error)))
            raise
        if not size:
            self._hung_up("it closed the connection")
            return False
        if not self._begun:
            self._begun = True
            if self._scratch[0] not in _FIRST_RECORDS:
                self._rest = memoryview(_FAREWELL)
                self.push()
                began = bytes(self._scratch[: min(size, 16)])
                self._refuse(f"it does not speak TLS, as this run does; it began with {began!r}")
        self._arriving.write(self._scratch[:size])
        return True

    def _hung_up(self, how: str) -> None:
        if not self._stands:
            raise ConnectionAbortedError(
                f"{how} in the middle of the TLS handshake; does it speak TLS, and trust our certificate's authority?"
            )

    def _shake(self) -> None:
        """Go on with the handshake."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.push()
            raise
        self._stands = True
        if self._early:
            self._encrypt(memoryview(self._early))
            self._early = bytearray()
        self.push()

    def _refuse(self, why: str) -> NoReturn:
        self._refused = TlsRefused(why)
        raise self._refused

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, _flags: int = 0, /) -> int:  # type: ignore[override]
        """Send like `socket.send`."""
        return self._send(_gathered((data,)))

    def sendmsg(self, buffers: Iterable[Buffer], *_: object) -> int:  # type: ignore[override]
        """Send like `socket.sendmsg`, but take buffers alone."""
        return self._send(_gathered(buffers))

    def _send(self, chunks: Iterator[memoryview]) -> int:
        self.push()
        gone = self._refused or self._unsendable
        if gone is not None:
            raise gone
        if self._rest:
            raise BlockingIOError
        sent = 0
        for chunk in chunks:
            sent += len(chunk)
            if self._stands:
                self._encrypt(chunk)
                self.push()
            else:
                self._early += chunk
            if self._rest:
                break
        return sent

    def _encrypt(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += self._tls.write(data[done:])


def _gathered(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yield the same bytes in pieces of one size, whole records but for the last; copy only where buffers meet."""
    waiting: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while size + len(view) >= _AT_ONCE:
            room = _AT_ONCE - size
            yield view[:room] if not waiting else memoryview(b"".join((*waiting, view[:room])))
            waiting, size, view = [], 0, view[room:]
        waiting.append(view)
        size += len(view)
    if size:
        yield memoryview(b"".join(waiting))


def _context(protocol: int, certificate: str, key: str, authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise UnusableTls(f"the authorities in {authorities} cannot be read: {_reason_of(error)}") from error
    try:
        context.load_cert_chain(certificate, key, lambda: _no_password(key))
    except ssl.SSLError as error:
        raise UnusableTls(
            f"the certificate in {certificate} and the key in {key} do not go together: {_reason_of(error)}"
        ) from error
    return context


def _no_password(key: str) -> str:
    raise UnusableTls(
        f"the key in {key} wants a password, which cannot be typed on every host; take one without, in a file that "
        "only who runs the job can read"
    )


def _check_readable(path: str, what: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise UnusableTls(
            f"the {what} {path} cannot be read on {means.gethostname()}: {error.strerror}; it must be there on the "
            "driver's host and on every host that runs processes of the job"
        ) from error


def _reason_of(error: ssl.SSLError) -> str:
    """Return for the log what the peer did."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return f"it does not accept our certificate, or the connection: {reason.partition('alert ')[2]}"
    if "did not return a certificate" in reason:
        return "it shows no certificate"
    return reason
