"""What the fields of messages may hold beyond their plain types; the codec checks it where a message is read.

A field that becomes part of a key, a path or a command line, or that is counted with, has one of these types, so that
what was read never surprises the code behind it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.ids import (
    encode_query_name,
    is_deployment_id,
    is_id,
    is_scratch_id,
    is_sha256,
    is_upgrade_id,
)

MOST_ATTEMPTS = 1_000_000
MOST_TOKENS = 10**12 - 1
MOST_SECONDS = 1e10
"""Some 317 years: added to a moment, it is still one."""
MAX_INTEGER = 2**63 - 1
"""The largest whole number of a record; its negative is the least."""
FIRST_YEAR, LAST_YEAR = 1000, 9000
"""Of moments: the difference of two, and each with ``MOST_SECONDS`` added, are in the calendar."""


@dataclass(frozen=True)
class Checked:
    """In an ``Annotated`` type: what a value has to be, in words, and the test for it."""

    what: str
    fits: Callable[[Any], bool]


def _or_empty(fits: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: not value or fits(value)


def _is_run(value: str) -> bool:
    return is_deployment_id(value) or is_scratch_id(value) or is_upgrade_id(value)


def _is_query_name(value: str) -> bool:
    try:
        encode_query_name(value)
    except InvalidRequestError:
        return False
    return True


def _has_no_null(value: str) -> bool:
    return "\x00" not in value


def _has_no_null_within(value: object) -> bool:
    if isinstance(value, str):
        return _has_no_null(value)
    if isinstance(value, Mapping):
        return all(_has_no_null(str(key)) and _has_no_null_within(item) for key, item in value.items())
    return all(map(_has_no_null_within, value)) if isinstance(value, list | tuple) else True


def _is_relative_path(value: str) -> bool:
    parts = value.split("/")
    return _has_no_null(value) and not any(part in ("", ".", "..") for part in parts)


def _is_file_name(value: str) -> bool:
    return _is_relative_path(value) and not any(unicodedata.category(sign) == "Cc" for sign in value)


def is_moment(value: datetime) -> bool:
    """Whether arithmetic with this time stays in the calendar."""
    return FIRST_YEAR <= value.year <= LAST_YEAR


StreamId = Annotated[str, Checked("a stream id", is_id)]
DeploymentId = Annotated[str, Checked("a deployment id", is_deployment_id)]
DeploymentIdOrNone = Annotated[str, Checked("a deployment id", _or_empty(is_deployment_id))]
"""As all that end so: "" for none."""
RunId = Annotated[str, Checked("the id of a deployment, a scratch run or an upgrade", _is_run)]
"""Of what a driver is launched for, whose records have the keys of a deployment's."""
SnapshotId = Annotated[str, Checked("a snapshot id", is_id)]
SnapshotIdOrNone = Annotated[str, Checked("a snapshot id", _or_empty(is_id))]
RehearsalId = Annotated[str, Checked("a rehearsal id", is_scratch_id)]
RehearsalIdOrNone = Annotated[str, Checked("a rehearsal id", _or_empty(is_scratch_id))]
UpgradeId = Annotated[str, Checked("an upgrade id", is_upgrade_id)]
UpgradeIdOrNone = Annotated[str, Checked("an upgrade id", _or_empty(is_upgrade_id))]
ScratchId = Annotated[str, Checked("the id of a scratch run", is_scratch_id)]
RequestId = Annotated[str, Checked("a request id", is_id)]
LaunchKey = Annotated[str, Checked("a launch key", is_id)]
QueryName = Annotated[str, Checked("a query name", _is_query_name)]
QueryNameOrNone = Annotated[str, Checked("a query name", _or_empty(_is_query_name))]
Sha256 = Annotated[str, Checked("a sha256", is_sha256)]
Sha256OrNone = Annotated[str, Checked("a sha256", _or_empty(is_sha256))]
Attempt = Annotated[int, Checked("the number of an attempt", lambda value: 0 <= value <= MOST_ATTEMPTS)]
Token = Annotated[int, Checked("a fencing token", lambda value: 0 <= value <= MOST_TOKENS)]
Count = Annotated[int, Checked("a count", lambda value: value >= 0)]
Seconds = Annotated[float, Checked("a number of seconds", lambda value: abs(value) <= MOST_SECONDS)]
Milliseconds = Annotated[int, Checked("a number of milliseconds", lambda value: abs(value) <= MOST_SECONDS * 1000)]
RelativePath = Annotated[str, Checked("a path below its folder", _is_relative_path)]
FileName = Annotated[str, Checked("a path below its folder without control characters", _is_file_name)]
"""Of a file that is placed for a driver, and shown to people."""
Word = Annotated[str, Checked("a text without null characters", _has_no_null)]
"""Becomes part of a path, a command line or an environment."""
Facts = Annotated[Mapping[str, object], Checked("an object without null characters", _has_no_null_within)]
EventTime = Annotated[datetime, Checked("a time", lambda _value: True)]
"""From the rows of a query: any time that there is. Every other time is a moment, see ``is_moment``."""
