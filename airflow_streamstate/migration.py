"""The user's functions from old state to new state, for ``upgrade --migration FILE``.

```python
from airflow_streamstate.migration import migrate

@migrate(query="flights", operator="aggregate:origin")
def add_longest(key, state):
    return {**state, "max": None}


@migrate(query="flights", operator="aggregate:carrier", vectorized=True)
def in_minutes(rows):
    return rows.withColumn("state", rows.state.withField("sum", rows.state["sum"] / 60))
```
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar, Union

from airflow_streamstate.errors import InvalidRequestError

State = Mapping[str, Any]
Migrate = Callable[[State, State], Union[State, None]]
"""Gets the key and the old state of one row, and returns its new state; None drops the row.

Both are dicts by the names that ``streamstate state`` and ``streamstate plan --migration`` show; timestamps are moments
in UTC, nested rows are dicts. It has to be deterministic, and may use nothing but its arguments.
"""
MigrateRows = Callable[[Any], Any]
"""Gets all rows of a table as a Spark ``DataFrame`` with the columns ``key`` and ``state``, both structs, and returns
one with the same columns: each key of before at most once, with its new state. A row that is left out, or whose state
is null, is dropped. It may use Spark's columns, or ``mapInArrow`` and the like; nothing but the rows, as ``Migrate``.
"""
_DEFAULT = "rows"
_MODULE = "__migration__"


@dataclass(frozen=True)
class Migration:
    """A function for one table of state.

    Attributes:
        query: the name of the query.
        operator: of its operator, as ``streamstate plan`` names it: ``aggregate:origin``.
        variable: of a ``transformWithState``, the name of the state variable; of a join ``left`` or ``right``; else "".
        inverse: from new to old state, for the rollback; None if not set.
        migrate: from old to new state, a ``Migrate``.
        is_vectorized: both functions get all rows at once: they are ``MigrateRows``.
    """

    query: str
    operator: str
    migrate: Callable[..., Any]
    variable: str = ""
    inverse: Callable[..., Any] | None = None
    is_vectorized: bool = False

    @property
    def table(self) -> str:
        """The name of its table among those of its operator."""
        return self.variable or _DEFAULT

    def inverted(self) -> Migration | None:
        """The migration from new to old state; None without an inverse."""
        return None if self.inverse is None else replace(self, migrate=self.inverse, inverse=self.migrate)


@dataclass(frozen=True)
class MigrationFile:
    """The file that migrations are declared in, for another process that reads them again.

    Attributes:
        is_inverse: their inverse functions are run.
    """

    name: str
    body: bytes
    is_inverse: bool = False


_found: ContextVar[list[Migration] | None] = ContextVar("_found", default=None)


Function = TypeVar("Function", bound=Callable[..., Any])


def migrate(
    *, query: str, operator: str, variable: str = "", inverse: Function | None = None, vectorized: bool = False
) -> Callable[[Function], Function]:
    """Make a function the migration of one operator's state.

    Args:
        query, operator, variable, inverse: as the attributes of ``Migration``.
        vectorized: the functions are ``MigrateRows``: they get all rows as one ``DataFrame``, which is faster.
            Not for a join, and not for a list.
    """

    def note(function: Function) -> Function:
        found = _found.get()
        if found is not None:
            found.append(Migration(query, operator, function, variable, inverse, vectorized))
        return function

    return note


def read_migrations(body: bytes, name: str) -> tuple[Migration, ...]:
    """The migrations in a file.

    Args:
        body: its bytes.
        name: of the file, for errors.

    Raises:
        InvalidRequestError: it cannot be run, has no migration, or has two for one table.
    """
    with _collected() as found:
        try:
            _run(body, name)
        except (Exception, SystemExit) as error:
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == name]
            raise InvalidRequestError(
                "the file with the migrations cannot be run",
                file=name,
                line=getattr(error, "lineno", None) or (lines[-1] if lines else None),
                error=f"{type(error).__name__}: {error}",
                next_step="Fix it: it is run once, and only declares functions.",
            ) from None
    _check(found, name)
    return tuple(found)


def _run(body: bytes, name: str) -> None:
    """Run a file as a module, which dataclasses and the like look up by its name."""
    module = ModuleType(_MODULE)
    module.__file__ = name
    code = compile(body, name, "exec", dont_inherit=True)
    sys.modules[_MODULE] = module
    try:
        exec(code, vars(module))  # noqa: S102 - the user's own file
    finally:
        # Its functions travel to the workers by value, since no module of this name can be imported.
        del sys.modules[_MODULE]


@contextmanager
def _collected() -> Iterator[list[Migration]]:
    found: list[Migration] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def _check(found: Sequence[Migration], name: str) -> None:
    if not found:
        raise InvalidRequestError(
            "this file has no migration",
            file=name,
            next_step="Put @migrate(query=…, operator=…) above a function(key, state).",
        )
    places = [(each.query, each.operator, each.variable) for each in found]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        raise InvalidRequestError("two migrations are for the same state", file=name, twice=twice)
