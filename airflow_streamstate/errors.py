"""Every error of the package, grouped by what the caller does next.

The remedy of a class is the only thing that decides whether anything is retried. Wording, everywhere: one lower-case
sentence of fact; then the facts as ``key=value``; then the next step. No message carries a secret.
The grouping by remedy follows SlateDB's RFC 0007 ("prefer coarse error types").
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any


class Remedy(enum.Enum):
    """What the caller of a failed operation does next."""

    FIX = "fix"
    RETRY = "retry"
    REREAD = "reread"
    READ_BACK = "read_back"
    STOP = "stop"
    REPAIR = "repair"
    INSPECT = "inspect"


class StreamStateError(Exception):
    """Base of all errors of this package; never raised itself.

    Args:
        message: one lower-case sentence of fact, without a full stop at its end.
        next_step: what the user does now, a whole sentence; "" for nothing to do.
        context: facts as keyword arguments; values are plain JSON.
    """

    remedy: Remedy = Remedy.INSPECT

    def __init__(self, message: str, *, next_step: str = "", **context: object) -> None:
        self.message = message
        self.next_step = next_step
        self.context = context
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.statement} {self.next_step}".rstrip()

    @property
    def statement(self) -> str:
        """The message with its facts, without the next step."""
        facts = " ".join(f"{key}={_shown(value)}" for key, value in self.context.items())
        return f"{self.message}. {facts}." if facts else f"{self.message}."

    def __reduce__(self) -> tuple[object, ...]:
        # Airflow pickles exceptions; keyword-only fields need a hand-written way back.
        return (_rebuild, (type(self), self.message, self.next_step, self.context))

    def to_json(self) -> dict[str, object]:
        """The error as the plain JSON object that every ``--json`` surface and trigger event carries."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "context": {key: _plain(value) for key, value in self.context.items()},
            "next_step": self.next_step,
        }


def _rebuild(cls: type[StreamStateError], message: str, next_step: str, context: dict[str, object]) -> StreamStateError:
    return cls(message, next_step=next_step, **context)


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, tuple, bool)):
        return json.dumps(_plain(value), ensure_ascii=False, default=str)
    text = _time(value) if isinstance(value, datetime) else str(value)
    return f'"{text}"' if " " in text and not text.startswith('"') else text


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _time(value) if isinstance(value, datetime) else str(value)


def _time(moment: datetime) -> str:
    """As on the wire: RFC 3339 with a Z."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class InvalidRequestError(StreamStateError):
    """A setting, an argument or a DAG is wrong."""

    remedy = Remedy.FIX


class SourceError(InvalidRequestError):
    """A partitioned source broke a promise of its interface, or its options are wrong."""


class StreamNotFoundError(InvalidRequestError):
    """No stream with this id is in this home."""


class DeploymentNotFoundError(InvalidRequestError):
    """The stream has no such deployment."""


class SnapshotNotFoundError(InvalidRequestError):
    """The stream has no such complete snapshot."""


class IncompatibleUpgradeError(InvalidRequestError):
    """The new version cannot start from what the old one left."""


class InputLostError(InvalidRequestError):
    """Input after a stored offset is gone at its source, or the source is another one of the same name."""


class StartRefusedError(InvalidRequestError):
    """The driver refused a start that would lose, double or mix rows; the query that it names did not run."""


class HomeNotFoundError(InvalidRequestError):
    """No home is at this place: its disk is not mounted, it was moved or removed, or nothing was deployed yet."""


class HomeFormatError(InvalidRequestError):
    """Another version of this package wrote the home, in a format that this one does not read; nothing was changed."""


class StoreRefusedError(InvalidRequestError):
    """The store denies access: no permission, no valid credentials, or no such bucket; nothing was changed."""


class ReadOnlyError(StoreRefusedError):
    """The disk of the home, the checkpoints or a place is mounted read-only; nothing was changed."""


class UnavailableError(StreamStateError):
    """The store, the disk or the network did not answer; nothing was changed."""

    remedy = Remedy.RETRY


class StillReadingError(UnavailableError):
    """There is more to read of this stream than one poll of many reads; the next poll reads on."""


class HomeAwayError(UnavailableError):
    """The home that this process used before cannot be reached now; nothing was changed."""


class ConflictError(StreamStateError):
    """Another writer changed it first, or the state of the stream forbids this; read again, decide again."""

    remedy = Remedy.REREAD


class ObjectExistsError(ConflictError):
    """A create met an object that was there already."""


class VersionConflictError(ConflictError):
    """A replace or delete met another version than the one it was based on."""


class OutcomeUnknownError(StreamStateError):
    """The write may have landed; read it back before anything else."""

    remedy = Remedy.READ_BACK


class FencedError(StreamStateError):
    """A newer holder exists; write nothing more and stop."""

    remedy = Remedy.STOP


class DataError(StreamStateError):
    """What is stored cannot be trusted or understood."""

    remedy = Remedy.REPAIR


class MalformedMessageError(DataError):
    """An object does not parse as what its key names."""


class UntrustedRecordError(DataError):
    """A record names another place, process or file than its reader's own configuration and its ids give."""


class SignatureError(DataError):
    """A record that only controllers write has no valid signature; it is not acted on."""


class UnsupportedVersionError(DataError):
    """An object was written in a protocol or format that this version does not know."""


class UnsupportedCheckpointError(DataError):
    """A checkpoint, trigger or setting that this version refuses before it touches anything."""


class SnapshotIncompleteError(DataError):
    """A snapshot lacks a file that its manifest names, or lacks the manifest."""


class SnapshotCorruptError(DataError):
    """A file of a snapshot differs from its manifest."""


class DeadlineExceededError(StreamStateError):
    """A wait reached its deadline; the context shows what was last seen."""


class ExpiredError(DeadlineExceededError):
    """A command was read after its deadline and was not started; waiting longer does not help."""

    remedy = Remedy.REREAD


class DeploymentFailedError(StreamStateError):
    """The streaming job reported a failure; the context carries its words."""


class DeploymentRefusedError(DeploymentFailedError):
    """The driver refused a start that would lose, double or mix rows; the context carries its words."""

    remedy = Remedy.FIX


class ObjectMissingError(DataError):
    """An object to copy or link is missing."""


def read_error(raw: Mapping[str, Any]) -> StreamStateError:
    """The error in an object of ``StreamStateError.to_json``; a DataError for a class that is not known here."""
    kind = globals().get(str(raw["type"]))
    is_known = isinstance(kind, type) and issubclass(kind, StreamStateError)
    found: type[StreamStateError] = kind if isinstance(kind, type) and is_known else DataError
    return found(str(raw["message"]), next_step=str(raw["next_step"]), **raw["context"])
