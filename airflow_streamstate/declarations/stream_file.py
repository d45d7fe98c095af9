"""The content of a file of streams; the JSON schema for editors is made from these classes."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import Changes, Kind, Term, terms_of
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.terms.version import Artifact, StartTerms, StreamTerms, Version

# The fields of files of streams that are terms: made from the declaration of the terms, and read as their values.

Place = tuple[str, ...]
"""Where in a file a field is: the names of the objects around it, and its own."""
WITHIN: Mapping[type, Place] = {
    UpgradeTerms: ("upgrade",), StateRewrite: ("state",), Version: (), StartTerms: (), StreamTerms: (),
}  # fmt: skip
"""The classes whose terms files have, and where."""
REFUSED = "refused"
"""The type of an error whose text is already a sentence for the author of a file."""
_SHOWN_BY_PLACE = ("names",)
_NOT_GIVEN = object()


def listed(value: object) -> object:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


def _filled(value: object) -> object:
    """No value is an empty one."""
    return {name: "" if one is None else one for name, one in value.items()} if isinstance(value, dict) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(listed)]
_HINTS: Mapping[Kind, Any] = {
    "flag": bool, "whole": int, "number": float, "seconds": float, "text": str, "path": str, "moment": datetime,
    "texts": Texts, "paths": Texts, "command": Texts, "lists": dict[str, Texts],
    "mapping": Annotated[dict[str, str], BeforeValidator(_filled)],
}  # fmt: skip


class FilePart(BaseModel):
    """An object of a file. Unknown names are refused; a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nothing(cls, given: Any) -> Any:
        """A field without a value is one that is left out, unless nothing is one of its values."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or not cls._needs_value(name)}

    @classmethod
    def _needs_value(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        return field is not None and type(None) not in typing.get_args(field.annotation)


Made = TypeVar("Made", bound=FilePart)


@dataclass(frozen=True)
class PlacedPart:
    """A term of files.

    Attributes:
        changes: what a change of it makes of the stream; by the part that it is in, if it does not declare that itself.
    """

    term: Term
    changes: Changes


def place_of(one: Term, within: Place) -> Place:
    """Where in a file a term is.

    Args:
        within: where the terms of its class are.
    """
    name = one.name_on("files")
    return tuple(name.split(".")) if "." in name else (*within, name)


@functools.cache
def places() -> Mapping[Place, PlacedPart]:
    """All terms of files."""
    return {place: one for cls, within in WITHIN.items() for place, one in _placed(cls, within, "")}


@functools.cache
def reasons() -> Mapping[str, str]:
    """Why files do not have a term, by its name."""
    terms = (one for cls in WITHIN for one in terms_of(cls))
    return {one.name: one.declared.in_files for one in terms if isinstance(one.declared.in_files, str)}


def changes_of(field: str) -> Changes:
    """What a change of a field, with dots, makes of the stream; of one within a term what that of the term does.

    Of one that files do not have: another version, since the file's has its default.
    """
    names = tuple(field.split("."))
    around = (names[:size] for size in range(1, len(names) + 1))
    return next((places()[at].changes for at in around if at in places()), "version")


def _placed(cls: type, within: Place, changes: Changes) -> Iterator[tuple[Place, PlacedPart]]:
    for one in terms_of(cls):
        if one.declared.in_files is True:
            place, meaning = place_of(one, within), one.declared.changes or changes
            yield place, PlacedPart(one, meaning)
            if one.kind == "part":
                yield from _placed(one.part, place, meaning)


def part_of(name: str, place: Place, base: type[Made]) -> type[Made]:
    """A part of a file with the terms at a place, and the bounds of each in its schema.

    Args:
        name: of the class, for editors.
        base: with the fields that are no terms.
    """
    fields: dict[str, Any] = {at[-1]: _field(one.term, at) for at, one in places().items() if at[:-1] == place}
    return create_model(name, __base__=base, __doc__=base.__doc__, **fields)


def values_in(cls: type, part: BaseModel, within: Place | None = None) -> dict[str, Any]:
    """The values that a file gives for the terms of a class, by name; of a part of them likewise.

    Args:
        part: the whole file.
        within: where the terms are; None: where those of this class are.
    """
    found: dict[str, Any] = {}
    around = WITHIN[cls] if within is None else within
    for one in terms_of(cls):
        if one.declared.in_files is not True:
            continue
        place = place_of(one, around)
        value = _value_at(part, place)
        if one.kind == "part":
            inner = values_in(one.part, part, place)
            if inner or isinstance(value, BaseModel):
                found[one.name] = inner
        elif value is not _NOT_GIVEN:
            found[one.name] = value
    return found


def is_path(one: Term) -> bool:
    """Whether its texts are paths of files that are pinned: below the folder of the file, or absolute ones."""
    is_file = Artifact in (one.hint, _item(one.hint))
    return (is_file and one.kind in ("path", "paths")) or takes_uris(one)


def takes_uris(one: Term) -> bool:
    """Whether its texts are such paths, or URIs, which are taken as they are."""
    return {Artifact, str} == set(typing.get_args(_item(one.hint)))


def refused(error: StreamStateError) -> PydanticCustomError:
    """The error of a file for that of its values."""
    return PydanticCustomError(REFUSED, "{text}", {"text": reason_of(error)})


def reason_of(error: StreamStateError) -> str:
    """Why a value is refused, in one lower-case sentence: the facts, and what to write instead."""
    facts = " ".join(
        str(fact) for name, fact in error.context.items() if fact not in (None, "") and name not in _SHOWN_BY_PLACE
    )
    next_step = f"{error.next_step[:1].lower()}{error.next_step[1:]}"
    return f"{error.message}{f' ({facts})' if facts else ''}{f'; {next_step}' if next_step else ''}"


def _value_at(part: Any, place: Place) -> Any:
    for name in place:
        if part is None or name not in part.model_fields_set:
            return _NOT_GIVEN
        part = getattr(part, name)
    return part


def _field(one: Term, place: Place) -> tuple[Any, Any]:
    hint = _hint(one, place)
    bounds = zip(("ge", "le"), one.bounds if one.is_number else (), strict=False)
    said: dict[str, Any] = {name: bound for name, bound in bounds if math.isfinite(bound)}
    if not one.is_required:
        said["default"] = hint() if one.kind == "part" and not one.is_optional else one.default
    kind = hint | None if one.is_optional else hint
    return Annotated[kind, AfterValidator(_check(one, place))], Field(description=_help(one), **said)


def _hint(one: Term, place: Place) -> Any:
    if one.kind == "part":
        return part_of(f"{place[-1].title()}Part", place, FilePart)
    if one.kind == "mapping" and typing.get_args(one.hint)[1] is object:
        return dict[str, Any]
    return one.hint if one.kind == "choice" else _HINTS[one.kind]


def _help(one: Term) -> str:
    text = one.help_for(lambda other: f"`{other.name_on('files')}`")
    if one.kind == "command":
        return f"{text}, word by word"
    return f"{text}. Below the folder of the file, or absolute" if is_path(one) else text


def _check(one: Term, place: Place) -> Callable[[Any], Any]:
    """Checks a value of a term as its class does, or, if that needs others, as the class of its part does."""
    is_alone = not any(other.is_required for other in terms_of(one.of))

    def check(value: Any) -> Any:
        given = value
        if one.kind == "part" and value is not None:
            inner = {other.name: place_of(other, place) for other in terms_of(one.part)}
            given = {name: getattr(value, at[-1]) for name, at in inner.items() if at[:-1] == place}
        try:
            if is_alone:
                one.of(**{one.name: given})
            elif one.kind == "part" and value is not None:
                one.part(**given)
        except InvalidRequestError as error:
            raise refused(error) from None
        return value

    return check


def _item(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


DesiredState = Literal["running", "stopped"]


class _UpgradeBase(FilePart):
    """How a changed version takes over."""

    timeout_seconds: float = Field(default=3600.0, gt=0, description="how long `apply` waits for its end")

    @model_validator(mode="after")
    def _has_no_contradiction(self) -> _UpgradeBase:
        try:
            names = {one.name for one in terms_of(UpgradeTerms)}.intersection(type(self).model_fields)
            UpgradeTerms(**{name: getattr(self, name) for name in names})
        except InvalidRequestError as error:
            raise refused(error) from None
        return self


class _StateBase(FilePart):
    """How Spark keeps the state. A change is an upgrade that rewrites the state."""


class _SnapshotsBase(FilePart):
    """Snapshots while the stream runs."""


class _StreamBase(FilePart):
    """All of one stream."""

    id: str = Field(description="the stream: 1 to 63 characters of a-z, 0-9 and '-'")
    desired_state: DesiredState = Field(
        default="running", description="`stopped`: a stream that runs is stopped, state kept"
    )
    depends_on: Texts = Field(default=(), description="streams of this folder that are applied before")

    @field_validator("retention", check_fields=False)
    @classmethod
    def _has_the_mirrors(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and value.at_mirrors and info.data.get("mirrors") == ():
            raise PydanticCustomError(REFUSED, "at_mirrors is for a stream with mirrors; give mirrors, too")
        return value


if TYPE_CHECKING:

    class UpgradePart(_UpgradeBase):
        """With the terms of an upgrade."""

    class StatePart(_StateBase):
        """With the terms of a rewrite."""

    class SnapshotsPart(_SnapshotsBase):
        """With the terms of snapshots."""

    class _StreamTerms(_StreamBase):
        """With the terms of a version, of a start and of a stream; ``term_parts.values_in`` reads them."""
else:
    UpgradePart = part_of("UpgradePart", ("upgrade",), _UpgradeBase)
    StatePart = part_of("StatePart", ("state",), _StateBase)
    SnapshotsPart = part_of("SnapshotsPart", ("snapshots",), _SnapshotsBase)
    _StreamTerms = part_of("StreamTerms", (), _StreamBase)


class StreamDeclaration(_StreamTerms):
    """All of one stream."""

    state: StatePart = Field(default=StatePart(), description="how Spark keeps the state")
    upgrade: UpgradePart = Field(default=UpgradePart(), description="how a changed version takes over")
    snapshots: SnapshotsPart = Field(default=SnapshotsPart(), description="while the stream runs")
