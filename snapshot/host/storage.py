"""With which options this process reaches storage, such as the credentials that a job was given.

What always holds: they are in memory alone. Options that are given where a file system is opened count before them.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsspec.config import conf


def use_storage(options: Mapping[str, Mapping[str, object]]) -> None:
    """From now on these, by protocol, are the defaults of every file system that fsspec opens in this process."""
    for protocol, given in options.items():
        conf[protocol] = {**conf.get(protocol, {}), **given}
