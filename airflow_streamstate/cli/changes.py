"""The options of the verbs that change what a stream runs: ``plan`` and ``upgrade``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_streamstate.cli.options import (
    Ordering,
    accept_lost_input_option,
    allow_new_query_option,
    allow_state_loss_option,
    code_options,
    launcher_options,
    move_source_option,
    on_query_failure_option,
    option,
    options,
    rename_query_option,
    script_arguments,
)
from airflow_streamstate.cli.start import LISTS, code_of, lists_of
from airflow_streamstate.controller.request.requests import ChangeRequest, change_request

_OF_A_CHANGE = frozenset(
    {
        "application",
        "modules",
        "working_folder",
        "arguments",
        "conf",
        "environment",
        "master",
        "launcher",
        "launcher_options",
        *LISTS,
        "allow_new_queries",
        "rename_queries",
        "move_sources",
        "accept_lost_input",
    }
    | {
        "allow_state_loss",
        "on_query_failure",
        "partitions",
        "state_store",
        "checkpoint_format",
        "migration",
        "auto_migrate",
    }
)
partitions_option = option(
    "--partitions",
    type=int,
    metavar="N",
    heading="State",
    help="Write the state anew in N partitions: Spark keeps the number that a checkpoint began with.",
)
state_store_option = option(
    "--state-store",
    metavar="NAME",
    heading="State",
    help="Write the state anew into this store: rocksdb.",
)
change_options = options(
    option("--app", "application", metavar="PATH", help="The new PySpark script, unmodified."),
    option("--master", metavar="URL", help="Spark's master."),
    code_options,
    launcher_options,
    option("--label", "version_label", metavar="TEXT", help="Your own name of this version."),
    allow_state_loss_option,
    allow_new_query_option,
    rename_query_option,
    move_source_option,
    accept_lost_input_option,
    on_query_failure_option,
    partitions_option,
    state_store_option,
    option(
        "--checkpoint-format",
        type=int,
        metavar="N",
        heading="State",
        help="Write the state anew in Spark's state checkpoint format 1 or 2.",
    ),
    option(
        "--migration",
        metavar="FILE",
        heading="State",
        help="A Python file with functions from old to new state (airflow_streamstate.migration).",
    ),
    option(
        "--auto-migrate",
        is_flag=True,
        heading="State",
        help="Migrate state without a function where that is safe: an aggregate added, which begins with no rows, or"
        " removed, others in another order, a wider type, a field added to a state variable.",
    ),
    script_arguments,
)


def names_anything(given: Mapping[str, Any]) -> bool:
    """Whether any of the ``change_options`` is given."""
    return any(_is_given(given.get(name)) for name in _OF_A_CHANGE)


def _is_given(value: object) -> bool:
    """A number is given, also 0, which the request then refuses."""
    return bool(value) or (isinstance(value, int) and not isinstance(value, bool))


def change_of(stream_id: str, given: Mapping[str, Any], ordering: Ordering) -> ChangeRequest:
    """The request; omitted options leave the stream as it is. Raises InvalidRequestError for an invalid one."""
    named = {name: given[name] for name in _OF_A_CHANGE if _is_given(given.get(name))}
    named |= {**lists_of(named), **code_of(named)}
    named.pop("launcher_options", None)
    if "application" in named:
        named["application"] = Path(named["application"])
    if "migration" in named:
        named["migration"] = Path(named["migration"])
    return change_request(
        stream_id,
        reason=ordering.reason,
        allow_literal_secrets=given["allow_literal_secrets"],
        version_label=given["version_label"],
        **named,
    )
