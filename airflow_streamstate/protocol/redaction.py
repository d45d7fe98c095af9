"""What must not be shown: values under secret-like names, in configuration, arguments, URIs and free texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from airflow_streamstate.protocol.causes import for_one_line
from airflow_streamstate.protocol.references import is_reference

HIDDEN = "***"
MIN_SECRET_CHARACTERS = 4
"""Shorter values are not searched for in texts: hiding every ``1`` would hide everything."""
MIN_LINE_CHARACTERS = 8
"""The same for one line of a secret of several lines."""

_NAMES_TO_HIDE = (
    r"secret|passw|passphrase|pwd|token|credential|signature|authorization|sasl\.jaas"
    r"|(?:access|api|private|session|account|storage|sas|shared|encryption|signing|ssh|fernet|master|license)[._-]?key|(?<![a-z])(?:auth|pass|creds?)(?![a-z])"
)
_SECRET_NAME = re.compile(_NAMES_TO_HIDE, re.IGNORECASE)
# Bounded: else a word of a megabyte in a traceback costs quadratic time.
_URI_USERINFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)(?P<userinfo>[^/\s?#\"']*)@", re.IGNORECASE)
# No start overlaps another's end, and the names are judged in Python: else some kilobytes of ``?`` cost cubic time.
_UP_TO_EQUALS = re.compile(r"(?:\A|(?<=[&;=\s]))[^&;=\s]*=")
_REST_UP_TO_EQUALS = re.compile(r"[^&;=\s]*=")
_PARAMETER_VALUE = re.compile(r"[^&;\s\"']*")
_JSON_PAIR = re.compile(r"(?P<quote>[\"'])(?P<name>[^\"']*)(?P=quote)\s*:\s*(?P<open>[\"'])")
_JSON_VALUES = {quote: re.compile(rf"(?:\\.|[^{quote}\n])*") for quote in "\"'"}


def is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name))


def redact_uri(text: str) -> str:
    """The text without passwords of URIs, secret parameters (``?token=…``, ``;password=…``) and pairs of JSON."""
    text = _URI_USERINFO.sub(lambda match: match.group(0) if _is_plain(match) else f"{match['scheme']}{HIDDEN}@", text)
    return _without(_without(text, _parameter_values), _json_values)


def _without(text: str, spans: Callable[[str], Iterator[tuple[int, int]]]) -> str:
    parts, at = [], 0
    for start, end in spans(text):
        parts += [text[at:start], HIDDEN]
        at = end
    return "".join((*parts, text[at:]))


def _parameter_values(text: str) -> Iterator[tuple[int, int]]:
    """Where the values of secret parameters begin and end."""
    found = _UP_TO_EQUALS.search(text)
    while found is not None:
        end = found.end()
        if _is_secret_parameter(text, found):
            value = _PARAMETER_VALUE.match(text, end)
            start, end = end, end if value is None else value.end()
            yield start, end
        found = _REST_UP_TO_EQUALS.match(text, end) or _UP_TO_EQUALS.search(text, end)


def _is_secret_parameter(text: str, found: re.Match[str]) -> bool:
    is_whole = text[max(found.start() - 1, 0) : found.start()] in ("&", ";")
    name = found[0] if is_whole else "".join(found[0].partition("?")[1:])
    return is_secret_name(name)


def _json_values(text: str) -> Iterator[tuple[int, int]]:
    """Where the values of secret pairs begin and end, without their quotes."""
    found = _JSON_PAIR.search(text)
    while found is not None:
        end = found.start("name")  # the text of a pair that is shown may begin another one
        if is_secret_name(found["name"]):
            value = _JSON_VALUES[found["open"]].match(text, found.end())
            start, end = found.end(), found.end() if value is None else value.end()
            yield start, end
        found = _JSON_PAIR.search(text, end)


def secrets_of(
    conf: Mapping[str, str],
    arguments: Iterable[str],
    environment: Mapping[str, str] | None = None,
    looked_up: Iterable[str] = (),
) -> tuple[str, ...]:
    """The secret values, longest first, to hide them in texts such as log tails.

    Args:
        conf, arguments, environment: as given; a reference to a secret is no secret itself.
        looked_up: values that references stand for, secret whatever their names.
    """
    found = set(looked_up)
    for name, value in [*conf.items(), *(environment or {}).items()]:
        found.update(secrets_in_value(name, value))
    for argument, _, secret in named_secrets(arguments):
        found.update(_secrets_in(argument) if secret is None else (secret,))
    worth_it = {part for value in found if not is_reference(value) for part in _as_texts_have_it(value)}
    return tuple(sorted(worth_it, key=lambda value: (-len(value), value)))


def _as_texts_have_it(value: str) -> Iterator[str]:
    """A secret without the newline of its file, and line by line, as a log shows a key."""
    yield from (whole for whole in (value, value.strip()) if len(whole) >= MIN_SECRET_CHARACTERS)
    lines = value.split("\n")
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= MIN_LINE_CHARACTERS)


def secrets_in_value(name: str, value: str) -> set[str]:
    """What is secret in a value of this name: all of it, or what a URI or JSON in it holds."""
    return ({value} if is_secret_name(name) else set()) | set(_secrets_in(value))


STATE_CHECK_STAYS = "Do not switch that check off: old state would be read as what it is not."
_HARMFUL_ADVICE = re.compile(
    r"If you want to force running (?:the )?query without schema validation, please set \S+ to false\."
    r"(?:\s+(?:However, )?please note(?: that)? running (?:the )?query with incompatible schema[^.]*\.)?",
    re.IGNORECASE,
)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """The text with every one of the secrets hidden, and without Spark's advice to read state as what it is not."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return redact_uri(_HARMFUL_ADVICE.sub(STATE_CHECK_STAYS, text))


def shortened(
    text: str, secrets: Iterable[str], characters: int, *, from_end: bool = False, in_a_line: bool = False
) -> str:
    """At most so many characters of a text; secrets are hidden before the cut, which could leave half of one.

    Args:
        from_end: keep its end instead of its beginning.
        in_a_line: as ``causes.for_one_line``.
    """
    text = redact_text(text, secrets)
    if in_a_line:
        text = for_one_line(text)
    return text[-characters:] if from_end else text[:characters]


def named_secrets(arguments: Iterable[str]) -> Iterator[tuple[str, str, str | None]]:
    """Each argument, the name of its secret ("" for none), and the secret (None where it has none)."""
    option = ""
    for argument in arguments:
        is_option = argument.startswith("-")
        name, secret = _named_secret(argument)
        if option and not is_option:
            yield argument, option, argument
        else:
            yield argument, name, secret
        option = argument if is_option and "=" not in argument and is_secret_name(argument) else ""


def _named_secret(argument: str) -> tuple[str, str | None]:
    # The first name that is secret-like counts: ``--conf=spark.some.secret=a=b`` has the secret ``a=b``.
    at = argument.find("=")
    while at >= 0 and _is_name(argument[:at]):
        if is_secret_name(argument[:at]):
            return argument[:at], argument[at + 1 :]
        at = argument.find("=", at + 1)
    return "", None


def _is_name(text: str) -> bool:
    """Whether this may be a name, and is no URI or JSON, which have their own patterns."""
    return not any(sign in text for sign in ("://", "{", "?", "&", ";"))


def _secrets_in(text: str) -> Iterator[str]:
    for match in _URI_USERINFO.finditer(text):
        if not _is_plain(match):
            user, colon, password = match["userinfo"].partition(":")
            yield password if colon else user
    for spans in (_parameter_values, _json_values):
        yield from (text[start:end] for start, end in spans(text))


def _is_plain(match: re.Match[str]) -> bool:
    """A user without a password is shown (``abfss://container@account``), but for http, where it is a token."""
    return ":" not in match["userinfo"] and not match["scheme"].lower().startswith("http")


def printable(text: str) -> str:
    """The text without characters that could act on a terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
