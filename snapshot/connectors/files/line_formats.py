"""The rows in lines of bytes: JSON lines, CSV and plain text.

Invariant: a line is a row (a blank one is none, unless it is text or the only column of a CSV file), and
lines are independent of each other, so that they may be parsed in whatever pieces.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json

LineFormat: TypeAlias = Literal["jsonl", "csv", "text"]

Parse: TypeAlias = Callable[[bytes], pa.RecordBatch]
"""Whole lines to rows. What it raises means that some line does not fit."""

PROBLEMS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError, UnicodeDecodeError)
"""The errors that `Parse` may raise."""


_WHITE = b" \t\r\n"
_ENDS = b"\r\n"
_HINTS = (b"\n\n", b"\n\r", b"\n ", b"\n\t")
"""Without any of these there is no blank line."""
_ZONE: Final = re.compile(r"column #(\d+): .* expected (a|no) zone offset in '(.*?)'", re.DOTALL)
"""The words of a refused time in CSV: its column, and what the column's type expects of it."""


class LineParser:
    """Lines of one file; `header` are the columns of a CSV file."""

    def __init__(self, format: LineFormat, schema: pa.Schema, header: Sequence[str]) -> None:
        self._blank: bytes | None = _WHITE  # what a line that is no row consists of
        match format:
            case "jsonl":
                self.parse = _json_lines(schema)
            case "csv":
                self.parse = _csv(schema, header)
                self._blank = _ENDS if len(header) > 1 else None
            case "text":
                self.parse = _text(schema)
                self._blank = None

    def is_row(self, line: bytes) -> bool:
        """True if the line should be a row."""
        return self._blank is None or bool(line.strip(self._blank))

    def rows_in(self, lines: bytes) -> int:
        """Return how many rows whole lines have if all of them fit."""
        if self._blank is None or not (lines[:1].isspace() or any(hint in lines for hint in _HINTS)):
            return lines.count(b"\n") + (not lines.endswith(b"\n") and bool(lines))
        return sum(map(self.is_row, lines.split(b"\n")))


def header_of(line: bytes) -> Sequence[str]:
    """Return the names in the first line of a CSV file."""
    return csv.read_csv(io.BytesIO(line.rstrip(b"\r\n") + b"\n")).schema.names if line.strip() else []


def are_objects(lines: bytes) -> bool:
    """True if each line begins and ends as a JSON object does; the last line has no line break.

    Then no object goes on in the next line, which a parser of all lines at once would not notice.
    """
    return lines[:1] == b"{" and lines[-1:] == b"}" and lines.count(b"\n") == lines.count(b"}\n{")


def json_objects(schema: pa.Schema) -> Parse:
    """Return a parser of JSON objects, in whatever lines.

    Dates are parsed as texts first, as JSON has them.
    """
    read = pa.schema([field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in schema])
    parsing = json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")

    def parse(lines: bytes) -> pa.RecordBatch:
        if not lines.strip():
            return _none(schema)
        if not lines.isascii():
            lines.decode()  # the parser takes any bytes for text
        reading = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        return _fitted(json.read_json(io.BytesIO(lines), reading, parsing), schema)

    return parse


def _json_lines(schema: pa.Schema) -> Parse:
    parse_objects = json_objects(schema)

    def parse(lines: bytes) -> pa.RecordBatch:
        if not are_objects(lines.removesuffix(b"\n")):
            rows = b"\n".join(filter(None, (line.strip(_WHITE) for line in lines.split(b"\n"))))
            if rows and not are_objects(rows):
                raise pa.ArrowInvalid("the line is not a JSON object")
        return parse_objects(lines)

    return parse


def _csv(schema: pa.Schema, header: Sequence[str]) -> Parse:
    """Return a parser of CSV lines: an empty value is null, and a quoted one is an empty text.

    With a single column, a blank line is a null, too.
    """
    converting = csv.ConvertOptions(
        column_types=schema,
        include_columns=schema.names,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )

    parsing = csv.ParseOptions(ignore_empty_lines=len(header) > 1)

    def parse(lines: bytes) -> pa.RecordBatch:
        if parsing.ignore_empty_lines and not lines.strip(_ENDS):
            return _none(schema)
        if lines.count(b'"') % 2:
            raise pa.ArrowInvalid("a quote is opened and not closed; values must not have line breaks in them")
        reading = csv.ReadOptions(use_threads=False, column_names=list(header), block_size=len(lines) + 1)
        try:
            table = csv.read_csv(io.BytesIO(lines), reading, parsing, converting)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(_about_zone(str(error), schema, header) or str(error)) from error
        return _fitted(table, schema)

    return parse


def _about_zone(error: str, schema: pa.Schema, header: Sequence[str]) -> str:
    """Say how the column of a refused time should be declared; return nothing if the error is another one."""
    found = _ZONE.search(error)
    if found is None:
        return ""
    name, type = header[int(found[1])], schema.field(header[int(found[1])]).type
    if found[2] == "a":
        there, declared = "no time zone", f"timestamp_ntz, or pa.timestamp({type.unit!r})"
    else:
        there, declared = "a time zone", f"timestamp, or pa.timestamp({type.unit!r}, 'UTC')"
    return f"the column {name!r} is a {type}, and {found[3]!r} has {there}; declare the column as {declared}"


def _text(schema: pa.Schema) -> Parse:
    def parse(lines: bytes) -> pa.RecordBatch:
        text = lines.decode().removesuffix("\n")
        column = pc.split_pattern(pa.array([text]), "\n").values
        if b"\r" in lines:
            column = pc.replace_substring_regex(column, r"\r$", "")
        return pa.RecordBatch.from_arrays([column], schema=schema)

    return parse


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"the column {field.name!r} must not be null")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
