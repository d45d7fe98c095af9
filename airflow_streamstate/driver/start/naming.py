"""The names of a script's queries (1a.12), by which each finds its checkpoint again.

A name is the ``queryName``, else the last part of the script's own ``checkpointLocation``, else ``query-1`` for the
only query without either. A query that ended and is started again keeps its name. One that the script names otherwise
than before keeps the name by which the stream knows it, where the user said so (``--rename-query``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import encode_query_name

ONLY_UNNAMED = "query-1"


@dataclass(frozen=True)
class Origin:
    """What a name was taken from; equal for the same query.

    Attributes:
        kind: ``name``, ``location`` or ``unnamed``.
        detail: the name, the whole location, or the fingerprint of the plan ("" where it is not known).
    """

    kind: str
    detail: str


class NameBook:
    """The names that were given in this attempt.

    Args:
        renamed: by the name that the stream knows, the name that the script gives now.
    """

    def __init__(self, renamed: Mapping[str, str] = MappingProxyType({})) -> None:
        self._known_as = {new: old for old, new in renamed.items()}
        self._origins: dict[str, Origin] = {}

    def name_of(self, query_name: str | None, checkpoint_location: str | None, plan_fingerprint: str = "") -> str:
        """The name of a query that is about to be started.

        Args:
            checkpoint_location: the script's own ``checkpointLocation``.
            plan_fingerprint: equal for the same plan; tells a restart from a second unnamed query.

        Raises:
            InvalidRequestError: two queries have this name, or it cannot be part of a key.
        """
        given, origin = _candidate(query_name, checkpoint_location, plan_fingerprint)
        name = self._known_as.get(given, given)
        known = self._origins.get(name)
        if known is not None and known != origin:
            raise _not_certain(name, known, origin)
        encode_query_name(name)  # for its refusal
        self._origins[name] = origin
        return name


def last_part(checkpoint_location: str | None) -> str:
    """The name that a location gives; "" for none."""
    found = (checkpoint_location or "").rstrip("/").rpartition("/")[2]
    return "" if found.endswith(":") else found


def _candidate(query_name: str | None, checkpoint_location: str | None, fingerprint: str) -> tuple[str, Origin]:
    if query_name:
        return query_name, Origin("name", query_name)
    of_location = last_part(checkpoint_location)
    if of_location:
        return of_location, Origin("location", (checkpoint_location or "").rstrip("/"))
    return ONLY_UNNAMED, Origin("unnamed", fingerprint)


def _not_certain(name: str, known: Origin, origin: Origin) -> InvalidRequestError:
    if known.kind == "unnamed" and origin.kind == "unnamed":
        message = "this script starts more than one query without a name"
    else:
        message = "two queries of this script have the same name"
    return InvalidRequestError(
        message,
        query_name=name,
        taken_from=f"{known.kind}:{known.detail}" if known.kind != "unnamed" else "unnamed",
        also_from=f"{origin.kind}:{origin.detail}" if origin.kind != "unnamed" else "unnamed",
        next_step="Give each query its own .queryName(…): the name is how its state is found again.",
    )
