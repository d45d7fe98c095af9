"""The launching process resolves references to secrets at each launch; no value is recorded in the home."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import Reference, is_reference, parse_reference, split_argument
from airflow_streamstate.protocol.signing import SigningKeys

LookUp = Callable[[Reference], str]
"""The value of a reference; raises InvalidRequestError if it has none, UnavailableError if its source is away."""
REDACTION = "spark.redaction.regex"
_SPARKS_OWN_REDACTION = "(?i)secret|password|token|access[.]?key"


@dataclass(frozen=True)
class Resolved:
    """A deployment's settings with values in place of references; ``values``: the secret ones, to redact texts."""

    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    values: tuple[str, ...]


def resolve(spec: DeploymentSpec, look_up: LookUp, allowed: Allowed, keys: SigningKeys | None = None) -> Resolved:
    """The settings of a deployment's record, its references resolved.

    Args:
        allowed: what the caller's own configuration lets the record name.
        keys: the signing keys of the home, which no driver may have.

    Raises:
        InvalidRequestError: a reference is malformed, not allowed, cannot be looked up from here, or has no value; or
            the signing key is among the values.
        UnavailableError: its source does not answer.
    """
    found: dict[str, str] = {}
    secret: set[str] = set()

    def value_of(text: str, where: str) -> str:
        reference = parse_reference(text)
        if reference is None:
            _refuse_key(keys, text, where)
            return text
        if text not in found:
            allowed.check_secret(text, used_in=where, stream_id=spec.stream_id)
            found[text] = _look_up(look_up, reference, where)
            _refuse_key(keys, found[text], where)
            if reference.is_secret:
                secret.add(found[text])
        return found[text]

    arguments = []
    for at, argument in enumerate(spec.version.arguments):
        name, text = split_argument(argument)
        arguments.append(name + value_of(text, f"argument {at + 1}"))
    conf = {name: value_of(text, name) for name, text in spec.version.conf.items()}
    secret_names = [name for name, text in spec.version.conf.items() if conf[name] != text]
    environment = {name: value_of(text, name) for name, text in spec.version.environment.items()}
    return Resolved(tuple(arguments), _with_redaction(conf, secret_names), environment, tuple(sorted(secret)))


def _refuse_key(keys: SigningKeys | None, value: str, where: str) -> None:
    if keys is not None and keys.is_in(value):
        raise InvalidRequestError(
            "this setting holds the signing key of the home, which no driver may have",
            used_in=where,
            next_step="Give the driver another secret. If others may have seen the key, replace it: put a new one first"
            " and run `streamstate home sign --rotate`.",
        )


def has_references(spec: DeploymentSpec) -> bool:
    """Whether the record of a deployment refers to any secret."""
    arguments = (split_argument(argument)[1] for argument in spec.version.arguments)
    return any(
        is_reference(text) for text in (*arguments, *spec.version.conf.values(), *spec.version.environment.values())
    )


def environment_secrets(environ: Mapping[str, str]) -> LookUp:
    """Looks up variables of this environment, and refuses references that only Airflow can look up."""

    def look_up(reference: Reference) -> str:
        if reference.source != "env":
            raise InvalidRequestError(
                "this secret is stored in Airflow, and only Airflow can look it up",
                reference=reference.text,
                next_step="Run this from Airflow (DeployStreamOperator, DrainStreamOperator, …); or deploy with"
                " env://NAME, which the shell can look up, too.",
            )
        return from_environment(reference, environ)

    return look_up


def from_environment(reference: Reference, environ: Mapping[str, str]) -> str:
    """The value of an ``env://`` reference; raises InvalidRequestError where the variable is not set or empty."""
    value = environ.get(reference.key, "")
    if not value:
        raise InvalidRequestError(
            "this secret is not in the environment of the process that launches the driver",
            reference=reference.text,
            next_step=f"Set {reference.key} there, then try again.",
        )
    return value


def _look_up(look_up: LookUp, reference: Reference, where: str) -> str:
    try:
        value = look_up(reference)
    except StreamStateError as error:
        error.context.setdefault("used_in", where)
        raise
    if "\0" in value:
        raise InvalidRequestError(
            "this secret holds a zero byte, which cannot be given to a driver",
            reference=reference.text,
            used_in=where,
        )
    return value


def _with_redaction(conf: dict[str, str], secret_names: list[str]) -> dict[str, str]:
    """Spark redacts settings by name: add the names of references that its own pattern misses."""
    own = re.compile(_SPARKS_OWN_REDACTION)
    missing = [name for name in secret_names if not own.search(name)]
    if not missing or REDACTION in conf:
        return conf
    names = "|".join(re.escape(name) for name in sorted(missing))
    return {**conf, REDACTION: f"{_SPARKS_OWN_REDACTION}|^(?:{names})$"}
