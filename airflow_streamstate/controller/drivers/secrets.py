"""References to secrets become values: at each launch anew, by whoever launches, and only on their way to the driver.

Arguments reach it in ``driver.json`` and configuration in its properties file, both for their owner alone; environment
variables in its environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.references import Reference, is_reference, parse_reference, split_argument

LookUp = Callable[[Reference], str]
"""The value that a reference stands for.

Raises InvalidRequestError where there is none, UnavailableError where whoever knows it does not answer.
"""
REDACTION = "spark.redaction.regex"
_SPARKS_OWN_REDACTION = "(?i)secret|password|token|access[.]?key"


@dataclass(frozen=True)
class Resolved:
    """What a driver is given.

    Attributes:
        arguments, conf, environment: with values where references stood.
        values: those of them that are secret, to take them out of texts.
    """

    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    values: tuple[str, ...]


def resolve(spec: DeploymentSpec, look_up: LookUp) -> Resolved:
    """What stands in a deployment's record, with the secrets that it refers to.

    What begins like a reference and is none stays as it is: a deploy refuses it, so an earlier version recorded it,
    which gave it to the script word for word (Law 15).

    Raises:
        InvalidRequestError: a reference cannot be looked up from here, or there is nothing where it points.
        UnavailableError: whoever knows it does not answer.
    """
    found: dict[str, str] = {}
    secret: set[str] = set()

    def value_of(text: str, where: str) -> str:
        reference = parse_reference(text) if is_reference(text) else None
        if reference is None:
            return text
        if text not in found:
            found[text] = _look_up(look_up, reference, where)
            if reference.is_secret:
                secret.add(found[text])
        return found[text]

    arguments = []
    for at, argument in enumerate(spec.arguments):
        name, text = split_argument(argument)
        arguments.append(name + value_of(text, f"argument {at + 1}"))
    conf = {name: value_of(text, name) for name, text in spec.conf.items()}
    secret_names = [name for name, text in spec.conf.items() if conf[name] != text]
    environment = {name: value_of(text, name) for name, text in spec.environment.items()}
    return Resolved(tuple(arguments), _with_redaction(conf, secret_names), environment, tuple(sorted(secret)))


def has_references(spec: DeploymentSpec) -> bool:
    """Whether the record of a deployment refers to any secret."""
    arguments = (split_argument(argument)[1] for argument in spec.arguments)
    return any(is_reference(text) for text in (*arguments, *spec.conf.values(), *spec.environment.values()))


def environment_secrets(environ: Mapping[str, str]) -> LookUp:
    """Looks up what this environment holds, and refuses by name what only Airflow knows."""

    def look_up(reference: Reference) -> str:
        if reference.source != "env":
            raise InvalidRequestError(
                "this secret lies in Airflow, where only Airflow can look it up",
                reference=reference.text,
                next_step="Run this from Airflow (DeployStreamOperator, DrainStreamOperator, …); or deploy with "
                "env://NAME where the shell must do it, too.",
            )
        return from_environment(reference, environ)

    return look_up


def from_environment(reference: Reference, environ: Mapping[str, str]) -> str:
    """What an ``env://`` reference stands for.

    Raises:
        InvalidRequestError: the variable is not set, or empty.
    """
    value = environ.get(reference.key, "")
    if not value:
        raise InvalidRequestError(
            "this secret is not in the environment of whoever launches the driver",
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
            "this secret holds a zero byte, which no driver can be given", reference=reference.text, used_in=where
        )
    return value


def _with_redaction(conf: dict[str, str], secret_names: list[str]) -> dict[str, str]:
    """Spark hides by names, too: what was a reference under another name is added to those that it hides."""
    own = re.compile(_SPARKS_OWN_REDACTION)
    missing = [name for name in secret_names if not own.search(name)]
    if not missing or REDACTION in conf:
        return conf
    names = "|".join(re.escape(name) for name in sorted(missing))
    return {**conf, REDACTION: f"{_SPARKS_OWN_REDACTION}|^(?:{names})$"}
