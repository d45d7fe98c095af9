"""What a script read before a query of it started: files and variables, which are not pinned; and what has changed.

A record holds no content. A file with a name like a secret's has no digest, nor has a variable; the mark of any other
variable has 12 bits, which show a change, and fit too many values to guess one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    Count,
    Message,
    QueryName,
    RunId,
    Sha256OrNone,
    StreamId,
    message,
)

Place = Literal["script", "working", "argument", "files"]
"""Where a file is: below the script's folder, or the current one; named by an argument; given by ``--files``."""
ChangeKind = Literal["changed", "missing", "new", "variable"]
UNSET = "unset"
SECRET = "secret"  # noqa: S105  a word in a record
MOST_TOLD = 5


@dataclass(frozen=True)
class FileRead:
    """A file that the script opened for reading.

    Attributes:
        name: its path below ``place``; of an argument as given; of ``--files`` its name.
        modified_at: its modification time when it was opened.
        sha256: of its bytes; "" above 1 MiB, and for a name like a secret's.
    """

    name: str
    place: Place
    size_bytes: Count
    modified_at: datetime
    sha256: Sha256OrNone = ""

    @property
    def identity(self) -> tuple[Place, str]:
        """What distinguishes it from other files of a script, on any machine."""
        return self.place, self.name

    def is_as(self, other: FileRead) -> bool:
        """Whether both have the same content, as far as that is known."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return (self.size_bytes, self.modified_at) == (other.size_bytes, other.modified_at)


@message
@dataclass(frozen=True)
class ScriptReads(Message):
    """What the script had read when a query started; created once for each query and attempt, after its start.

    Attributes:
        files: those that count, in the order in which they were first opened.
        others: how many more were opened.
        variables: those that the deployment was given, and those that the script read by name: the reference to a
            secret, ``secret``, ``unset``, or ``=`` and a mark of the value.
    """

    stream_id: StreamId
    deployment_id: RunId
    attempt: Attempt
    query_name: QueryName
    files: tuple[FileRead, ...]
    write_id: str
    recorded_at: datetime
    others: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadChange:
    """One difference between two records; ``text`` is a sentence without its point."""

    kind: ChangeKind
    name: str
    text: str


def compare_reads(before: ScriptReads, now: ScriptReads) -> tuple[ReadChange, ...]:
    """What differs in what the script read: changed files first, then variables, then files of one side alone.

    Files of one side alone are left out where one of the records does not have all files.
    """
    since = f"attempt {before.attempt}"
    if before.deployment_id != now.deployment_id:
        since += f" of {before.deployment_id}"
    old, new = _by_identity(before), _by_identity(now)
    changed = [
        ReadChange("changed", name, changed_words(file, since, before.recorded_at, now.recorded_at))
        for (place, name), file in new.items()
        if (place, name) in old and not file.is_as(old[place, name])
    ]
    variables = [
        ReadChange("variable", name, text)
        for name in before.variables
        if name in now.variables and (text := _of_variable(name, before.variables[name], now.variables[name], since))
    ]
    if before.others or now.others:
        return (*changed, *variables)
    missing = [
        ReadChange("missing", name, f"{name} was read by {since}, and was not read now")
        for place, name in old
        if (place, name) not in new
    ]
    more = [
        ReadChange("new", name, f"{name} was not read by {since}, and was read now")
        for place, name in new
        if (place, name) not in old
    ]
    return (*changed, *variables, *missing, *more)


def changed_words(file: FileRead, since: str, read_at: datetime, now: datetime) -> str:
    """The sentence on a file that has another content than ``since`` read; ``now`` decides whether to give the day."""
    at = file.modified_at
    moment = f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"
    if at < read_at:
        return f"{file.name} was replaced since {since}, by a file of {moment}"
    return f"{file.name} changed at {moment} since {since}"


def told(changes: tuple[ReadChange, ...]) -> tuple[str, ...]:
    """The first few sentences, and how many more there are."""
    texts = tuple(change.text for change in changes[:MOST_TOLD])
    more = len(changes) - len(texts)
    return (*texts, f"{more} more files or variables differ") if more else texts


def _by_identity(reads: ScriptReads) -> dict[tuple[Place, str], FileRead]:
    return {file.identity: file for file in reads.files}


def _of_variable(name: str, before: str, now: str, since: str) -> str:
    """The sentence on a variable; "" where no change is known."""
    if before == now or SECRET in (before, now):
        return ""
    if now == UNSET:
        return f"variable {name} is not set, and was set in {since}"
    if before == UNSET:
        return f"variable {name} is set, and was not set in {since}"
    return f"variable {name} changed since {since}"
