"""The fields of files of streams that are terms, made from the declaration of the terms."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model

from airflow_streamstate.protocol.terms.declaration import Term, terms_of

Part = TypeVar("Part", bound=BaseModel)
Terms = TypeVar("Terms")


def listed(value: object) -> object:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(listed)]


def part_of(cls: type, base: type[Part]) -> type[Part]:
    """A part of a file with the terms of a class, and the bounds of each in its schema."""
    fields: dict[str, Any] = {one.name: _field(one) for one in terms_of(cls) if one.declared.file is True}
    return create_model(f"{cls.__name__}Part", __base__=base, **fields)


def terms_in(cls: type[Terms], part: BaseModel, **fixed: Any) -> Terms:
    """The terms that a part gives.

    Args:
        fixed: terms that are decided elsewhere.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """
    given = {one.name: getattr(part, one.name) for one in terms_of(cls) if one.declared.file is True}
    return cls(**{**given, **fixed})


def _field(one: Term) -> tuple[Any, Any]:
    hint = Texts if one.kind in ("texts", "command") else one.hint
    bounds: dict[str, Any] = {}
    if one.kind in ("whole", "number", "seconds"):
        least, most = one.bounds
        bounds = {name: number for name, number in (("ge", least), ("le", most)) if abs(number) != float("inf")}
    help = one.help_for(lambda other: f"`{other.name}`")
    if one.kind == "command":
        help += ", word by word"
    return hint | None if one.is_optional else hint, Field(default=one.default, description=help, **bounds)
