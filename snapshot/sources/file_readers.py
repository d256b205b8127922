"""Reading one file from any position: lines by the byte at which they begin, Parquet by row group and row.

What always holds: a position says where a piece of the file begins that is parsed as one, and how many of its rows are
done; so it is exact, and only that piece is parsed again.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.program.source import Batch, Exhausted, Reading, SourceError
from snapshot.sources.line_formats import PROBLEMS, LineFormat, LineParser, header_of
from snapshot.sources.stored_file import StoredFile, UnreadableFile, UnreadableRow

_BLOCK = 1 << 20
"""Bytes of lines that are read and parsed at once."""
_LONGEST_LINE = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_ROWS = 65_536
"""Rows of Parquet that are decoded at once."""
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What reading may raise, decompression among it."""
_SHOWN = 200
"""Bytes of a line that an error shows."""


class LineReader:
    """Lines of a file, which may be compressed: then a position is found by reading up to it."""

    def __init__(self, file: StoredFile, format: LineFormat, schema: pa.Schema) -> None:
        self._file = file
        self._format = format
        self._bytes = file.open("infer")
        self._rest = b""  # what was read behind the current block
        self._block = b""
        self._rows: pa.RecordBatch | None = None  # of the current block
        self._row = file.number("row")  # the next of them
        self._line = 0  # lines before the current block
        self._offset = 0  # where it begins
        try:
            self._parser = LineParser(format, schema, self._begin(schema))
            if self._offset < file.number("offset"):
                self._offset, self._line, self._rest = file.number("offset"), file.number("line"), b""
                self._bytes.seek(self._offset)
        except _DAMAGE as error:
            self._bytes.close()
            raise self._damaged(error) from error
        except SourceError:
            self._bytes.close()
            raise

    def read(self, most: int) -> Reading:
        """The next rows; at the end a look whether the file is still the same."""
        while self._rows is None or self._row >= self._rows.num_rows:
            if not self._next_block():
                self._file.check_unchanged()
                return Exhausted()
        rows = self._rows.slice(self._row, most)
        self._row += rows.num_rows
        return Batch(rows, self._file.at(offset=self._offset, line=self._line, row=self._row))

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def _begin(self, schema: pa.Schema) -> list[str]:
        """Read a byte order mark and the header; the columns that it names."""
        start = self._lines()
        mark = len(_BYTE_ORDER_MARK) if start.startswith(_BYTE_ORDER_MARK) else 0
        header = b""
        if self._format == "csv":
            header = start[mark:].partition(b"\n")[0]
            header = start[mark : mark + len(header) + 1]
            self._line = 1
        self._offset = mark + len(header)
        self._rest = start[self._offset :] + self._rest
        names = list(header_of(header))
        missing = [name for name in schema.names if name not in names]
        if self._format == "csv" and missing:
            raise UnreadableFile(
                f"{self._file.where}: the first line has no column {', '.join(missing)}; it names {', '.join(names)}"
            )
        return names

    def _next_block(self) -> bool:
        """Go to the next lines; whether there are any. Rows of it that are done already stay so."""
        done = 0 if self._rows is None else self._rows.num_rows
        self._row -= done
        self._offset += len(self._block)
        self._line += self._block.count(b"\n")
        try:
            self._block = self._lines()
        except _DAMAGE as error:
            raise self._damaged(error) from error
        self._rows = self._parsed(self._block) if self._block else None
        return bool(self._block)

    def _lines(self) -> bytes:
        """The next whole lines; the last one of the file may lack its end."""
        pieces = [self._rest]
        size = len(self._rest)
        while more := self._bytes.read(_BLOCK):
            end = more.rfind(b"\n") + 1
            if end:
                self._rest = more[end:]
                return b"".join([*pieces, more[:end]])
            pieces.append(more)
            size += len(more)
            if size > _LONGEST_LINE:
                raise UnreadableFile(
                    f"{self._file.where}: line {self._line + 1} is longer than {_LONGEST_LINE} bytes; "
                    f"is the file {self._format}?"
                )
        self._rest = b""
        return b"".join(pieces)

    def _parsed(self, block: bytes) -> pa.RecordBatch:
        try:
            rows = self._parser.parse(block)
        except PROBLEMS as error:
            raise self._blame(block, error) from error
        if rows.num_rows != self._parser.rows_in(block):
            raise self._blame(block, ValueError("lines and rows are not the same"))
        return rows

    def _blame(self, block: bytes, error: Exception) -> UnreadableRow:
        """Which line it is that does not fit."""
        for number, line in enumerate(block.split(b"\n"), self._line + 1):
            problem = self._problem(line) if self._parser.is_row(line) else None
            if problem is not None:
                shown = line[:_SHOWN].decode(errors="replace")
                return UnreadableRow(
                    f"{self._file.where}, line {number}: the line does not fit the schema: {problem}. It is: {shown}"
                )
        return UnreadableRow(f"{self._file.where}, after line {self._line}: some line does not fit the schema: {error}")

    def _problem(self, line: bytes) -> object:
        try:
            rows = self._parser.parse(line + b"\n").num_rows
        except PROBLEMS as error:
            return error
        return None if rows == 1 else f"it has {rows} rows"

    def _damaged(self, error: Exception) -> UnreadableFile:
        return UnreadableFile(f"{self._file.where}: the file cannot be read, or is cut off, in its middle: {error}")


class ParquetReader:
    """Rows of a Parquet file, one row group after the other; columns that the schema does not have are not read."""

    def __init__(self, file: StoredFile, schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema
        self._bytes = file.open()
        try:
            self._parquet = pq.ParquetFile(self._bytes)
        except (pa.ArrowInvalid, OSError) as error:
            self._bytes.close()
            raise UnreadableFile(f"{file.where}: it is no Parquet file, or is cut off: {error}") from error
        names = self._parquet.schema_arrow.names
        missing = [name for name in schema.names if name not in names]
        if missing:
            self.close()
            raise UnreadableFile(f"{file.where}: there is no column {', '.join(missing)}; it has {', '.join(names)}")
        self._group = file.number("group")
        self._row = file.number("row")
        self._pieces: Iterator[tuple[int, pa.RecordBatch]] | None = None
        self._piece: tuple[int, pa.RecordBatch] | None = None

    def read(self, most: int) -> Reading:
        """The next rows; at the end a look whether the file is still the same."""
        piece = self._find()
        if piece is None:
            self._file.check_unchanged()
            return Exhausted()
        first, rows = piece
        chosen = self._fitted(rows.slice(self._row - first, most))
        self._row += chosen.num_rows
        return Batch(chosen, self._file.at(group=self._group, row=self._row))

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()
        self._bytes.close()

    def _find(self) -> tuple[int, pa.RecordBatch] | None:
        """The piece of the row group that has the next row; None at the end of the file."""
        while self._piece is None or self._row >= self._piece[0] + self._piece[1].num_rows:
            if self._pieces is None:
                if self._group >= self._parquet.num_row_groups:
                    return None
                self._pieces = self._decoded(self._group)
            try:
                self._piece = next(self._pieces, None)
            except (pa.ArrowInvalid, OSError) as error:
                raise UnreadableFile(f"{self._file.where}: row group {self._group} cannot be read: {error}") from error
            if self._piece is None:
                self._group, self._row, self._pieces = self._group + 1, 0, None
        return self._piece

    def _decoded(self, group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        for rows in self._parquet.iter_batches(_PARQUET_ROWS, [group], self._schema.names, use_threads=False):
            yield first, rows
            first += rows.num_rows

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return self._cast(rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            for place in range(rows.num_rows):
                try:
                    self._cast(rows.slice(place, 1))
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as found:
                    raise UnreadableRow(
                        f"{self._file.where}, row group {self._group}, row {self._row + place}: the row does not fit "
                        f"the schema: {found}"
                    ) from found
            raise UnreadableFile(f"{self._file.where}: rows do not fit the schema: {error}") from error

    def _cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            column = rows.column(field.name)
            if column.null_count and not field.nullable:
                raise pa.ArrowInvalid(f"the column {field.name!r} must not be null")
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
