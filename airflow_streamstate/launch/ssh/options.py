"""The options of the SSH launcher: which host, how it is reached, and what is used there. They hold no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.options import option_text, read_options
from airflow_streamstate.protocol.redaction import is_secret_name

if TYPE_CHECKING:
    from typing_extensions import Self

_HOST = re.compile(r"[A-Za-z0-9_:%\[\]][A-Za-z0-9._:%\[\]-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\$-]*")
_PYTHON = re.compile(r"/[^\s'\"\\]+|[A-Za-z0-9_][A-Za-z0-9._+-]*")
_WORK_DIR = re.compile(r"(?:/|~/)[^\s,#'\"\\]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """How a host is reached, and what drivers find there.

    Attributes:
        host: its name, its address, or a ``Host`` of ``~/.ssh/config``; "" where an Airflow connection names it.
        port, user, key_file, known_hosts: 0 or "" for what ``~/.ssh/config`` says, else SSH's defaults. The files lie
            on the machine of the caller.
        python: the Python of the host, 3.11 or later, that starts drivers and runs their Python code.
        spark_home, java_home: folders of that host; "" for what the host itself says.
        work_dir: a folder of that host for the files of launches.
        environment: variables that drivers get beside those of a login there.
    """

    host: str = ""
    port: int = 0
    user: str = ""
    key_file: str = ""
    known_hosts: str = ""
    python: str = "python3"
    spark_home: str = ""
    java_home: str = ""
    work_dir: str = "~/.streamstate"
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(cls, raw: Mapping[str, object]) -> Self:
        """The options of plain JSON, whose values may be texts of a command line.

        Raises:
            InvalidRequestError: a name or a value that they do not have.
        """
        given = read_options("ssh", raw, cls.names())
        values: dict[str, object] = {name: _text(name, value) for name, value in given.items() if name not in _OWN}
        values |= {name: read(given[name]) for name, read in _OWN.items() if name in given}
        options = cls(**values)  # type: ignore[arg-type]
        options._check()
        return options

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(item.name for item in fields(cls))

    def to_json(self) -> dict[str, object]:
        """The options that are not at their defaults, as ``from_options`` takes them."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    def environ(self) -> dict[str, str]:
        """The variables that they set for drivers."""
        homes = {"SPARK_HOME": self.spark_home, "JAVA_HOME": self.java_home}
        return {**{name: value for name, value in homes.items() if value}, **self.environment}

    def _check(self) -> None:
        _need(
            not self.host or _HOST.fullmatch(self.host), "host", self.host, "a name or an address, without user or port"
        )
        _need(not self.user or _USER.fullmatch(self.user), "user", self.user, "a login name")
        _need(
            _PYTHON.fullmatch(self.python), "python", self.python, "a command such as python3.12, or an absolute path"
        )
        for name in ("spark_home", "java_home"):
            value = getattr(self, name)
            _need(not value or value.startswith("/"), name, value, "an absolute path on that host")
        _need(
            _WORK_DIR.fullmatch(self.work_dir) and ".." not in self.work_dir.split("/"),
            "work_dir",
            self.work_dir,
            "a folder of that host, absolute or below ~/, without blanks, commas and #",
        )


_DEFAULTS = asdict(SshOptions())


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(name, "a text of one line")
    return value.strip()


def _port(value: object) -> int:
    text = str(value).strip()
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise _wrong("port", "a number from 1 to 65535")
    return int(text)


def _environment(value: object) -> dict[str, str]:
    shape = 'an object of texts, for example {"HADOOP_CONF_DIR": "/etc/hadoop/conf"}'
    if not isinstance(value, Mapping):
        raise _wrong("environment", shape)
    found: dict[str, str] = {}
    for name, given in value.items():
        text = option_text(given)
        if not _NAME.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            raise _wrong("environment", shape)
        if is_secret_name(name):
            raise InvalidRequestError(
                "the options of a launcher are recorded in plain text, and this one looks like a secret",
                option="environment",
                variable=name,
                next_step="Give it to the deployment as a reference: `--env NAME=…`.",
            )
        found[name] = text
    return found


_OWN = {"port": _port, "environment": _environment}


def _need(is_so: object, name: str, value: object, what: str) -> None:
    if not is_so:
        raise _wrong(name, what, value)


def _wrong(name: str, what: str, value: object = None) -> InvalidRequestError:
    return InvalidRequestError(
        "this option of the SSH launcher has no such value",
        option=name,
        **({} if value is None else {"value": value}),
        next_step=f"Give {what}.",
    )
