"""The SQL that a sink needs: rows into a table, and tokens into another. Text alone, for any database that takes it.

Invariant: names of tables and columns are quoted, values are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COMMITS: Final = "epochcut_commits"
"""The table of tokens. It is in the same schema as the table that rows go to."""


def quoted(name: str) -> str:
    """Quote the name of a table for a statement; a dot separates the schema from the table."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in name.split("."))


def column(name: str) -> str:
    """Quote the name of a column, in which a dot is a dot."""
    return '"{}"'.format(name.replace('"', '""'))


def listed(names: Sequence[str]) -> str:
    """List the quoted names of columns, with commas."""
    return ", ".join(map(column, names))


@dataclass(frozen=True, slots=True)
class TableStatements:
    """A table, and those of its columns that the rows have; of these, `key` tells rows apart, if they replace each
    other.
    """

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()

    def put(self, values: str) -> str:
        """Return the statement that adds the rows of `values`, which is `VALUES ...` or `SELECT ...`.

        With a key, a row replaces the one with its key.
        """
        statement = f"INSERT INTO {quoted(self.table)} ({listed(self.columns)}) {values}"
        if not self.key:
            return statement
        rest = [column(name) for name in self.columns if name not in self.key]
        replace = "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in rest) if rest else "NOTHING"
        return f"{statement} ON CONFLICT ({listed(self.key)}) DO {replace}"

    def put_one(self, mark: str) -> str:
        """Return the statement that adds a row of parameters."""
        return self.put(f"VALUES ({', '.join([mark] * len(self.columns))})")

    def delete_one(self, mark: str) -> str:
        """Return the statement that deletes the row with a key of parameters."""
        return f"DELETE FROM {quoted(self.table)} WHERE " + " AND ".join(
            f"{column(name)} = {mark}" for name in self.key
        )


@dataclass(frozen=True, slots=True)
class TokenStatements:
    """The table of tokens beside another table: a row for each token of a job and sink, and one, whose token is empty,
    for the newest attempt that has committed: the fence. `mark` stands for a parameter.
    """

    beside: str
    mark: str

    @property
    def table(self) -> str:
        """Return the quoted name of the table of tokens."""
        return quoted(".".join([*self.beside.split(".")[:-1], COMMITS]))

    @property
    def create(self) -> str:
        """Return the statement that makes the table of tokens, unless it is there."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (job text NOT NULL, sink text NOT NULL, token text NOT NULL, "
            f"generation bigint NOT NULL, attempt bigint NOT NULL, PRIMARY KEY (job, sink, token))"
        )

    @property
    def raise_fence(self) -> str:
        """Return the statement that raises the fence, by job, sink, generation and attempt.

        A fence that is as high stays.
        """
        m = self.mark
        return (
            f"INSERT INTO {self.table} AS held (job, sink, token, generation, attempt) VALUES ({m}, {m}, '', {m}, {m}) "
            f"ON CONFLICT (job, sink, token) DO UPDATE SET generation = excluded.generation, "
            f"attempt = excluded.attempt "
            f"WHERE (held.generation, held.attempt) < (excluded.generation, excluded.attempt)"
        )

    @property
    def fence(self) -> str:
        """Return the query for the fence's generation and attempt, by job and sink."""
        m = self.mark
        return f"SELECT generation, attempt FROM {self.table} WHERE job = {m} AND sink = {m} AND token = ''"

    @property
    def add(self) -> str:
        """Return the statement that inserts a token, by job, sink, token, generation and attempt.

        It inserts no row if the token is there.
        """
        marks = ", ".join([self.mark] * 5)
        return (
            f"INSERT INTO {self.table} (job, sink, token, generation, attempt) VALUES ({marks}) ON CONFLICT DO NOTHING"
        )

    @property
    def find(self) -> str:
        """Return the query that finds a token, by job, sink and token."""
        return f"SELECT 1 FROM {self.table} WHERE job = {self.mark} AND sink = {self.mark} AND token = {self.mark}"

    @property
    def every(self) -> str:
        """Return the query for all tokens, by job and sink."""
        return f"SELECT token FROM {self.table} WHERE job = {self.mark} AND sink = {self.mark} AND token <> ''"

    @property
    def forget(self) -> str:
        """Return the statement that deletes a token, by job, sink and token."""
        return f"DELETE FROM {self.table} WHERE job = {self.mark} AND sink = {self.mark} AND token = {self.mark}"
