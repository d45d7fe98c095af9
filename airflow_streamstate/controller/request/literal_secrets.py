"""Secrets given literally where a reference belongs: they would be recorded in the home.

The name of a setting decides, except for names about secrets: a file, a provider class, a switch, a number of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.redaction import is_secret_name, named_secrets, redact_uri, secrets_in_value
from airflow_streamstate.protocol.references import is_reference, parse_reference, split_argument

# Names about a secret that hold none: ``…secret.file``, ``…credentials.provider``, ``…sasl.token.mechanism``.
_ABOUT = (
    r"enabled?|disabled?|providers?|type|mechanism|class|file|path|dir|directory|folder|url|uri|endpoint|ratio"
    r"|interval|timeout|bits?|length|size|regex|id|name|expiry|ttl|seconds|ms|algorithm|version|location|column|columns"
    r"|keyfile|itemkey|email|impl|binding|servers|count|limit|retries|mode|method|scope|arn|env|var|sock|username"
)
_ABOUT_END = re.compile(rf"(?:[._-](?i:{_ABOUT})|[a-z](?:{_ABOUT.title()}))$")
_ABOUT_WITHIN = re.compile(
    r"auth\.type\b|auth\.login\.config\b|auth\.tunneling\.|provider\.type\b|pass-through|GOOGLE_APPLICATION_CREDENTIALS$"
    r"|^spark\.kubernetes\.(?:driver|executor)\.secret(?:s|KeyRef)\.|tokeni[sz]",
    re.IGNORECASE,
)
_SWITCH = re.compile(r"|true|false|yes|no|none", re.IGNORECASE)
_COUNTED = re.compile(r"tokens(?![a-z])", re.IGNORECASE)
_KEY_OF_SERVICE = re.compile(r"(?:arn:|alias/).*")
_ON_COMMAND_LINE = re.compile(
    r".*(?:JavaOptions|ClassPath|LibraryPath)|spark\.(?:master|app\.name|jars|files|jars\.packages|submit\.pyFiles)"
)
_ON_EXECUTORS_COMMAND_LINE = re.compile(
    r"spark\.(?:(?!authenticate\.secret$)auth|rpc|network|ssl(?!.*Password)|port\.).*|spark\.(?:.*\.)?port"
)
"""Settings on an executor's command line (Spark's ``SparkConf.isExecutorStartupConf``)."""
_EXECUTORS_VARIABLE = "spark.executorEnv."
_SHOWN_VARIABLES = frozenset(
    {
        "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS",
        "PYSPARK_SUBMIT_ARGS", "SPARK_DIST_CLASSPATH",
    }
)  # fmt: skip
"""Java logs these, or Spark puts them on its command line."""
_FILE_LIKE = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*):/+")
_INSTEAD = "secret://airflow-connection/ID#password, secret://airflow-variable/KEY or env://NAME"

CONSENT = ", or allow it: allow_literal_secrets, --allow-literal-secrets"
"""Of the next step, where the caller has such a consent to give."""


def check_secrets(
    conf: Mapping[str, str], arguments: Sequence[str], environment: Mapping[str, str], *, may_be_literal: bool
) -> None:
    """Check that secrets are given as references, and none where other users of the machine could read it.

    Args:
        may_be_literal: values under secret-like names may be recorded as they are.

    Raises:
        InvalidRequestError: a reference is malformed, a value looks like a secret, or one would be on a command line.
            The error has names, never values.
    """
    for value in (*conf.values(), *environment.values(), *(split_argument(argument)[1] for argument in arguments)):
        parse_reference(value)
    _check_shown(conf, environment)
    if may_be_literal:
        return
    settings = (*conf.items(), *environment.items())
    names = {name for name, value in settings if is_literal_secret(name, value)}.union(_in_arguments(arguments))
    if names:
        raise InvalidRequestError(
            "these look like secrets and would be recorded in the home as they are",
            names=sorted(names),
            next_step=f"Give references instead ({_INSTEAD}){CONSENT}.",
        )


def check_plain_uris(**lists: Sequence[str]) -> None:
    """Check that values for a command line hold no password; raises InvalidRequestError."""
    for what, values in lists.items():
        for value in values:
            if redact_uri(value) != value:
                raise InvalidRequestError(
                    "a secret is in something that every user of the machine could read on the command line",
                    **{what: redact_uri(value)},
                    next_step="Fetch the file beforehand, or keep the secret in Ivy's or Hadoop's own settings.",
                )


def check_local_paths(**lists: Sequence[PurePath]) -> None:
    """Check that no local path is a URI with a password in it; raises InvalidRequestError."""
    for what, paths in lists.items():
        for path in paths:
            uri = _FILE_LIKE.sub(r"\1://", str(path))  # a path has no two slashes in a row
            if redact_uri(uri) != uri:
                raise InvalidRequestError(
                    "this is a URI with a password, where the path of a local file belongs",
                    **{what: redact_uri(uri)},
                    next_step="Fetch the file beforehand, and give its path.",
                )


def check_attached_arguments(arguments: Sequence[str]) -> None:
    """Check the arguments of a script that attaches: they are on the command line, whatever may be recorded.

    Raises:
        InvalidRequestError: one is a secret, or refers to one.
    """
    is_reference_there = any(is_reference(split_argument(argument)[1]) for argument in arguments)
    names = sorted(set(_in_arguments(arguments)))
    if is_reference_there or names:
        raise InvalidRequestError(
            "a script that attaches by itself has its arguments on the command line, which other users can read",
            **({"names": names} if names else {}),
            next_step="Give the secret by --env, and let the script read it from its environment.",
        )


def is_literal_secret(name: str, value: str) -> bool:
    """Whether a value under this name looks like a secret itself."""
    if is_reference(value) or _SWITCH.fullmatch(value.strip()):
        return False
    if not is_secret_name(name) or _is_about_secret(name, value):
        return bool(secrets_in_value("", value))
    return True


def _is_about_secret(name: str, value: str) -> bool:
    """Whether a secret-like name belongs to a setting about secrets, whose value is not secret."""
    return bool(
        _ABOUT_END.search(name)
        or _ABOUT_WITHIN.search(name)
        or (_COUNTED.search(name) and value.strip().isdecimal())
        or (_KEY_OF_SERVICE.fullmatch(value) and "encryption" in name.lower())
    )


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    for at, (argument, name, secret) in enumerate(named_secrets(arguments)):
        if secret is None and secrets_in_value("", argument):
            yield f"argument {at + 1}"
        elif secret is not None and is_literal_secret(name, secret):
            yield name


def _check_shown(conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
    seen = [name for name, value in conf.items() if _is_shown(name, value)]
    seen += [name for name, value in environment.items() if name in _SHOWN_VARIABLES and _is_secret_line(value)]
    if seen:
        raise InvalidRequestError(
            "a secret in one of these would be on Java's command line or in the log, where other users can read it",
            names=sorted(seen),
            next_step="Keep it in a file that only the driver's user, or the executors', can read.",
        )


def _is_shown(name: str, value: str) -> bool:
    if _ON_COMMAND_LINE.fullmatch(name) or name.removeprefix(_EXECUTORS_VARIABLE) in _SHOWN_VARIABLES:
        return _is_secret_line(value)
    is_secret = is_reference(value) or is_literal_secret(name, value)
    return is_secret and bool(_ON_EXECUTORS_COMMAND_LINE.fullmatch(name))


def _is_secret_line(value: str) -> bool:
    return is_reference(value) or any(True for _ in _in_arguments([word.removeprefix("-D") for word in value.split()]))
