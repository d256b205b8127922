"""Names of files that say which transaction they are of.

Invariant: no two files of transactions have the same name; a name that was not made here belongs to no sink.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId

LONGEST_NAME = 255
"""Bytes that a file's name may have on the usual file systems."""
_NAME = re.compile(
    r"part-(?P<transaction>(?:[A-Za-z0-9_~-]|\.[0-9a-f]{2})+?)(?:-(?P<nonce>[0-9a-f]{16}))?"
    r"-(?P<number>0|[1-9][0-9]*)\.[a-z]+"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_/-]")


def file_name(transaction: TransactionId, number: int, extension: str, nonce: str = "") -> str:
    """Return the name of the transaction's file with this number; no two files have the same name.

    `nonce` is the one that the transaction was begun with. It is left out for files that have a nonce elsewhere in
    their name, and for those in payloads that know none.
    """
    escaped = _UNSAFE.sub(lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), transaction)
    return f"part-{escaped.replace('/', '~')}{f'-{nonce}' if nonce else ''}-{number}.{extension}"


def is_of(transaction: TransactionId, name: str, extensions: Collection[str]) -> bool:
    """True if `file_name` makes this name for the transaction, with one of these extensions."""
    return transaction_of(name) == transaction and "/" not in name and name.rpartition(".")[2] in extensions


def transaction_of(name: str) -> TransactionId | None:
    """Return the transaction of a file by its name, in any folder.

    None if `file_name` did not make the name, so that the file must not be touched.
    """
    name = name.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parts = re.split(r"\.([0-9a-f]{2})", match["transaction"].replace("~", "/"))
    try:
        text = b"".join(
            bytes.fromhex(part) if place % 2 else part.encode() for place, part in enumerate(parts)
        ).decode()
        parse_transaction_id(text)
    except ValueError:
        return None
    transaction = TransactionId(text)
    extension = name.rpartition(".")[2]
    made = file_name(transaction, int(match["number"]), extension, match["nonce"] or "")
    return transaction if made == name else None
