"""Ids: their form, their checks, how query names become parts of keys, and who requested something."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError

MAX_ID_CHARACTERS = 63
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DEPLOYMENT = re.compile(r"d-([0-9]{4}|[1-9][0-9]{4,11})")
_BACK = "back"

SnapshotKind = Literal["live", "stopped", "pre-drain", "drained"]


def check_id(value: str, what: str) -> str:
    """The id itself: ``[a-z0-9-]``, 1 to 63 characters, no dash at either end.

    Raises:
        InvalidRequestError: it has another form.
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        shown = value if isinstance(value, str) and len(value) <= 80 else f"{str(value)[:80]}…"
        raise InvalidRequestError(
            f"this is not a valid {what}",
            **{what.replace(" ", "_"): repr(shown)},
            next_step=f"Use 1 to {MAX_ID_CHARACTERS} characters of a-z, 0-9 and '-', not starting or ending with '-'.",
        )
    return value


def is_id(value: str) -> bool:
    """Whether this has the form of an id; files that people put alongside ours (``d-0001.bak``) mostly have not."""
    return _ID.fullmatch(value) is not None


def is_sha256(value: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", value) is not None


def check_stream_id(value: str) -> str:
    return check_id(value, "stream id")


def deployment_id_for(fencing_token: int) -> str:
    """The id of the deployment with this fencing token; a stream's first has 1."""
    return f"d-{fencing_token:04d}"


def fencing_token_of(deployment_id: str) -> int:
    """The fencing token in a deployment id.

    Raises:
        InvalidRequestError: it is no deployment id.
    """
    match = _DEPLOYMENT.fullmatch(deployment_id)
    if not match:
        raise InvalidRequestError(
            "this is not a deployment id",
            deployment_id=repr(deployment_id[:80]),
            next_step="Deployment ids look like d-0001; `streamstate status` shows the current one.",
        )
    return int(match.group(1))


def is_deployment_id(value: str) -> bool:
    return _DEPLOYMENT.fullmatch(value) is not None


def order_of(deployment_id: str) -> tuple[int, str]:
    """Sort key: deployments of a stream in the order of their creation."""
    return len(deployment_id), deployment_id


def snapshot_id_for(deployment_id: str, kind: SnapshotKind, number: int) -> str:
    """The one id of a snapshot; ``number`` is the attempt that ended, or for ``live`` the number of the command."""
    return f"{deployment_id}-{kind}-{number:06d}"


def is_snapshot_of(snapshot_id: str, deployment_id: str) -> bool:
    return snapshot_id.startswith(f"{deployment_id}-")


def snapshot_number_of(snapshot_id: str) -> int | None:
    """The number at the end of a snapshot id; None without one."""
    number = snapshot_id.rpartition("-")[2]
    return int(number) if re.fullmatch(r"[0-9]{1,18}", number) else None


def periodic_snapshot_id_for(deployment_id: str, attempt: int, number: int) -> str:
    """The id of the ``number``-th ``live`` snapshot, from 1, that an attempt took without a request."""
    return f"{deployment_id}-live-a{attempt:04d}-{number:06d}"


def is_snapshot_by_command(snapshot_id: str, deployment_id: str) -> bool:
    """Whether this is the id of a ``live`` snapshot of this deployment that a command asked for."""
    return re.fullmatch(rf"{re.escape(deployment_id)}-live-[0-9]+", snapshot_id) is not None


def scratch_id_for(request_id: str, number: int) -> str:
    """The id of the ``number``-th scratch run of a request, from 1."""
    return f"r-{_short_digest(request_id)}-{number:04d}"


def _short_digest(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()[:12]


def is_scratch_id(value: str) -> bool:
    return re.fullmatch(r"r-[0-9a-f]{12}-[0-9]{4}", value) is not None


def upgrade_id_for(request_id: str) -> str:
    return f"u-{_short_digest(request_id)}"


def is_upgrade_id(value: str) -> bool:
    return re.fullmatch(r"u-[0-9a-f]{12}", value) is not None


def return_request_id_for(upgrade_id: str, way: str) -> str:
    """The request id of the deployment by which an upgrade, or a rollback, goes back in this way."""
    return f"{upgrade_id}-{_BACK}-{way}"


def upgrade_of_return(request_id: str) -> str | None:
    """The upgrade, or rollback, whose return this request was; None for any other request."""
    upgrade_id, is_return, _ = request_id.partition(f"-{_BACK}-")
    return upgrade_id if is_return and is_upgrade_id(upgrade_id) else None


def upgrade_of_rehearsal(request_id: str) -> str | None:
    """The upgrade, or rollback, that asked for the rehearsal of this request; None for any other rehearsal."""
    upgrade_id = "-".join(request_id.split("-")[:2])
    return upgrade_id if is_upgrade_id(upgrade_id) and upgrade_id != request_id else None


def launch_key_for(deployment_id: str, attempt: int) -> str:
    """The id of one driver process: the same key twice is the same driver."""
    return f"{deployment_id}-a{attempt:04d}"


def attempt_of(launch_key: str) -> int:
    """The attempt in a launch key.

    Raises:
        InvalidRequestError: it is no launch key.
    """
    deployment_id, _, number = launch_key.rpartition("-a")
    if not number.isdecimal() or launch_key_for(deployment_id, int(number)) != launch_key:
        raise InvalidRequestError("this is not a launch key", launch_key=repr(launch_key[:80]))
    return int(number)


def rehearsal_id_in(launch_key: str) -> str | None:
    """The rehearsal for which a driver was launched; None for one that was launched for an attempt."""
    rehearsal_id = launch_key.rpartition("-a")[0]
    return rehearsal_id if is_scratch_id(rehearsal_id) else None


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
MAX_ENCODED_CHARACTERS = 240
"""File systems take names of 255 bytes."""


def encode_query_name(query_name: str) -> str:
    """A query name as one part of a key: letters, digits and ``-`` stay, every other byte becomes ``=XX``.

    Not percent-encoding: Spark has un-escaped percent signs in checkpoint paths.

    Raises:
        InvalidRequestError: the name is empty, too long, or not valid UTF-8.
    """
    try:
        encoded = "".join(chr(byte) if chr(byte) in _PLAIN else f"={byte:02X}" for byte in query_name.encode())
    except UnicodeEncodeError:
        encoded = ""
    if not encoded or len(encoded) > MAX_ENCODED_CHARACTERS:
        raise InvalidRequestError(
            "a query name is empty, too long or no text",
            query_name=ascii(query_name[:80]),
            max_characters=MAX_ENCODED_CHARACTERS,
            next_step="Name the query with .queryName(…); every other character than a-z A-Z 0-9 - counts three "
            "times per byte.",
        )
    return encoded


def decode_query_name(part: str) -> str:
    """The inverse of ``encode_query_name``.

    Raises:
        InvalidRequestError: no query name encodes to this.
    """
    try:
        name = re.sub(rb"=([0-9A-F]{2})", lambda m: bytes.fromhex(m.group(1).decode()), part.encode()).decode()
        if encode_query_name(name) == part:
            return name
    except (UnicodeError, InvalidRequestError):
        pass
    raise InvalidRequestError("this key part is no encoded query name", part=ascii(part[:80]))


# Who asked for something, as records name it: ``PERSON (MEANS)``, or only the means where no person is known.
#
# Of Airflow the person is the user that Airflow's API server signed in; of the shell the user of the machine.

MOST_CHARACTERS = 250


def requester(person: str | None, means: str) -> str:
    """The text of records.

    Args:
        person: the name of the user; None or "" where nobody is known, e.g. of a scheduled run.
        means: what the person has used, e.g. ``shell``.
    """
    means = _one_line(means)
    name = _one_line(person or "")
    return f"{name} ({means.replace('(', '[').replace(')', ']')})" if name else means.replace(" (", " [")


def person_of(text: str) -> str:
    """The person that a record names; "" where it names none."""
    return text.rpartition(" (")[0] if text.endswith(")") else ""


def means_of(text: str) -> str:
    """What was used."""
    return text.rpartition(" (")[2].removesuffix(")") if person_of(text) else text


def is_same_person(one: str, other: str) -> bool:
    """Whether two names are of one person: Airflow's auth managers and directories differ in the case of letters."""
    return one.strip().casefold() == other.strip().casefold()


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:MOST_CHARACTERS]
