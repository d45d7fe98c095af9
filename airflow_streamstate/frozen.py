"""Frozen dataclasses whose methods are not compiled.

``dataclasses.dataclass(frozen=True)`` writes six methods for each class as text and compiles them: half a millisecond a
class, and a command of the shell that prints one status imports 180 of them. Here all classes share the methods below,
over the same ``__dataclass_fields__``, so that ``fields``, ``replace`` and ``asdict`` work as ever. To type checkers it
is ``dataclasses.dataclass``.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from airflow_streamstate.older_python import with_newer, zipped

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type], type]:
        """As ``dataclasses.dataclass(frozen=True)``, without ``field(init=False)``."""
        if not frozen:
            raise TypeError("use dataclasses.dataclass for a class that is not frozen")
        return lambda cls: _with_methods(_with_fields(cls, kw_only=kw_only))


_PARENTS = threading.Lock()
_NAMED_ONLY = "__named_only__"
"""The fields of a class that are given by name alone: those of Python 3.9 do not know it themselves."""


def _with_fields(cls: Any, *, kw_only: bool) -> Any:
    """The class with ``__dataclass_fields__``, and without compiled methods, of which a frozen one has two at least.

    So it is made as one that is not frozen, which ``dataclasses`` refuses below a frozen one: by the parameters of its
    parents. Two threads may import two modules at once, so only one of them changes those of parents.
    """
    parents = [base.__dataclass_params__ for base in cls.__mro__[1:] if hasattr(base, "__dataclass_params__")]
    with _PARENTS:
        were_frozen = [one.frozen for one in parents]
        for one in parents:
            one.frozen = False
        try:
            options = with_newer(kw_only=kw_only)
            made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
        finally:
            for one, was_frozen in zipped(parents, were_frozen):
                one.frozen = was_frozen
    made.__dataclass_params__.frozen = True
    own = vars(made).get("__annotations__", {}).keys()
    above = set[str]().union(*(getattr(base, _NAMED_ONLY, ()) for base in cls.__bases__))
    setattr(made, _NAMED_ONLY, (above | own) if kw_only else (above - own))
    return made


def _with_methods(cls: Any) -> Any:
    methods = {
        "__init__": _init_of(cls),
        "__repr__": _repr,
        **_comparison_of(cls),
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
    }
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _init_of(cls: Any) -> Callable[..., None]:
    fields = dataclasses.fields(cls)
    if not all(one.init for one in fields):
        raise TypeError(f"{cls.__qualname__}: field(init=False) is not supported")
    positional = tuple(one.name for one in fields if not getattr(one, "kw_only", one.name in getattr(cls, _NAMED_ONLY)))
    factories = {one.name: one.default_factory for one in fields if one.default_factory is not dataclasses.MISSING}
    # In the order of the fields, which is then that of ``vars``.
    defaults = {one.name: one.default for one in fields}
    required = {name for name, value in defaults.items() if value is dataclasses.MISSING and name not in factories}
    has_more = hasattr(cls, "__post_init__")

    def init(self: Any, /, *values: Any, **named: Any) -> None:
        if values:
            if len(values) > len(positional) or not named.keys().isdisjoint(positional[: len(values)]):
                raise TypeError(f"{cls.__qualname__}() got too many values, or one of them twice")
            named.update(zip(positional, values))
        attributes = self.__dict__
        attributes.update(defaults)
        attributes.update(named)
        if len(attributes) != len(defaults) or not required <= named.keys():
            raise TypeError(
                f"{cls.__qualname__}() takes {', '.join(defaults)}, and got {', '.join(named) or 'nothing'}"
            )
        for name, factory in factories.items():
            if name not in named:
                attributes[name] = factory()
        if has_more:
            self.__post_init__()

    return init


def _comparison_of(cls: Any) -> dict[str, Callable[..., Any]]:
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    compared: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else lambda self: _tuple_of(self, names)

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def hashed(self: Any) -> int:
        return hash(compared(self))

    return {"__eq__": equal, "__hash__": hashed}


def _tuple_of(self: Any, names: list[str]) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in names)


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r} of {type(self).__qualname__}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r} of {type(self).__qualname__}")
