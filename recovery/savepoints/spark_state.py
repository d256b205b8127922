"""The state of a query of Structured Streaming as first content of our states, through Spark's own reader of state.

Invariant: state is read as of the last batch that the query has committed, and the checkpoint is left as it is.
Importing this module loads no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from recovery.savepoints.bootstrapping import StateFrom
from snapshot.operators.keyed_function import EVENT_TIMERS, PROCESSING_TIMERS
from statebackend.canonical.mapping import Columns
from statebackend.canonical.schema import EXPIRES_AT, INDEX, KEY, MAP_KEY, TIME, VALUE, CanonicalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXPIRES: Final = "ttlExpirationMs"
_NOTHING: Final[Mapping[str, str]] = {}


def from_spark(
    spark: SparkSession,
    checkpoint: str,
    uid: str,
    state: str,
    variable: str = "",
    *,
    operator: int = 0,
    columns: Mapping[str, str] = _NOTHING,
) -> StateFrom:
    """Return the state of an operator of a query for `bootstrap`, which gives it to the state `state` of `uid`.

    `variable` is the name of a state of `transformWithState`: a value, a list or a map, with its times to live. It is
    empty for an aggregation such as `groupBy(...).count()`, and for "timers in event time" and "timers in processing
    time", which take the timers that are registered. `operator` counts the stateful operators of the query. Of an
    aggregation, each output of our table takes the column of its name; `columns` says otherwise, such as
    {"clicks": "count"}, or for a mean {"ms.sum": "sum", "ms.count": "count"}.

    The query must not run. Raises `CanonicalError` for what Spark cannot read, or has no counterpart here.
    """
    place = f"operator {operator} of the query at {checkpoint}"
    wanted = {"path": checkpoint, "operatorId": str(operator)}
    timers = state in (EVENT_TIMERS, PROCESSING_TIMERS)
    if timers:
        wanted["readRegisteredTimers"] = "true"
    elif variable:
        wanted |= {"stateVarName": variable, "flattenCollectionTypes": "false"}
        place = f"{variable} of {place}"
    with _named(place):
        frame = spark.read.format("statestore").options(**wanted).load()
        rows = _Rows(frame, place)
        if timers:
            rows.select(TIME, "expiration_timestamp_ms")
        elif variable:
            rows.select_variable()
        else:
            rows.select_aggregates(columns)
        return StateFrom(uid, state, rows.done(), Columns(value=rows.value), place)


@contextmanager
def session() -> Iterator[SparkSession]:
    """Open a session of its own on this machine, which says nothing of itself; stop it in the end."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise CanonicalError("Spark's state is read by Spark, which is missing: pip install epochcut[spark]") from error
    builder = SparkSession.builder.master("local[*]").appName("recovery bootstrap")
    settings = {"spark.ui.enabled": "false", "spark.driver.maxResultSize": "0", "spark.log.level": "OFF"}
    spark = builder.config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


class _Rows:
    """The columns of a canonical table, made of those that Spark's reader gives. `value` is the column of the only
    output of an aggregation.
    """

    def __init__(self, frame: DataFrame, place: str) -> None:
        from pyspark.sql import functions

        self._frame, self._place, self._sql = frame, place, functions
        self._types = {field.name: field.dataType for field in frame.schema.fields}
        self._chosen: list[Any] = [self._unwrapped("key", self._types["key"]).alias(KEY)]
        self.value: str | None = None

    def select(self, name: str, column: str) -> None:
        """Take a column as it is."""
        self._chosen.append(self._sql.col(column).alias(name))

    def done(self) -> DataFrame:
        """Return the table."""
        return self._frame.select(*self._chosen)

    def select_variable(self) -> None:
        """Take the columns of a value, a list or a map."""
        if "list_value" in self._types:
            self._frame = self._frame.select("key", self._sql.posexplode("list_value").alias(INDEX, "value"))
            self.select(INDEX, INDEX)
            self._select_value(self._types["list_value"].elementType)
        elif "map_value" in self._types:
            self._frame = self._frame.select("key", self._sql.explode("map_value").alias("map_key", "value"))
            self._chosen.append(self._unwrapped("map_key", self._types["map_value"].keyType).alias(MAP_KEY))
            self._select_value(self._types["map_value"].valueType)
        else:
            self._select_value(self._types["value"])

    def select_aggregates(self, columns: Mapping[str, str]) -> None:
        """Take what an aggregation keeps, by the names of outputs; those that occur twice are numbered."""
        fields = self._types["value"].fields
        before = [sum(one.name == field.name for one in fields[:place]) for place, field in enumerate(fields)]
        names = [f"{one.name}_{count + 1}" if count else one.name for one, count in zip(fields, before, strict=True)]
        renamed = self._sql.col("value").cast(_renamed(self._types["value"], names))
        self._frame = self._frame.withColumn("value", renamed)
        if unknown := sorted(set(columns.values()) - set(names)):
            raise CanonicalError(f"{self._place}: it keeps no {unknown[0]!r}; it keeps {', '.join(names)}")
        taken = {field: output for output, field in columns.items()}
        for name in names:
            self._chosen.append(self._sql.col(f"value.`{name}`").alias(taken.get(name, name)))
        if len(names) == 1:
            self.value = taken.get(names[0], names[0])

    def _select_value(self, declared: Any) -> None:
        column = self._sql.col("value")
        if [field.name for field in declared.fields] == ["value", _EXPIRES]:
            self._chosen.append(column.getField(_EXPIRES).alias(EXPIRES_AT))
            column, declared = column.getField("value"), declared.fields[0].dataType
        self._chosen.append((column.getField(declared.fields[0].name) if _is_one(declared) else column).alias(VALUE))

    def _unwrapped(self, column: str, declared: Any) -> Any:
        found = self._sql.col(column)
        return found.getField(declared.fields[0].name) if _is_one(declared) else found


def _is_one(declared: Any) -> bool:
    return len(getattr(declared, "fields", ())) == 1


def _renamed(struct: Any, names: list[str]) -> Any:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, field.dataType) for name, field in zip(names, struct.fields, strict=True)])


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Say of what Spark refuses where it was."""
    try:
        yield
    except CanonicalError:
        raise
    except Exception as error:  # of Spark, which has no base of its own for them
        raise CanonicalError(f"{place}: Spark cannot read this state: {str(error).splitlines()[0]}") from error
