"""Hides the secrets among an operator's fields wherever Airflow shows them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from airflow.sdk.log import mask_secret

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import text_mapping, texts
from airflow_streamstate.protocol.redaction import secrets_of

_LISTED = ("application", "py_files", "files", "jars", "packages", "master", "undo_command", "mirrors", "out")
"""A password in a URI and a secret in a command are refused, but Airflow renders the field before that."""
_MAY_BE_SECRET = frozenset({"conf", "arguments", "environment", *_LISTED})


class MasksSecrets:
    """Mixin of operators whose fields may hold secrets; their ``__init__`` sets ``_built`` at its end.

    A field that is set after that was rendered by Airflow, which shows it from then on.
    """

    _built: bool

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        shown = self.__dict__
        if name in _MAY_BE_SECRET and shown.get("_built"):
            mask_secrets_of(shown.get("conf"), shown.get("arguments"), shown.get("environment"))
            for listed in _LISTED:
                given = shown.get(listed)
                mask_secrets_of(None, given)
                if isinstance(given, str):  # also as one word: a path, a URI
                    mask_secrets_of(None, [given])


def mask_secrets_of(conf: Any, arguments: Any, environment: Any = None) -> None:
    """Have Airflow hide the secret values among these from now on."""
    named: dict[str, str] = {}
    variables: dict[str, str] = {}
    listed: tuple[str, ...] = ()
    # A field of another type is refused when the task runs.
    with suppress(InvalidRequestError):
        named = text_mapping(conf, "conf")
    with suppress(InvalidRequestError):
        variables = text_mapping(environment, "environment")
    with suppress(InvalidRequestError):
        listed = texts(arguments, "arguments")
    for secret in secrets_of(named, listed, variables):
        mask_secret(secret)
