"""Text of unknown origin, made fit to be read by people on a terminal or in a log.

Invariant: what comes out can be encoded, and moves no cursor, changes no colour, title or clipboard, and turns
no direction of writing; it stays as it is if it is made readable once more.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_CONTROLS: Final = re.compile(
    "["
    "\0-\x1f\x7f-\x9f"  # C0, DEL and C1, with the escape that begins a terminal's commands
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    "\u2028\u2029"  # further ends of a line
    "\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # what is there and not seen
    "\ud800-\udfff"  # halves of a character, as of a file's name that is no UTF-8
    "]"
)


def readable(text: str) -> str:
    r"""Replace the control characters of a text by escapes, such as `\x1b`, but keep its newlines."""
    return _CONTROLS.sub(lambda found: "\n" if found[0] == "\n" else _escape(found[0]), text)


def one_line(text: str) -> str:
    r"""Replace newlines by `\n` as well, so that no text passes for another line."""
    return _CONTROLS.sub(lambda found: _escape(found[0]), text)


def readable_logger(name: str) -> logging.Logger:
    """Return the logger of that name, with a filter that makes its messages `readable`."""
    logger = logging.getLogger(name)
    logger.addFilter(_make_readable)
    return logger


def _make_readable(record: logging.LogRecord) -> bool:
    record.msg, record.args = readable(record.getMessage()), ()
    return True


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
