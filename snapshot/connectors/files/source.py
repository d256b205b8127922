"""Files of a folder, local or remote: each is a split, read from an exact position and never twice.

Invariant: a file is known by its path below the folder, and read once; what it is must not change while the
job has not finished it, and if it does, the job says so instead of giving other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import fsspec
import pyarrow as pa
from fsspec import AbstractFileSystem

from snapshot.connectors.files.folder import everywhere, password_faults
from snapshot.connectors.files.readers import LineReader, ParquetReader
from snapshot.connectors.files.stored import StoredFile
from snapshot.program.source import Available, Reader, SourceError, SourceVanished, SplitContext, WrongPosition
from snapshot.tree.frozen_json import JsonLike
from statebackend.columns import arrow_schema
from statebackend.durations import Duration, milliseconds

FileFormat: TypeAlias = Literal["parquet", "jsonl", "csv", "text"]

OnBad: TypeAlias = Literal["fail", "skip"]

FORMATS: Final = ("parquet", "jsonl", "csv", "text")
TEXT: Final = pa.schema([pa.field("line", pa.string())])
"""The schema of text, unless the column is to have another name."""
_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Files:
    """A source of the rows in a file, in all files below a folder, or in those that a pattern such as `in/*.csv` names.

    `uri` is a path or an fsspec URI. The columns are those of `schema`, an Arrow schema or types by names, such as
    `{"card": str, "cents": int}`; others in the files are left out. A row that does not fit ends the job and is named;
    with `on_bad="skip"` lines that do not fit are left out instead (as by PySpark's `DROPMALFORMED`), counted in
    `status().bad_rows`, and the last one is named in a warning now and then.
    Formats: Parquet; JSON lines and CSV (UTF-8, the first line names the columns, an empty value is null, `""` is an
    empty text, no line breaks in values; times have a zone exactly if their column has one); text, whose rows are
    lines. The latter three may be compressed (`.gz`, `.bz2`, `.xz`); then going on in the middle reads up to there
    first.

    With `grows`, which says how often to look, files that appear later are read as well, and the job does not end. A
    file must appear as a whole, under its final name, by a rename; and stay as it is until the job has finished it.
    Names that begin with `.` or `_`, of files or of folders above them, are for what is being written: they are
    ignored.
    """

    uri: str
    format: FileFormat = "parquet"
    schema: pa.Schema = TEXT
    grows: Duration | None = None
    on_bad: OnBad = "fail"

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", everywhere(self.uri))
        object.__setattr__(self, "schema", arrow_schema(self.schema))
        if self.grows is not None:
            milliseconds(self.grows, "grows")

    @property
    def bounded(self) -> bool:
        """True if no files are added later."""
        return self.grows is None

    @property
    def blocking(self) -> bool:
        """Return True: files are read by a thread of their own."""
        return True

    @property
    def on_demand(self) -> bool:
        """Return True: a partition takes the next file when it has finished one."""
        return True

    @property
    def discover_every(self) -> float | None:
        """Return how often to look for new files, in seconds; None if they are not looked for."""
        return None if self.grows is None else milliseconds(self.grows) / 1000

    def check(self) -> Sequence[str]:
        """Report a password in the URI, an unknown format, or a schema that the format cannot give."""
        if faults := password_faults(self.uri):
            return faults
        if self.format not in FORMATS:
            return [f"files of format {self.format!r} cannot be read; known are {', '.join(FORMATS)}"]
        if self.on_bad not in get_args(OnBad):
            return [f"on_bad is {self.on_bad!r}; known are {', '.join(get_args(OnBad))}"]
        if self.on_bad == "skip" and self.format == "parquet":
            return [
                "on_bad='skip' leaves lines out, and Parquet has none; read the columns as what they are, and filter"
            ]
        types = [field.type for field in self.schema]
        if self.format == "text" and not (len(types) == 1 and pa.types.is_string(types[0])):
            return [f"text has one column, of strings; the schema has {', '.join(map(str, self.schema)) or 'none'}"]
        if self.format != "text" and self.schema is TEXT:
            return [f"files of format {self.format} need a schema: the columns to read, and their types"]
        return [
            f"CSV has no values for the column {field.name!r} of {field.type}; read it as a string, or not at all"
            for field in self.schema
            if self.format == "csv" and pa.types.is_nested(field.type)
        ]

    def discover(self, parallelism: int) -> Sequence[str]:  # noqa: ARG002
        """List the paths below the folder of all files there are now.

        Raises `SourceVanished` if there are none and the source does not grow.
        """
        found = self._list()
        if not found and self.grows is None:
            raise SourceVanished(
                f"there is no file at {self.uri}; check the path, or say grows='5s' if files will appear later"
            )
        return found

    def unavailable(self) -> Sequence[str]:
        """Return no reason."""
        return ()

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:  # noqa: ARG002
        """Return the files that have appeared since, whether it `grows` or not; each ends by itself."""
        return Available(tuple(name for name in self._list() if name not in known))

    def _list(self) -> list[str]:
        files, path = self._open_system()
        try:
            files.invalidate_cache()
            return self._find(files, path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SourceError(f"the files at {self.uri} cannot be listed: {error}") from error

    def open(self, context: SplitContext) -> Reader:
        """Open a file; `WrongPosition` for one that is not below the folder, as a job's tree leads nowhere else."""
        files, path = self._open_system()
        is_file = context.split == path.rpartition("/")[2] and not files.isdir(path)
        if not is_file and not _is_listed(context.split):
            raise WrongPosition(
                f"source {context.uid}: {context.split!r} names no file below {_base(path)} that this source would "
                "have found; if the job's tree was changed from outside, put it back, else give the source a new uid"
            )
        stored = StoredFile(files, path if is_file else f"{_base(path)}/{context.split}", context)
        if self.format == "parquet":
            return ParquetReader(stored, self.schema)
        return LineReader(stored, self.format, self.schema, skip_bad=self.on_bad == "skip")

    def _open_system(self) -> tuple[AbstractFileSystem, str]:
        try:
            files, path = fsspec.core.url_to_fs(self.uri)
        except (ImportError, ValueError) as error:
            raise SourceError(f"the files at {self.uri} cannot be reached: {error}") from error
        return files, str(path).rstrip("/")

    def _find(self, files: AbstractFileSystem, path: str) -> list[str]:
        if _PATTERN & set(path):
            paths = [found for found in files.glob(path) if files.isfile(found)]
        elif files.isfile(path):
            return [path.rpartition("/")[2]]
        else:
            paths = files.find(path)
        names = (str(found)[len(_base(path)) + 1 :] for found in paths)
        return sorted(filter(_is_listed, names))


def _is_listed(name: str) -> bool:
    """True if a name below the folder does not lead out of it and is not of a file that is being written."""
    return all(part and not part.startswith((".", "_")) for part in name.split("/")) and "\0" not in name


def _base(path: str) -> str:
    """Return the folder to which names are relative: the one above the first part with a pattern."""
    parts = path.split("/")
    fixed = next((place for place, part in enumerate(parts) if _PATTERN & set(part)), len(parts))
    return "/".join(parts[:fixed])
