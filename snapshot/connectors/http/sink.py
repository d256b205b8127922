"""Rows for an HTTP server: staged until their epoch is complete, then sent, each request with a key of its own.

Invariant: rows of an epoch that is not complete are never sent; a request that is repeated, by whichever
process and after whichever crash, has the same rows and the same key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from secrets import token_hex
from typing import Final, Literal
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid5

import pyarrow as pa

from snapshot.connectors.files.formats import Unsayable, encoded, refuse_unsayable, unsuitable
from snapshot.connectors.http.sender import KEY_HEADER, HttpPlace, HttpSender, NotSent, NotTaken, reach
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, BadPayload, PayloadFields, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, staged_batches, unreadable
from snapshot.connectors.staging.table_fit import column_of
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.problems import unknown_column
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkWriter, UnwritableRow
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

Method = Literal["POST", "PUT", "PATCH"]
_METHODS: Final = ("POST", "PUT", "PATCH")
_OURS: Final = frozenset({KEY_HEADER.lower(), "content-type", "content-length", "transfer-encoding", "host"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_KEYS: Final = UUID("6f1f4d0e-6a55-4c7b-9d39-0f6f6c1c5b1e")
"""The name space of the keys that are made here."""
_VISIBLE: Final = "!#$&'()*+,/:;=?@[]"
"""The characters that stand in a key as they are, beside letters and digits."""
_REACH: Final = 5.0
"""Seconds in which a server must be reached when the job starts."""
_QUOTED: Final = 300
"""Characters of a row that are told when it is refused."""


@dataclass(frozen=True, slots=True)
class ToHTTP:
    """A sink that sends rows to a server by HTTP, at least once: a request for each row, a JSON object; or for
    `rows_per_request` of them, JSON lines, in which NaN and infinities are refused. It has to be asked for by
    `exactly_once=False`, as no server can be asked afterwards what it has.

    Rows are sent when their epoch is complete, in order, one request after the other in each partition. So rows that a
    rollback takes back were never sent, and what is sent again, because an answer was lost or a process died, is what
    was sent before. Each request has a header `Idempotency-Key`; a server that takes each key once has each row once.

    Without `key`, it is drawn from the transaction and the place of the row in it, both of which are fixed when the
    epoch is complete: it is the same whenever the epoch's output is sent again, also at another parallelism. It is
    another when the rows are made anew: by a job that goes back behind a complete epoch, to a savepoint, or is begun
    anew. `key`, a column of texts or integers whose value no two rows share, is the same even then; a row is a request
    then. Where a row stands in the output, or what is in it, would be no key: rows of several inputs come in another
    order after a rollback, and two rows may be alike.

    A status of 2xx, or one of `known` (say 409, of a server that answers so to what it has), takes the rows. 5xx, 408,
    409, 425, 429 and no answer within `timeout` seconds mean that they are sent again, later and later, not before
    `Retry-After`. Whatever else is said refuses them, and stops the job with the row; its rows stay in the job's tree,
    and are sent when it is started again, to the `url` and with the `headers` that the program has then. Headers, such
    as credentials, are neither printed nor written anywhere.
    """

    url: str
    key: str = ""
    rows_per_request: int = 1
    exactly_once: bool = True
    method: Method = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    known: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", column_of("key", self.key) or "")
        object.__setattr__(self, "known", tuple(map(int, self.known)))

    @property
    def waits_for_epochs(self) -> bool:
        """Return True: rows are sent when their epoch is complete."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare no abilities: a server takes what it is sent, and cannot be asked what it has."""
        return Abilities()

    @property
    def place(self) -> HttpPlace:
        """Return where rows are sent, and how."""
        return HttpPlace(self.url, self.method, self.headers, self.timeout, self.known)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report a URL, option or header that cannot be used, an unsuitable key, and columns that JSON cannot hold."""
        return [*self._faults(), *self._key_faults(schema), *unsuitable("jsonl", schema)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a server that cannot be reached; sends no request."""
        problem = reach(self.place, _REACH)
        return [] if problem is None else [problem]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return _Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Do nothing: rows of an epoch that was not complete were never sent, so none are left in the target."""

    def _faults(self) -> Iterator[str]:
        try:
            parts = urlsplit(self.url)
            named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            named = False
        if not named or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            yield f"{self.url!r} is no URL of an HTTP server; expected http://host:port/path or https://..."
        elif parts.username is not None:
            yield f"credentials do not belong in the URL of {parts.hostname}; give a header Authorization"
        elif parts.fragment:
            yield f"a server is not told what stands behind # in {self.url!r}"
        if self.method not in _METHODS:
            yield f"the method is {self.method!r}; known are {', '.join(_METHODS)}"
        if self.rows_per_request < 1:
            yield f"rows_per_request is {self.rows_per_request}; it must be at least 1"
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            yield f"timeout is {self.timeout}; it must be a number of seconds above 0"
        for status in self.known:
            if not 300 <= status < 500:
                yield f"{status} cannot say that a server has a row already; expected a status of 300 to 499"
        for name, value in self.headers.items():
            if name.lower() in _OURS:
                yield f"the header {name} is set for each request, so it cannot be given"
            elif not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                yield f"the header {name!r} has characters that no header can have"

    def _key_faults(self, schema: pa.Schema) -> Iterator[str]:
        if not self.key:
            return
        if self.rows_per_request > 1:
            yield "key= names one row, so it cannot be the key of a request with several; leave out rows_per_request"
        if self.key not in schema.names:
            yield f"key: {unknown_column(self.key, schema)}"
        elif not _is_key(schema.field(self.key).type):
            type = schema.field(self.key).type
            yield f"the key {self.key!r} is of {type}; it has to be of texts or integers, so cast it in the stream"


@dataclass(frozen=True, slots=True)
class _Sent:
    """The content of a payload about the requests that send its rows; the program says where to."""

    nonce: str
    key: str
    rows_per_request: int

    @classmethod
    def read(cls, fields: PayloadFields) -> _Sent:
        """Read what `seal` wrote."""
        fields.number("rows", 1)
        return cls(fields.text("nonce", NONCE), fields.text("key"), fields.number("rows_per_request", 1))


@dataclass(frozen=True, slots=True)
class _Request:
    """Some rows of a transaction, from the n-th on."""

    first: int
    lines: Sequence[bytes]
    key: str

    @property
    def rows(self) -> str:
        """Return the numbers of its rows, in words."""
        last = self.first + len(self.lines) - 1
        return f"row {self.first}" if last == self.first else f"rows {self.first} to {last}"


class _Writer:
    """The sink in a partition."""

    def __init__(self, sink: ToHTTP, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._staged = StagedRows(context.uid, context.staging)
        self._sender = HttpSender(sink.place)
        self._nonce = ""
        self._taken: tuple[TransactionId | None, int] = (None, 0)
        self._closed = False

    def begin(self, transaction: TransactionId) -> None:  # noqa: ARG002
        """Draw a nonce, so that the keys of this transaction differ from those of any other of the same name."""
        self._nonce = token_hex(8)
        self._staged.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows, or store them; `UnwritableRow` if one has no key, or a number that JSON does not have."""
        try:
            refuse_unsayable("jsonl", rows.batch)
        except Unsayable as error:
            raise UnwritableRow(f"sink {self._context.uid}: {error}") from None
        if self._sink.key and len(rows):
            keys = rows.batch.column(self._sink.key)
            for place, key in enumerate(keys.to_pylist() if keys.null_count or _is_text(keys.type) else ()):
                if key is None or key == "":
                    [row] = rows.batch.slice(place, 1).to_pylist()
                    raise UnwritableRow(
                        f"sink {self._context.uid}: a row has no key in {self._sink.key!r}: {str(row)[:_QUOTED]}"
                    )
        self._staged.write(rows)

    def seal(self) -> Sealed:
        """Hand over the rows, with what their keys are made of."""
        about: dict[str, JsonLike] = {"key": self._sink.key, "rows_per_request": self._sink.rows_per_request}
        return self._staged.seal({MADE_BY: ToHTTP.__name__, "nonce": self._nonce, **about})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Send the rows, from the first one that this process does not know to be taken."""
        sent = read_payload(ToHTTP.__name__, self._context, transaction, payload, _Sent.read)
        if isinstance(sent, CommitAnswer):
            return sent
        at, taken = self._taken
        done = taken if at == transaction else 0
        try:
            for request in requests(transaction, sent, staged_batches(payload, self._context.staging)):
                if request.first < done:
                    continue
                if self._closed:
                    return CommitAnswer(CommitOutcome.RETRY_LATER, "the attempt is over")
                try:
                    self._sender.send(request.key, *_body(request, sent))
                except NotSent as error:
                    return CommitAnswer(CommitOutcome.RETRY_LATER, f"{request.rows} of {transaction}: {error}")
                except NotTaken as error:
                    return CommitAnswer(CommitOutcome.FAILED, self._refused(transaction, request, error))
                self._taken = (transaction, request.first + len(request.lines))
        except UNREADABLE as error:
            return unreadable(error)
        finally:
            self._sender.close()
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Forget what is not prepared, and send nothing more but the request that is under way."""
        self._closed = True
        self._staged.close()

    def _refused(self, transaction: TransactionId, request: _Request, error: NotTaken) -> str:
        row = request.lines[0].decode("utf-8", "replace")[:_QUOTED]
        which = request.rows if len(request.lines) == 1 else f"{request.rows}, of which this is the first,"
        return f"{error}. So {which} of transaction {transaction}, sent with the key {request.key}, is refused: {row}"


def requests(transaction: TransactionId, sent: _Sent, batches: Iterator[pa.RecordBatch]) -> Iterator[_Request]:
    """Yield the requests of a transaction, the same in any process: rows in order, `rows_per_request` in each."""
    rows = _rows(batches, sent.key)
    first = 0
    while chunk := list(islice(rows, sent.rows_per_request)):
        key = chunk[0][0] or str(uuid5(_KEYS, f"{sent.nonce}/{transaction}/{first}"))
        yield _Request(first, [line for _, line in chunk], key)
        first += len(chunk)


def _rows(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[tuple[str, bytes]]:
    """Yield the key of each row, if it has one of its own, and the row as JSON."""
    for batch in batches:
        if column and batch.schema.names.count(column) != 1:
            raise BadPayload(f"the rows have no column {column[:80]!r}, of which their keys are")
        lines = encoded("jsonl", pa.Table.from_batches([batch])).to_pybytes().split(b"\n")[:-1]
        keys = batch.column(column).to_pylist() if column else [""] * len(lines)
        for key, line in zip(keys, lines, strict=True):
            yield quote(str(key), safe=_VISIBLE), line


def _body(request: _Request, sent: _Sent) -> tuple[bytes, str]:
    if sent.rows_per_request == 1:
        return request.lines[0], "application/json"
    return b"".join(line + b"\n" for line in request.lines), "application/x-ndjson"


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_key(type: pa.DataType) -> bool:
    return _is_text(type) or bool(pa.types.is_integer(type))
