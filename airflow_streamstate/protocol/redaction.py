"""What must not be shown: secret values in configuration, arguments, URIs and texts; references to them; causes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass

# References to secrets: what ``conf``, ``arguments`` and ``environment`` hold instead of a secret value.
#
# ``secret://airflow-connection/<conn_id>[#part]``, ``secret://airflow-variable/<key>`` and ``env://NAME``. Only the
# reference is recorded; the launching controller looks the value up at each launch.

SourceName = Literal["airflow-connection", "airflow-variable", "env"]
PARTS = ("password", "login", "host", "port", "schema")
_SHOWN_PARTS = ("login", "host", "port", "schema")
EXTRA = "extra."
_FORMS = "secret://airflow-connection/ID#password, secret://airflow-variable/KEY or env://NAME"
_CONNECTION = re.compile(r"secret://airflow-connection/(?P<key>[^/#\s?]+)(?:#(?P<part>\S+))?")
_VARIABLE = re.compile(r"secret://airflow-variable/(?P<key>[^#\s]+)")
_ENVIRONMENT = re.compile(r"env://(?P<key>[A-Za-z_][A-Za-z0-9_]*)")
_BEGINS = re.compile(r"(?<![a-z0-9+.-])(?:secret|env)://")
_OPTION = re.compile(r"(?P<name>-{1,2}[^=\s]+|[A-Za-z_][\w.-]*)=(?P<value>(?:secret|env)://.*)", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """Where a secret is stored.

    Attributes:
        text: the reference as given; no secret itself.
        key: the connection id, the variable's key, or the name in the environment.
        part: of a connection: ``password``, ``login``, ``host``, ``port``, ``schema`` or ``extra.KEY``; else "".
    """

    text: str
    source: SourceName
    key: str
    part: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether its value must be hidden; login, host, port and schema may be shown, as Airflow shows them."""
        return self.part not in _SHOWN_PARTS


def is_reference(text: str) -> bool:
    """Whether this text as a whole is a reference to a secret; a malformed one is not."""
    try:
        return parse_reference(text) is not None
    except InvalidRequestError:
        return False


def parse_reference(text: str) -> Reference | None:
    """The reference that this text as a whole is; None for an ordinary value.

    Raises:
        InvalidRequestError: it starts like a reference or contains one, and is none.
    """
    if not _BEGINS.search(text):
        return None
    if match := _CONNECTION.fullmatch(text):
        part = match["part"] or "password"
        if part in PARTS or (part.startswith(EXTRA) and len(part) > len(EXTRA)):
            return Reference(text, "airflow-connection", match["key"], part)
    elif match := _VARIABLE.fullmatch(text):
        return Reference(text, "airflow-variable", match["key"])
    elif match := _ENVIRONMENT.fullmatch(text):
        return Reference(text, "env", match["key"])
    elif not _BEGINS.match(text):
        # The text around it may be secret: it is not shown.
        raise InvalidRequestError(
            "this value contains a reference to a secret among other text, where it would not be looked up",
            next_step="Make the reference the whole value, or keep the whole text as a variable and refer to that.",
        )
    raise InvalidRequestError(
        "this is no reference to a secret that is known here", reference=text[:200], next_step=f"Use {_FORMS}."
    )


def split_argument(argument: str) -> tuple[str, str]:
    """An argument as what stays (``--password=``, or nothing) and the value that may be a reference."""
    match = _OPTION.fullmatch(argument)
    return ("", argument) if match is None else (f"{match['name']}=", match["value"])


# The cause of a failure in one line, from the reports of Python and Spark. For humans; nothing is decided by it.
#
# Spark's report of a failed query starts with ``STREAM_FAILED`` and ends with the whole logical plan; what the script
# raised is in between.

QUERY_REPORT = "=== Streaming Query ==="
AFTER_QUERY_REPORT = ("JVM stacktrace:", "Traceback (most recent call last)", "Caused by:")
_TRACEBACK = "Traceback (most recent call last):"
_JAVA_FRAME = re.compile(r"\s+(?:at [\w.$/<>]+\(|\.\.\. \d+ (?:more|common frames))")
_LEAD = re.compile(
    r"^.*?\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ?"
    r"|^.*\(TID \d+\) \([^)]*\): "
    r"|^(?:__main__|pyspark\.errors\.exceptions\.(?:captured|base))\."
    r"|^(?:org|java)(?:\.\w+)*\.(?=\w+(?:Error|Exception)\b)"
)
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_OF_JAVA = "Py4JJavaError: An error occurred while calling"
"""py4j puts what Java raised on the next line, after a colon."""


def cause_in(text: str) -> str:
    """The last line of the last Python traceback, else the first line of what was raised; "" for an empty text.

    Args:
        text: what was raised, with or without its traceback; secrets are hidden already.
    """
    lines = without_query_report(text).splitlines()
    return _bare(_last_of_traceback(lines) or _first(lines))


def cause_of(error: str, traceback: str) -> str:
    """The cause of an error whose traceback is stored apart from it, perhaps cut at its beginning."""
    found = _last_of_traceback(without_query_report(traceback).splitlines())
    return _bare(found) if found else cause_in(error)


def cause_of_failure(type_name: str, context: Mapping[str, object]) -> str:
    """The cause of one of our own errors, from its class and context; "" unless it is about a job that failed."""
    error, traceback = (str(context.get(name) or "") for name in ("error", "traceback"))
    return cause_of(error, traceback) if traceback or type_name == "DeploymentFailedError" else ""


def for_one_line(text: str) -> str:
    """The text for one line: a traceback in it becomes its cause, and Java's frames are left out."""
    text = without_query_report(text)
    lines = [line for line in text.splitlines() if not _JAVA_FRAME.match(line)]
    if _TRACEBACK not in text:
        return " ".join(" ".join(lines).split())
    head = " ".join("\n".join(lines).partition(_TRACEBACK)[0].split())
    cause = cause_in(text)
    return head if cause in head else f"{head} {cause}".strip()


def without_query_report(text: str) -> str:
    """The text without Spark's report of the query, which contains its whole logical plan."""
    kept, is_report = [], False
    for line in text.splitlines():
        if line.strip() == QUERY_REPORT:
            is_report = True
        elif line.startswith(AFTER_QUERY_REPORT):
            is_report = False
        if not is_report:
            kept.append(line)
    return "\n".join(kept)


def _last_of_traceback(lines: list[str]) -> str:
    """The line below the last traceback's frames; "" without one, or where the text was cut before it."""
    heads = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    for head in reversed(heads):
        for number in range(head + 1, len(lines)):
            if lines[number].strip() and not lines[number].startswith((" ", "\t")):
                return _of_java(lines, number) or lines[number]
    return ""


def _of_java(lines: list[str], number: int) -> str:
    """What Java raised, where this line of py4j announces it; else ""."""
    behind = lines[number + 1] if number + 1 < len(lines) else ""
    return behind.removeprefix(": ") if _OF_JAVA in lines[number] and behind.startswith(": ") else ""


def _first(lines: list[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return ""
    if said[0].startswith('File "'):
        return said[-1]  # a SyntaxError starts with its place
    return _of_java(said, 0) or said[0]


def _bare(line: str) -> str:
    whole = line = line.strip()
    before = ""
    while line != before:
        before = line
        line = _SQL_STATE.sub("", _LEAD.sub("", line, count=1)).strip()
    return line or whole


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
    """Where the values of secret parameters start and end."""
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
    """Where the values of secret pairs start and end, without their quotes."""
    found = _JSON_PAIR.search(text)
    while found is not None:
        end = found.start("name")  # the text of a pair that is shown may start another one
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
        looked_up: values that references resolve to, secret whatever their names.
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
    """At most this many characters of a text; secrets are hidden before the cut, which could leave half of one.

    Args:
        from_end: keep its end instead of its beginning.
        in_a_line: as ``causes.for_one_line``.
    """
    text = redact_text(text, secrets)
    if in_a_line:
        text = for_one_line(text)
    return text[-characters:] if from_end else text[:characters]


def named_secrets(arguments: Iterable[str]) -> Iterator[tuple[str, str, str | None]]:
    """Each argument, the name of its secret ("" without one), and the secret (None where it has none)."""
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
