"""Secrets of Airflow: references to its connections and variables are looked up, and what is secret is masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Variable
from airflow.sdk.log import mask_secret

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.protocol.references import EXTRA, Reference

if TYPE_CHECKING:
    from airflow_streamstate.controller.drivers.secrets import LookUp
    from airflow_streamstate.controller.home import HomeConfig


def airflow_secrets(environ: Mapping[str, str]) -> LookUp:
    """A look-up of every kind of reference, which masks found secrets in Airflow's logs; ``environ`` is for ``env://``."""

    def look_up(reference: Reference) -> str:
        value = _value(reference, environ)
        if not value:
            raise InvalidRequestError(
                "there is no such secret in Airflow",
                reference=reference.text,
                next_step="Create it, or correct the reference.",
            )
        if reference.is_secret:
            mask_secret(value)
        return value

    return look_up


def mask_credentials(config: HomeConfig) -> None:
    """Mask the secrets of a home in Airflow's logs, each alone: Airflow masks a connection's extra as a whole."""
    for secret in (*config.options.secrets(), *(() if config.keys is None else config.keys.texts)):
        mask_secret(secret)


def _value(reference: Reference, environ: Mapping[str, str]) -> str:
    from airflow_streamstate.controller.drivers.secrets import from_environment

    if reference.source == "env":
        return from_environment(reference, environ)
    try:
        if reference.source == "airflow-variable":
            found = Variable.get(reference.key, default=None)
            return "" if found is None else str(found)
        return _part(BaseHook.get_connection(reference.key), reference.part)
    except AirflowNotFoundException:
        return ""
    except Exception as error:  # a backend may raise anything, with the secret in its message
        raise UnavailableError(
            "Airflow could not look up a secret",
            reference=reference.text,
            error=type(error).__name__,
            next_step="Check Airflow's secrets backend, then try again.",
        ) from None


def _part(connection: Any, part: str) -> str:
    if not part.startswith(EXTRA):
        value = getattr(connection, part)
        return "" if value is None else str(value)
    name = part.removeprefix(EXTRA)
    extra: Any = connection.extra_dejson
    if name in extra:
        extra = extra[name]
    else:
        for step in name.split("."):
            extra = extra.get(step) if isinstance(extra, Mapping) else None
    return "" if extra is None or isinstance(extra, Mapping | list) else str(extra)
