"""Reading one file from any position: lines by the byte at which they begin, Parquet by row group and row.

Invariant: a position says where a piece of the file begins that is parsed as one, and how many of its rows are
done; so it is exact, and only that piece is parsed again.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.connectors.files.line_formats import PROBLEMS, LineFormat, LineParser, header_of
from snapshot.connectors.files.stored import StoredFile, UnreadableFile, UnreadableRow
from snapshot.program.source import Batch, Exhausted, Reading, SourceError

_BLOCK = 1 << 20
"""Bytes of lines that are read and parsed at once."""
_LONGEST_LINE = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_ROWS = 65_536
"""Rows of Parquet that are decoded at once."""
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""The errors that reading may raise, those of decompression included."""
_SHOWN = 200
"""Bytes of a line that an error shows."""


class LineReader:
    """Lines of a file, which may be compressed: then a position is found by reading up to it."""

    def __init__(self, file: StoredFile, format: LineFormat, schema: pa.Schema, *, skip_bad: bool = False) -> None:
        self._file = file
        self._format = format
        self._schema = schema
        self._skip_bad = skip_bad
        self._bytes = file.open("infer")
        self._rest = b""  # what was read behind the current block
        self._block = b""
        self._rows: pa.RecordBatch | None = None  # of the current block
        self._row = file.number("row")  # the next of them
        self._bad: list[tuple[int, str]] = []  # lines of the block to be left out: how many rows are before each, why
        self._has_bad = False
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
        """Return the next rows; at the end, check that the file is still the same."""
        while self._rows is None or (self._row >= self._rows.num_rows and not self._bad):
            if not self._next_block():
                self._file.check_unchanged()
                return Exhausted()
        rows = self._rows.slice(self._row, most)
        self._row += rows.num_rows
        if not self._has_bad:
            return Batch(rows, self._file.at(offset=self._offset, line=self._line, row=self._row))
        return self._without_bad(rows, left=self._rows.num_rows - self._row)

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def _without_bad(self, rows: pa.RecordBatch, left: int) -> Batch:
        """Count a line that is left out with the row that it stands before; the last ones with the block's last row.

        The position after that is where the next block begins, so that a restore does not count them again.
        """
        passed = [why for before, why in self._bad if left <= 0 or before < self._row]
        del self._bad[: len(passed)]
        offset, line, row = self._offset, self._line, self._row
        if left <= 0:
            offset, line, row = offset + len(self._block), line + self._block.count(b"\n"), -left
        return Batch(rows, self._file.at(offset=offset, line=line, row=row), len(passed), passed[-1] if passed else "")

    def _begin(self, schema: pa.Schema) -> list[str]:
        """Read a byte order mark and the header; return the columns that it names."""
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
        """Go to the next lines and return True if there are any; rows of the block that are done already stay so."""
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
        """Return the next whole lines; the last line of the file may lack its line break."""
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
        self._bad, self._has_bad = [], False
        rows = self._whole(block)
        if not isinstance(rows, Exception):
            return rows
        if not self._skip_bad:
            raise self._blame(block, rows) from rows
        return self._good(block)

    def _whole(self, lines: bytes) -> pa.RecordBatch | Exception:
        """Return the rows of all the lines, or the error if some line does not fit."""
        try:
            rows = self._parser.parse(lines)
        except PROBLEMS as error:
            return error
        if rows.num_rows != self._parser.rows_in(lines):
            return ValueError("lines and rows are not the same")
        return rows

    def _good(self, block: bytes) -> pa.RecordBatch:
        """Return the rows of the lines that fit, parsed many at once; note the lines that do not fit."""
        bad: list[tuple[int, str]] = []
        good: list[pa.RecordBatch] = []
        count = 0
        parts = [(self._line + 1, block.removesuffix(b"\n").split(b"\n"))]
        while parts:
            number, lines = parts.pop()
            rows = self._whole(b"\n".join(lines) + b"\n")
            if not isinstance(rows, Exception):
                good.append(rows)
                count += rows.num_rows
            elif len(lines) == 1:
                bad.append((count, self._says(number, lines[0], rows)))
            else:
                middle = len(lines) // 2
                parts += [(number + middle, lines[middle:]), (number, lines[:middle])]
        self._bad, self._has_bad = [one for one in bad if one[0] >= self._row], True
        return pa.Table.from_batches(good, self._schema).combine_chunks().to_batches()[0] if count else self._none()

    def _none(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self._schema], schema=self._schema)

    def _says(self, number: int, line: bytes, problem: object) -> str:
        shown = line[:_SHOWN].decode(errors="replace")
        return f"{self._file.where}, line {number}: the line does not fit the schema: {problem}. It is: {shown}"

    def _blame(self, block: bytes, error: Exception) -> UnreadableRow:
        """Return an error that names the line that does not fit."""
        for number, line in enumerate(block.split(b"\n"), self._line + 1):
            problem = self._problem(line) if self._parser.is_row(line) else None
            if problem is not None:
                return UnreadableRow(f"{self._says(number, line, problem)}. Say on_bad='skip' to leave such lines out")
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
        """Return the next rows; at the end, check that the file is still the same."""
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
        """Return the piece of a row group that has the next row, with its first row; None at the end of the file."""
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
