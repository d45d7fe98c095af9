"""Messages as JSON and back, by the types and the bounds of their fields; the version of the protocol."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import typing
import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Annotated, Any, ClassVar, TypeVar

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, UnsupportedVersionError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import UNIONS, hints_of
from airflow_streamstate.protocol.ids import (
    encode_query_name,
    is_deployment_id,
    is_id,
    is_scratch_id,
    is_sha256,
    is_upgrade_id,
)

# What the fields of messages may hold beyond their plain types; the codec checks it where a message is read.
#
# A field that becomes part of a key, a path or a command line, or that is counted with, has one of these types, so
# that what was read never surprises the code behind it.

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
    """In an ``Annotated`` type: what a value has to be, as text, and the test for it."""

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
    return all(map(_has_no_null_within, value)) if isinstance(value, (list, tuple)) else True


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
"""As all that end so: "" if not set."""
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


# The version of the protocol (not of the package), and the range that this package reads and writes.

OLDEST_PROTOCOL = 3
"""1 and 2 were those of checkouts before the first release, and are not read."""
NEWEST_PROTOCOL = 3


def version_for(claim_oldest: int, claim_newest: int) -> int:
    """The highest version that both this package and an agent know, from the range that its claim states.

    So a new controller can drain a months-old deployment in a form that its agent understands.

    Raises:
        UnsupportedVersionError: the two ranges do not meet.
    """
    highest = min(claim_newest, NEWEST_PROTOCOL)
    if highest < max(claim_oldest, OLDEST_PROTOCOL):
        raise UnsupportedVersionError(
            "this deployment's agent and this controller know no common protocol version",
            agent_protocols=f"{claim_oldest}..{claim_newest}",
            own_protocols=f"{OLDEST_PROTOCOL}..{NEWEST_PROTOCOL}",
            next_step="Use a release of airflow-streamstate whose protocols include one of the agent's.",
        )
    return highest


class Message:
    """Base of everything on the wire; ``kind`` names the message there.

    A message that ``is_digested`` carries the sha256 of its other fields, and is refused where they do not fit it. One
    that ``is_signed`` is believed only with a controller's signature, where the home has a key (``protocol.signing``).
    """

    kind: ClassVar[str] = ""
    most_bytes: ClassVar[int] = 4 << 20
    """A larger object is malformed, and is not read."""
    is_digested: ClassVar[bool] = False
    is_signed: ClassVar[bool] = False


class Tagged:
    """Base of the members of a union in a message: each is written with the name of its class as ``kind``."""


AnyMessage = TypeVar("AnyMessage", bound=Message)
Fields = TypeVar("Fields")
DIGEST = "digest"
BYTES_PER_VALUE = 12
"""At least, in a message that is larger than records are: a list of files has one value a line, with its name."""
_ZULU = re.compile("[Zz]$")  # Python 3.10 reads no Z
_KINDS: dict[str, type[Message]] = {}


def message(cls: type[AnyMessage]) -> type[AnyMessage]:
    """Register a frozen dataclass under its ``kind``, by default its class name."""
    if not cls.__dict__.get("kind"):
        cls.kind = cls.__name__
    if cls.kind in _KINDS:
        raise TypeError(f"two messages of kind {cls.kind}")
    _KINDS[cls.kind] = cls
    return cls


def messages_of(base: type[AnyMessage]) -> tuple[type[AnyMessage], ...]:
    """The registered messages of this class and those below it, in the order of their names."""
    return tuple(cls for _, cls in sorted(_KINDS.items()) if issubclass(cls, base))


def to_bytes(value: Message, protocol: int = NEWEST_PROTOCOL) -> bytes:
    """The message as UTF-8 JSON with sorted keys: equal messages are equal bytes.

    A lone surrogate, which UTF-8 cannot hold, becomes ``?``.
    """
    return encoded(to_json(value, protocol))


def encoded(plain: Mapping[str, object]) -> bytes:
    """A plain JSON object as ``to_bytes`` writes it."""
    text = json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="replace")


def to_json(value: Message, protocol: int = NEWEST_PROTOCOL) -> dict[str, object]:
    """The message as a plain JSON object, with its ``kind`` and ``protocol``, and its ``digest`` where it has one."""
    plain = {"kind": value.kind, "protocol": protocol, **fields_json(value)}
    return {**plain, DIGEST: digest_of(plain)} if value.is_digested else plain


def digest_of(plain: Mapping[str, object]) -> str:
    """The sha256 over the values, not the bytes: other whitespace or order of keys is no alteration."""
    content = {name: value for name, value in plain.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def fields_json(value: object) -> dict[str, object]:
    """The fields of a dataclass as plain JSON, those of a ``Tagged`` with its kind."""
    fields = dataclasses.fields(typing.cast("Any", value))
    kind = {"kind": type(value).__name__} if isinstance(value, Tagged) else {}
    return {**kind, **{field.name: plain_value(getattr(value, field.name)) for field in fields}}


def plain_value(value: object) -> object:
    """The value of any field as plain JSON."""
    if isinstance(value, datetime):
        return format_time(value)
    if dataclasses.is_dataclass(value):
        return fields_json(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    return value


def format_time(moment: datetime) -> str:
    """RFC 3339, UTC, milliseconds, Z.

    Raises:
        ValueError: it has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {moment!r}")
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """The aware UTC datetime of an RFC 3339 text.

    Raises:
        ValueError: it is not one, has no time zone, or is outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(_ZULU.sub("+00:00", text))
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def from_bytes(body: bytes, *, key: str, expected: type[AnyMessage] | tuple[type[AnyMessage], ...]) -> AnyMessage:
    """The message in these bytes.

    Args:
        key: of the object, for the error.
        expected: the class or classes that may be there.

    Raises:
        MalformedMessageError: not JSON, an unknown or unexpected kind, a field missing or wrong.
        UnsupportedVersionError: written in a protocol version that this package does not know.
    """
    return from_json(object_in(body, key=key), key=key, expected=expected)


def object_in(body: bytes, *, key: str) -> dict[str, Any]:
    """The plain JSON object in these bytes; raises MalformedMessageError for anything else."""
    _refuse_dense(body, key)
    try:
        raw = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in body.lower():
            # Half of a surrogate pair, escaped, can be read but never written again.
            json.dumps(raw, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _malformed(key, f"not JSON ({type(error).__name__})") from None
    if not isinstance(raw, dict):
        raise _malformed(key, "not a JSON object")
    return raw


def _refuse_dense(body: bytes, key: str) -> None:
    """Refuse many bytes with more values than any message of ours has: decoded, each takes a hundred bytes or more."""
    if len(body) <= Message.most_bytes:
        return
    values = sum(map(body.count, (b",", b"{", b"[")))
    if values * BYTES_PER_VALUE > len(body):
        raise _malformed(key, f"{values} values in {len(body)} bytes, which no message of ours has")


def from_json(
    raw: Mapping[str, Any], *, key: str, expected: type[AnyMessage] | tuple[type[AnyMessage], ...]
) -> AnyMessage:
    """The message in this JSON object; raises as ``from_bytes`` does."""
    classes = expected if isinstance(expected, tuple) else (expected,)
    protocol = raw.get("protocol")
    if isinstance(protocol, bool) or not isinstance(protocol, int):
        raise _malformed(key, "no protocol version")
    cls = _KINDS.get(str(raw.get("kind")))
    if not OLDEST_PROTOCOL <= protocol <= NEWEST_PROTOCOL:
        raise UnsupportedVersionError(
            "this object was written in a protocol version that is not known here",
            key=key,
            protocol=protocol,
            own_protocols=f"{OLDEST_PROTOCOL}..{NEWEST_PROTOCOL}",
            next_step="Use the release of airflow-streamstate that wrote it.",
        )
    if cls is None or not issubclass(cls, classes):
        names = "|".join(sorted(c.kind for c in classes if c.kind) or ["a known kind"])
        raise _malformed(key, f"kind {str(raw.get('kind'))[:60]!r} where {names} belongs")
    try:
        if cls.is_digested and raw.get(DIGEST) != digest_of(raw):
            raise FieldError("its digest does not match: it was altered")
        return read_fields(cls, raw)
    except FieldError as error:
        raise _malformed(key, str(error)) from None
    except RecursionError:
        raise _malformed(key, "it is nested too deep") from None


def refuse_unreadable(cls: type[Message], plain: Mapping[str, object], key: str) -> None:
    """Refuse to write what no reader would take, such as an empty query name that a caller gave.

    Raises:
        InvalidRequestError: a field does not fit.
    """
    try:
        read_fields(cls, plain)
    except FieldError as error:
        raise InvalidRequestError(
            "this cannot be recorded", key=key, reason=str(error), next_step="Give another value; nothing was written."
        ) from None


def _malformed(key: str, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        "this object is not what its key states",
        key=key,
        reason=reason,
        next_step="Restore it from a backup or a mirror; removing it loses what it records and what it names.",
    )


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


class FieldError(Exception):
    """Which field of a dataclass does not fit, and why."""


Reader = Callable[[Any, str], Any]
"""Gives the value of a field of this name from its JSON; raises FieldError."""


def read_fields(cls: type[Fields], raw: object) -> Fields:
    """The dataclass with these fields as ``fields_json`` gives them; unknown ones are ignored (Law 7).

    Raises:
        FieldError: one is missing, has another type, or is not what its type in ``protocol.codec`` requires.
    """
    if not isinstance(raw, Mapping):
        raise FieldError(f"{cls.__name__} is not an object")
    values: dict[str, Any] = {}
    for name, reader, is_optional in _readers(typing.cast("Any", cls)):
        if name in raw:
            values[name] = reader(raw[name], name)
        elif not is_optional:
            raise FieldError(f"field {name} is missing")
    try:
        return cls(**values)
    except (ValueError, InvalidRequestError) as error:
        raise FieldError(str(error)) from None


@functools.cache
def _readers(cls: type) -> tuple[tuple[str, Reader, bool], ...]:
    """Name, reader, and whether it may be left out, of each field."""
    hints = hints_of(cls)
    return tuple(
        (
            field.name,
            reader_of(hints[field.name]),
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING,
        )
        for field in dataclasses.fields(typing.cast("Any", cls))
    )


@functools.cache
def reader_of(hint: Any) -> Reader:
    """What reads values of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _checked(hint.__origin__, hint.__metadata__)
    if origin in UNIONS:
        return _union(arguments)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is tuple:
        return _list(reader_of(arguments[0]))
    if origin in (dict, Mapping):
        return _object(reader_of(arguments[0]), reader_of(arguments[1]))
    if hint is object or hint is Any:
        return lambda value, _name: value
    if hint is datetime:
        return _moment
    if dataclasses.is_dataclass(hint):
        return lambda value, _name: read_fields(typing.cast("type", hint), value)
    return {float: _float, int: _integer}.get(hint) or _exactly(hint)


def _checked(hint: Any, metadata: tuple[object, ...]) -> Reader:
    # Only the times of a query's rows have their own check: all others are moments.
    reader = _any_time if hint is datetime else reader_of(hint)
    checks = [one for one in metadata if isinstance(one, Checked)]

    def read(value: Any, name: str) -> Any:
        found = reader(value, name)
        for check in checks:
            if not check.fits(found):
                raise FieldError(f"field {name} is {ascii(found)[:80]}, which is not {check.what}")
        return found

    return read


def _union(options: tuple[Any, ...]) -> Reader:
    may_be_null = type(None) in options
    kinds = [option for option in options if option is not type(None)]
    if all(isinstance(kind, type) and issubclass(kind, Tagged) for kind in kinds):
        return _tagged({kind.__name__: reader_of(kind) for kind in kinds}, may_be_null=may_be_null)
    readers = [reader_of(option) for option in kinds]

    def read(value: Any, name: str) -> Any:
        if value is None and may_be_null:
            return None
        problem = FieldError(f"field {name} is null")
        for reader in readers:
            try:
                return reader(value, name)
            except FieldError as error:
                problem = error
        raise problem

    return read


def _tagged(readers: Mapping[str, Reader], *, may_be_null: bool) -> Reader:
    def read(value: Any, name: str) -> Any:
        if value is None and may_be_null:
            return None
        kind = value.get("kind") if isinstance(value, Mapping) else None
        reader = readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise FieldError(f"field {name} is {str(kind)[:60]!r}, not one of {sorted(readers)}")
        return reader(value, name)

    return read


def _literal(known: tuple[object, ...]) -> Reader:
    def read(value: Any, name: str) -> Any:
        if value not in known:
            raise FieldError(f"field {name} is {str(value)[:60]!r}, not one of {list(known)}")
        return value

    return read


def _list(reader: Reader) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, list):
            raise FieldError(f"field {name} is not a list")
        return tuple(reader(item, name) for item in value)

    return read


def _object(key_reader: Reader, reader: Reader) -> Reader:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise FieldError(f"field {name} is not an object")
        return {key_reader(str(key), name): reader(item, f"{name}.{key}") for key, item in value.items()}

    return read


def _any_time(value: Any, name: str) -> datetime:
    try:
        return parse_time(value)
    except (TypeError, ValueError):
        raise FieldError(f"field {name} is not a time") from None


def _moment(value: Any, name: str) -> datetime:
    found = _any_time(value, name)
    if not is_moment(found):
        raise FieldError(f"field {name} is the year {found.year}, not one from {FIRST_YEAR} to {LAST_YEAR}")
    return found


def _float(value: Any, name: str) -> Any:
    return float(_integer(value, name)) if type(value) is int else _exactly(float)(value, name)


def _integer(value: Any, name: str) -> Any:
    if not -MAX_INTEGER <= _exactly(int)(value, name) <= MAX_INTEGER:
        raise FieldError(f"field {name} is out of range")
    return value


@functools.cache
def _exactly(kind: type) -> Reader:
    """For str, int, float and bool, none of which is read as another one."""

    def read(value: Any, name: str) -> Any:
        if type(value) is not kind:
            raise FieldError(f"field {name} is not a {kind.__name__}")
        return value

    return read
