"""Names of files that say which transaction they are of.

What always holds: no two files of transactions have the same name; a name that was not made here is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from snapshot.ids import TransactionId
from snapshot.transaction_events import parse_transaction_id

LONGEST_NAME = 255
"""Bytes that a file's name may have on the usual file systems."""
_NAME = re.compile(
    r"part-(?P<transaction>(?:[A-Za-z0-9_~-]|\.[0-9a-f]{2})+?)(?:-(?P<nonce>[0-9a-f]{16}))?"
    r"-(?P<number>0|[1-9][0-9]*)\.[a-z]+"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_/-]")


def file_name(transaction: TransactionId, number: int, extension: str, nonce: str = "") -> str:
    """The name of the n-th file of the transaction that was begun with this nonce; no two have the same. Without one
    are files that have a nonce elsewhere in their name, and those in payloads that know none.
    """
    escaped = _UNSAFE.sub(lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), transaction)
    return f"part-{escaped.replace('/', '~')}{f'-{nonce}' if nonce else ''}-{number}.{extension}"


def is_of(transaction: TransactionId, name: str, extensions: Collection[str]) -> bool:
    """True if `file_name` makes this name for the transaction, with one of these extensions."""
    return transaction_of(name) == transaction and "/" not in name and name.rpartition(".")[2] in extensions


def transaction_of(name: str) -> TransactionId | None:
    """Whose file has this name, whatever folder it is in; None if `file_name` did not make it, so that it is not ours
    to touch.
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
