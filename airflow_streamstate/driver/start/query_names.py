"""The names of a script's queries (1a.12), by which each finds its checkpoint again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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
            plan_fingerprint: equal for the same plan; distinguishes a restart from a second unnamed query.

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
    """The name that a location gives; "" if it gives none."""
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


# Names that are other ones at each start of a script, so that no later start finds the query's state (1a.12).

_RANDOM = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_TEMPORARY = re.compile(r"^tmp[a-z0-9_]{8}$")
"""A folder of Python's ``tempfile``."""
_DATES = ("%Y-%m-%d", "%Y%m%d", "%Y_%m_%d")
_MOMENT = re.compile(r"(?<!\d)\d{10}(?:\d{3})?(?!\d)")
_LEAST_PID = 100
_FALLBACK = "main"


@dataclass(frozen=True)
class ThisStart:
    """What only this start has.

    Attributes:
        application_id: Spark's; "" where it is not known.
        process_id: of the driver.
        launch_key: of the driver; "" where it is not known.
    """

    now: datetime
    application_id: str = ""
    process_id: int = 0
    launch_key: str = ""


@dataclass(frozen=True)
class ChangingName:
    """A name that changes.

    Attributes:
        part: the part of it that does.
        what: that part, human-readable.
        is_certain: it is this start's own; else it looks so.
    """

    part: str
    what: str
    is_certain: bool = False


def find_changing(name: str, this: ThisStart, *, is_own: bool) -> ChangingName | None:
    """What of a query's name is another one at the next start; None for nothing that is known.

    ``is_own``: the script gives the name itself, by ``queryName``: one that only looks random is its own affair.
    """
    for own, what in ((this.application_id, "Spark's application id"), (this.launch_key, "the key of this launch")):
        if own and own in name:
            return ChangingName(own, what, is_certain=True)
    for pattern, what in () if is_own else ((_RANDOM, "a UUID"), (_TEMPORARY, "a temporary folder")):
        if found := pattern.search(name):
            return ChangingName(found[0], what)
    if this.process_id >= _LEAST_PID and (found := re.search(rf"(?<!\d){this.process_id}(?!\d)", name)):
        return ChangingName(found[0], "the number of the driver's process")
    return _of_time(name, this.now)


def _of_time(name: str, now: datetime) -> ChangingName | None:
    days = [now + timedelta(days=off) for off in (0, -1, 1)]  # the script's time zone is not known
    for text in (day.strftime(form) for day in days for form in _DATES):
        if text in name:
            return ChangingName(text, "the date of this start")
    for found in _MOMENT.finditer(name):
        seconds = int(found[0][:10])
        if abs(seconds - now.timestamp()) < timedelta(days=1).total_seconds():
            return ChangingName(found[0], "the time of this start")
    return None


def lasting_name(name: str, changing: ChangingName, checkpoint_location: str | None) -> str:
    """A name to propose: without the part that changes, else that of the folder above."""
    above = (checkpoint_location or "").rstrip("/").rpartition("/")[0].rpartition("/")[2]
    for found in (name.replace(changing.part, ""), above.replace(changing.part, "")):
        kept = re.sub(r"^[\W_]+|[\W_]+$", "", found)
        if kept and ":" not in kept:
            return kept
    return _FALLBACK


def describe_changing(
    stream_id: str, name: str, changing: ChangingName, checkpoint_location: str | None, *, is_own: bool, known_as: str
) -> str:
    """The remark on a query whose name changes.

    Args:
        name: the name that this start gives it.
        is_own: the script gives the name itself, by ``queryName``.
        known_as: the query whose state it must continue, for the option that requests this.
    """
    lasting = lasting_name(name, changing, checkpoint_location)
    place = "its queryName" if is_own else "the last part of its checkpointLocation"
    return (
        f"query {name} has its name from {place}, with {changing.what} in it: it has another name at the next start,"
        f' which does not find its state. Give it a lasting name in the script, .queryName("{lasting}"), and continue'
        f" with its state by `streamstate upgrade {stream_id} --app SCRIPT --rename-query {known_as}={lasting}`"
    )
