"""The options of the verbs that change what a stream runs: ``plan`` and ``upgrade``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from airflow_streamstate.cli.options import (
    Ordering,
    accept_lost_input_option,
    allow_new_query_option,
    code_options,
    discard_state_option,
    on_query_failure_option,
    option,
    options,
    script_arguments,
)
from airflow_streamstate.cli.start import LISTS, code_of, lists_of
from airflow_streamstate.controller.rehearsal.planning import MOST_BATCHES, REHEARSED_BATCHES, REHEARSED_ROWS
from airflow_streamstate.controller.request.changes import ChangeRequest

_OF_A_CHANGE = frozenset(
    {
        "application",
        "modules",
        "working_folder",
        "arguments",
        "conf",
        "environment",
        "master",
        *LISTS,
        "fresh_queries",
        "accept_lost_input",
    }
    | {"discard_state", "on_query_failure"}
)
change_options = options(
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


rehearsed_options = options(
    option(
        "--rehearse-batches",
        type=click.IntRange(0, MOST_BATCHES),
        default=REHEARSED_BATCHES,
        show_default=True,
        metavar="N",
        heading="Rehearsal",
        help="So many of the newest batches of each query run again, with their rows and without a sink.",
    ),
    option(
        "--rehearse-rows",
        type=click.IntRange(min=1),
        default=REHEARSED_ROWS,
        show_default=True,
        metavar="N",
        heading="Rehearsal",
        help="About so many rows of these batches, at most.",
    ),
)


def names_anything(given: Mapping[str, Any]) -> bool:
    """Whether any of the ``change_options`` is given."""
    return any(given.get(name) for name in _OF_A_CHANGE)


def change_of(stream_id: str, given: Mapping[str, Any], ordering: Ordering) -> ChangeRequest:
    """The request; omitted options leave the stream as it is. Raises InvalidRequestError for an invalid one."""
    named = {name: given[name] for name in _OF_A_CHANGE if given.get(name)}
    named |= {**lists_of(named), **code_of(named)}
    if "application" in named:
        named["application"] = Path(named["application"])
    return ChangeRequest(
        stream_id=stream_id,
        reason=ordering.reason,
        allow_literal_secrets=given["allow_literal_secrets"],
        version_label=given["version_label"],
        **named,
    )
