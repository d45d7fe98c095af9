"""References to secrets: what ``conf``, ``arguments`` and ``environment`` hold instead of a secret value.

``secret://airflow-connection/<conn_id>[#part]``, ``secret://airflow-variable/<key>`` and ``env://NAME``. Only the
reference is recorded; the launching controller looks the value up at each launch.
"""

from __future__ import annotations

import re
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass

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
    """Where a secret lies.

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
    """Whether this text as a whole stands for a secret; a malformed reference does not."""
    try:
        return parse_reference(text) is not None
    except InvalidRequestError:
        return False


def parse_reference(text: str) -> Reference | None:
    """The reference that this text as a whole is; None for an ordinary value.

    Raises:
        InvalidRequestError: it begins like a reference or contains one, and is none.
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
