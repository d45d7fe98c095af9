"""``table_rows``: the rows of database tables by a growing column, with SQLAlchemy.

A table, or each value of ``partBy`` in it, is a part. Rows are read in the order of the growing column and the key, so
that ties are read once; by the driver, since rows that are committed late would make a second read another one.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, ClassVar, Literal

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources.interface import Json, Lost, Part, PartitionedSource

MOST_COUNTED = 1_000_000
_SPARK_TYPES: tuple[tuple[str, str], ...] = (
    ("BigInteger", "long"),
    ("SmallInteger", "short"),
    ("Integer", "int"),
    ("Float", "double"),
    ("Boolean", "boolean"),
    ("Date", "date"),
    ("LargeBinary", "binary"),
    ("JSON", "string"),
    ("Uuid", "string"),
    ("String", "string"),
)
"""Classes of SQLAlchemy's types, the first that fits counts; decimals and times are distinguished below."""


class TableRows(PartitionedSource):
    """Rows by a growing column.

    Options: ``url``: SQLAlchemy's, or ``urlEnv``: the environment variable of the driver that holds it; ``table``: one
    or several with commas between, ``schema.table`` or ``table``; ``column``: it grows with each row; ``key``: with it,
    unique (default: the primary key); ``partBy``: a column each of whose values is a part; ``settleSeconds``: a row is
    read once a row at or behind it has been visible for this long, which leaves time for transactions that commit late
    (5); ``until``: a part is finished once a row that has reached it is read: rows with that very value that come later
    are not; ``nulls``: ``error`` (default) or ``skip``; ``eventTime``: the column with the event time.
    """

    name: ClassVar[str] = "table_rows"
    identifying: ClassVar[Sequence[str]] = ("table", "column", "key", "partBy")

    def __init__(self, options: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(options)
        self.clock = clock
        self.tables = _words(options.get("table", ""))
        self.column = options.get("column", "").strip()
        if not self.tables or not self.column:
            raise SourceError("table_rows needs the options table and column", next_step="Name both.")
        self.keys = _words(options.get("key", ""))
        self.part_by = options.get("partby", "").strip()
        if self.part_by and len(self.tables) > 1:
            raise SourceError("partBy of table_rows goes with one table", tables=self.tables)
        self.settle_seconds = _seconds(options.get("settleseconds", "5"))
        self.nulls: Literal["error", "skip"] = "skip" if options.get("nulls") == "skip" else "error"
        if options.get("nulls", "error") not in ("error", "skip"):
            raise SourceError("nulls of table_rows is error or skip", value=options["nulls"])
        self.until = options.get("until", "").strip()
        self.event_time = options.get("eventtime", "").strip()  # type: ignore[misc]
        self.is_bounded = False
        self._engine: Any = None
        self._tables: dict[str, Any] = {}

    def begin_bounded(self) -> None:
        self.is_bounded = True

    def row_schema(self) -> str:
        """Of the first table; the others must have its columns."""
        return ", ".join(f"`{column.name}` {_spark_type(column)}" for column in self.table(self.tables[0]).columns)

    def list_parts(self) -> list[str]:
        for name in self.tables:
            self._check_nulls(name)
        if not self.part_by:
            return self.tables
        import sqlalchemy as sa

        column = self._column(self.tables[0], self.part_by)
        with self.connected() as connection:
            found = [row[0] for row in connection.execute(sa.select(column).distinct())]
        if None in found:
            raise SourceError(
                "a row has no value in the column of the parts", table=self.tables[0], column=self.part_by
            )
        return [f"{self.tables[0]}/{json.dumps(to_json(value))}" for value in found]

    def build_part(self, part: str, state: Json) -> TablePart:
        name, slash, value = part.partition("/")
        if name not in self.tables:
            raise SourceError("this part is of a table that is not read", part=part, tables=self.tables)
        where = () if not slash else (self._column(name, self.part_by) == from_json(json.loads(value)),)
        return TablePart(self, part, self.table(name), self._order(name), where, state)

    def remarks(self) -> Sequence[str]:
        return (
            f"rows of a transaction that commits more than {self.settle_seconds:g} s after a row behind them are never"
            " read: settleSeconds of table_rows must be longer than the longest transaction",
        )

    # the database

    def connected(self) -> Any:
        """A connection, as a context; none is kept between two polls."""
        return self._made_engine().connect()

    def table(self, name: str) -> Any:
        """A table as the database describes it; the columns are looked at once."""
        import sqlalchemy as sa

        if name not in self._tables:
            schema, _, word = name.rpartition(".")
            try:
                self._tables[name] = sa.Table(
                    word, sa.MetaData(), schema=schema or None, autoload_with=self._made_engine()
                )
            except sa.exc.NoSuchTableError:
                raise SourceError("there is no such table", table=name) from None
        return self._tables[name]

    def _made_engine(self) -> Any:
        try:
            import sqlalchemy as sa
        except ModuleNotFoundError:
            raise SourceError(
                "table_rows needs SQLAlchemy, which is not installed here",
                next_step="Install it where the driver runs: `pip install 'airflow-streamstate[sql]'`.",
            ) from None
        if self._engine is None:
            try:
                self._engine = sa.create_engine(self._url(), poolclass=sa.pool.NullPool)
            except (sa.exc.ArgumentError, ModuleNotFoundError, ValueError) as error:
                # The error itself may quote any piece of the url, the password among them.
                scheme = re.match(r"[\w+]{1,50}(?=://)", self._url())
                raise SourceError(
                    "the url of table_rows cannot be used",
                    begins_with="no scheme" if scheme is None else f"{scheme[0]}://",
                    missing=str(error.name) if isinstance(error, ModuleNotFoundError) else "",
                    next_step="Use SQLAlchemy's form, e.g. postgresql+pg8000://user@host/database, with its driver.",
                ) from None
        return self._engine

    def _url(self) -> str:
        variable = self.options.get("urlenv", "")
        url = os.environ.get(variable, "") if variable else self.options.get("url", "")
        if not url:
            raise SourceError(
                "table_rows has no url" if not variable else "the environment variable of the url is not set",
                variable=variable,
                next_step="Give option url, or urlEnv for one with a password.",
            )
        return url

    def _order(self, name: str) -> list[Any]:
        """The growing column, and the key that distinguishes rows with one value of it."""
        keys = self.keys or [column.name for column in self.table(name).primary_key]
        if not keys:
            raise SourceError(
                "the table has no primary key, so rows with equal values could not be distinguished",
                table=name,
                next_step="Name columns that are unique in option key.",
            )
        return [self._column(name, word) for word in dict.fromkeys((self.column, *keys))]

    def _column(self, name: str, word: str) -> Any:
        columns = self.table(name).columns
        if word not in columns:
            raise SourceError("the table has no such column", table=name, column=word, columns=list(columns.keys()))
        return columns[word]

    def _check_nulls(self, name: str) -> None:
        import sqlalchemy as sa

        columns = [column for column in self._order(name) if column.nullable]
        if self.nulls == "skip" or not columns:
            return
        with self.connected() as connection:
            for column in columns:
                if connection.execute(sa.select(sa.literal(1)).where(column.is_(None)).limit(1)).first() is None:
                    continue
                what = "growing column" if column.name == self.column else "key"
                raise SourceError(
                    f"rows have no value in the {what}, and would never be read",
                    table=name,
                    column=column.name,
                    next_step="Fill it in; or nulls=skip leaves such rows out.",
                )


class TablePart(Part):
    """A table, or the rows of one value of ``partBy``."""

    def __init__(
        self, source: TableRows, name: str, table: Any, order: Sequence[Any], where: Sequence[Any], state: Json
    ) -> None:
        self._source = source
        self._name = name
        self._table = table
        self._order = order
        self._where = where
        if state is not None and (not isinstance(state, list) or len(state) != len(order)):
            raise SourceError("this is no state of table_rows with this key", part=name, state=str(state)[:100])
        self._state = state
        self._seen: deque[tuple[float, list[Any]]] = deque()
        self._had_all = False

    def snapshot(self) -> Json:
        return self._state

    def poll(self, limit: int) -> Iterable[tuple[Any, ...]]:
        with self._source.connected() as connection:
            settled = self._settled(connection)
            if settled is None:
                return []
            query = self._unread().where(_upto(self._order, settled)).order_by(*self._order).limit(limit)
            rows = connection.execute(query).all()
        self._had_all = len(rows) < limit
        if rows:
            names = [column.name for column in self._table.columns]
            self._state = [to_json(rows[-1][names.index(column.name)]) for column in self._order]
        return [tuple(map(_for_spark, row)) for row in rows]

    def is_finished(self) -> bool:
        if not self._source.until or self._state is None or not self._had_all:
            return False
        value = from_json(self._state[0])
        return bool(value >= _like(value, self._source.until))

    def behind(self) -> int:
        """At most ``MOST_COUNTED``."""
        import sqlalchemy as sa

        with self._source.connected() as connection:
            if self._source.is_bounded:
                self._look(connection)
            limited = self._unread().limit(MOST_COUNTED).subquery()
            return int(connection.execute(sa.select(sa.func.count()).select_from(limited)).scalar_one())

    def lost(self) -> Lost | None:
        """A table that ends before what was read was emptied, or recreated."""
        if self._state is None:
            return None
        with self._source.connected() as connection:
            newest = self._newest(connection)
        reached = [from_json(value) for value in self._state]
        if newest is not None and newest[0] >= reached[0]:
            return None
        ends_at = "it is empty" if newest is None else f"{self._source.column} ends at {newest[0]}"
        return Lost("remade", None, f"{ends_at}, and was read up to {reached[0]}")

    def _unread(self) -> Any:
        import sqlalchemy as sa

        query = sa.select(*self._table.columns).where(*self._has_place(), *self._where)
        if self._state is None:
            return query
        return query.where(_beyond(self._order, [from_json(value) for value in self._state]))

    def _has_place(self) -> list[Any]:
        """A row without a value in one of these columns has no place in their order."""
        return [column.is_not(None) for column in self._order]

    def _newest(self, connection: Any) -> list[Any] | None:
        import sqlalchemy as sa

        query = sa.select(*self._order).where(*self._has_place(), *self._where)
        found = connection.execute(query.order_by(*(column.desc() for column in self._order)).limit(1)).first()
        return None if found is None else list(found)

    def _settled(self, connection: Any) -> list[Any] | None:
        """The newest row that has been visible for ``settleSeconds``; None if there is no such row yet."""
        clock, settle = self._source.clock, self._source.settle_seconds
        if self._source.is_bounded:
            if self._look(connection) is None:
                return None
            since, row = self._seen[0]
            if clock.monotonic_seconds() - since < settle:
                connection.rollback()  # what is read then is read in another transaction
                clock.sleep(since + settle - clock.monotonic_seconds())
            return row
        newest = self._newest(connection)
        if newest is None:
            return None
        now_seconds = clock.monotonic_seconds()
        if not self._seen or self._seen[-1][1] != newest:
            self._seen.append((now_seconds, newest))
        while len(self._seen) > 1 and now_seconds - self._seen[1][0] >= settle:
            self._seen.popleft()
        since, row = self._seen[0]
        return row if now_seconds - since >= settle else None

    def _look(self, connection: Any) -> list[Any] | None:
        """The newest row when a query that ends with what there is first ran; None without rows."""
        if not self._seen:
            newest = self._newest(connection)
            if newest is None:
                return None
            self._seen.append((self._source.clock.monotonic_seconds(), newest))
        return self._seen[0][1]


def _beyond(order: Sequence[Any], values: Sequence[Any]) -> Any:
    """Rows behind these values: spelled out, since not every database compares tuples."""
    import sqlalchemy as sa

    return sa.or_(
        *(sa.and_(*(order[i] == values[i] for i in range(at)), order[at] > values[at]) for at in range(len(order)))
    )


def _upto(order: Sequence[Any], values: Sequence[Any]) -> Any:
    import sqlalchemy as sa

    return sa.not_(_beyond(order, values))


_WRITTEN: Mapping[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "uuid": uuid.UUID,
}


def to_json(value: Any) -> Json:
    """A value of a column, so that ``from_json`` gives it again."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        for kind, cls in (("datetime", datetime), ("date", date), ("decimal", Decimal), ("uuid", uuid.UUID)):
            if isinstance(value, cls):
                return {kind: value.isoformat() if isinstance(value, date) else str(value)}
        raise SourceError(
            "values of this type cannot say how far a table was read",
            type=type(value).__name__,
            next_step="Use a column of whole numbers, texts, times, decimals or uuids.",
        )
    return value


def from_json(value: Json) -> Any:
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        return _WRITTEN[kind](text)
    return value


def _like(value: Any, text: str) -> Any:
    """The text as a value of the same type."""
    try:
        if isinstance(value, datetime):
            moment = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text))  # Python 3.10 reads no Z
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
            return moment if value.tzinfo is not None else moment.astimezone(timezone.utc).replace(tzinfo=None)
        if isinstance(value, date):
            return date.fromisoformat(text)
        return type(value)(text)
    except (ValueError, ArithmeticError):
        raise SourceError("until of table_rows is no value of its column", value=text[:50]) from None


def _for_spark(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _spark_type(column: Any) -> str:
    import sqlalchemy as sa

    kind = column.type
    if isinstance(kind, sa.DateTime):
        return "timestamp" if kind.timezone else "timestamp_ntz"
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        precision = kind.precision if kind.precision is not None else 38
        scale = kind.scale if kind.scale is not None else (18 if kind.precision is None else 0)
        if precision <= 38:
            return f"decimal({precision},{scale})"
    for name, spark in _SPARK_TYPES:
        cls = getattr(sa, name, None)
        if cls is not None and isinstance(kind, cls):
            return spark
    raise SourceError(
        "Spark has no type for this column",
        table=column.table.name,
        column=column.name,
        type=str(kind),
        next_step="Read a view that leaves it out or casts it.",
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        raise SourceError("settleSeconds of table_rows is no number", value=text[:50]) from None
