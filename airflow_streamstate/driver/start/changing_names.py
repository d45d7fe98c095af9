"""Names that are other ones at each start of a script, so that no later start finds the query's state (1a.12)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

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
        what: that part, for people.
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
        known_as: the query whose state it is to go on with, for the option that says so.
    """
    lasting = lasting_name(name, changing, checkpoint_location)
    place = "its queryName" if is_own else "the last part of its checkpointLocation"
    return (
        f"query {name} has its name from {place}, with {changing.what} in it: it has another name at the next start,"
        f' which does not find its state. Give it a lasting name in the script, .queryName("{lasting}"), and go on with'
        f" its state by `streamstate upgrade {stream_id} --app SCRIPT --rename-query {known_as}={lasting}`"
    )
