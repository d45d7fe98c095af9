"""The options that say what is to be new, of the verbs that change what a stream runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_streamstate.cli.options import (
    Callback,
    Ordering,
    accept_lost_input_option,
    allow_new_query_option,
    code_options,
    discard_state_option,
    on_query_failure_option,
    option,
    script_arguments,
)
from airflow_streamstate.cli.start import split
from airflow_streamstate.controller.request.changes import ChangeRequest

_PATHS = ("py_files", "files")
_LISTS = (*_PATHS, "packages", "jars")
_OF_A_CHANGE = frozenset(
    {"application", "arguments", "conf", "environment", "master", *_LISTS, "fresh_queries", "accept_lost_input"}
    | {"discard_state", "on_query_failure"}
)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    option("--app", "application", metavar="PATH", help="The new PySpark script, unmodified."),
    option("--master", metavar="URL", help="Spark's master."),
    code_options,
    option("--label", "version_label", metavar="TEXT", help="Your own name of this version."),
    discard_state_option,
    allow_new_query_option,
    accept_lost_input_option,
    on_query_failure_option,
    script_arguments,
)


def change_options(callback: Callback) -> Callback:
    """Give a verb every option that names something new; they arrive together, for ``change_of``."""
    for one in reversed(_OPTIONS):
        callback = one(callback)
    return callback


def names_anything(given: Mapping[str, Any]) -> bool:
    """Whether something is to be new."""
    return any(given.get(name) for name in _OF_A_CHANGE)


def change_of(stream_id: str, given: Mapping[str, Any], ordering: Ordering) -> ChangeRequest:
    """What is to be new; what is not given stays.

    Raises:
        InvalidRequestError: something of it cannot be.
    """
    named = {name: given[name] for name in _OF_A_CHANGE if given.get(name)}
    for name in _LISTS:
        if name in named:
            parts = split(named[name])
            named[name] = tuple(map(Path, parts)) if name in _PATHS else parts
    if "application" in named:
        named["application"] = Path(named["application"])
    return ChangeRequest(
        stream_id=stream_id,
        reason=ordering.reason,
        allow_literal_secrets=given["allow_literal_secrets"],
        version_label=given["version_label"],
        **named,
    )
