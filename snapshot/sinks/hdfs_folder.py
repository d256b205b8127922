"""A folder of HDFS, over WebHDFS, in which files appear by being renamed.

What always holds: every request ends, as a name node or data node that does not answer fails it after a while; a rename
refuses a target that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import fsspec

from snapshot.sinks.renaming_folder import RenamingFolder

_TIMEOUTS: Final = (3.0, 60.0)
"""Seconds to connect, and between two pieces of an answer."""


class HdfsFolder(RenamingFolder):
    """The folder at a URI `webhdfs://<user>@<name node>:<port>/<path>`."""

    def __init__(self, uri: str) -> None:
        files, root = fsspec.core.url_to_fs(uri, skip_instance_cache=True)
        files.session.request = partial(files.session.request, timeout=_TIMEOUTS)
        super().__init__(files, root)
        self._uri = uri

    def problems(self) -> Sequence[str]:
        """See `Folder.problems`."""
        there = self._root
        try:
            while there.strip("/") and not self._is_there(there):
                there = there.rpartition("/")[0]
            self._files._call("CHECKACCESS", path=there or "/", fsaction="-wx")
        except PermissionError as error:
            return [f"files cannot be written to {self._uri}: this user may not write to {there or '/'}: {error}"]
        except Exception as error:
            return [f"files cannot be written to {self._uri}: HDFS does not answer as it should: {error}"]
        return []
