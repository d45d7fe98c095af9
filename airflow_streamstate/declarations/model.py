"""What a file says of a stream. The JSON schema that editors take is made from these classes.

Its terms are those of versions, starts, streams, upgrades and rewrites (``term_parts``); here are only the fields that
files alone have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from airflow_streamstate.declarations.term_parts import REFUSED, Part, Texts, part_of, refused
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms

DesiredState = Literal["running", "stopped"]


class _UpgradeBase(Part):
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


class _StateBase(Part):
    """How Spark keeps the state. A change is an upgrade that rewrites the state."""


class _SnapshotsBase(Part):
    """Snapshots while the stream runs."""


class _StreamBase(Part):
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
