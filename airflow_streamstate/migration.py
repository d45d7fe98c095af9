"""The user's functions from old state to new state, for ``upgrade --migration FILE``.

```python
from airflow_streamstate.migration import migrate

@migrate(query="flights", operator="aggregate:origin")
def add_longest(key, state):
    return {**state, "max": None}
```
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from traceback import extract_tb
from types import ModuleType
from typing import Any

from airflow_streamstate.errors import InvalidRequestError

State = Mapping[str, Any]
Migrate = Callable[[State, State], State | None]
"""Gets the key and the old state of one row, and returns its new state; None drops the row.

Both are dicts by the names that ``streamstate state`` and ``streamstate plan --migration`` show; timestamps are moments
in UTC, nested rows are dicts. It has to be deterministic, and may use nothing but its arguments.
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
    """

    query: str
    operator: str
    migrate: Migrate
    variable: str = ""
    inverse: Migrate | None = None

    @property
    def table(self) -> str:
        """The name of its table among those of its operator."""
        return self.variable or _DEFAULT


_found: ContextVar[list[Migration] | None] = ContextVar("_found", default=None)


def migrate(
    *, query: str, operator: str, variable: str = "", inverse: Migrate | None = None
) -> Callable[[Migrate], Migrate]:
    """Make a function the migration of one operator's state; arguments as the attributes of ``Migration``."""

    def note(function: Migrate) -> Migrate:
        found = _found.get()
        if found is not None:
            found.append(Migration(query, operator, function, variable, inverse))
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
