"""Finds, without Spark, that a new stream's script has run before: a checkpoint that it names holds committed batches.

The driver looks at the checkpoint that a query really has, and refuses a start with nothing over a used one. This finds
most of them before anything is launched: what the script writes as a literal, what its settings and its arguments name.
Only for a stream that the home does not know: an adopted stream's script names its old checkpoint for ever.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import StoreOptions

_OPTION = "checkpointlocation"  # Spark's options know no case
_SETTING = "spark.sql.streaming.checkpointLocation"


def check_named_checkpoints(request: DeployRequest, options: StoreOptions) -> None:
    """Check that no checkpoint which the code and the settings of a new stream name has committed batches.

    A place that cannot be read is passed over: the driver looks again.

    Args:
        options: how to reach other stores than this machine's disk.

    Raises:
        InvalidRequestError: one has.
    """
    application, arguments = Path(request.version.script_path), request.version.arguments
    calls = tuple(_calls(application))
    queries = tuple(dict.fromkeys(name for call in calls for name in _query_name(call)))
    for uri in dict.fromkeys(_named(calls, arguments, request.version.conf)):
        plain = uri.rstrip("/").replace("s3a://", "s3://", 1)
        if not plain.startswith("/") and "://" not in plain:
            continue  # below a folder that only the driver knows
        try:
            used = next(_used(plain, queries, options), None)
        except (StreamStateError, OSError, ValueError):
            continue
        if used is not None:
            found, batch_id = used
            words = ["streamstate", "adopt", request.stream_id, "--checkpoint", found, "--stopped"]
            words += ["--app", str(application), *(("--", *arguments) if arguments else ())]
            raise InvalidRequestError(
                "a checkpoint that this new stream names holds batches of a query that ran without streamstate",
                stream_id=request.stream_id,
                checkpoint=found,
                committed_batch_id=batch_id,
                next_step=f"To go on where it stopped: `{shlex.join(words)}`, with the other settings of its file. To"
                " write all rows a second time instead: start: fresh.",
            )


def _named(calls: Sequence[ast.Call], arguments: Sequence[str], conf: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in conf.items() if name == _SETTING)
    for at, argument in enumerate(arguments):
        name, is_assigned, value = argument.partition("=")
        if name.startswith("-") and "checkpoint" in name.lower():
            yield value if is_assigned else "".join(arguments[at + 1 : at + 2])
    for call in calls:
        yield from _location(call)


def _calls(application: Path) -> Iterator[ast.Call]:
    """The calls in a script; none where it cannot be read."""
    try:
        tree = ast.parse(application.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _location(call: ast.Call) -> Iterator[str]:
    """The literal of ``.option("checkpointLocation", …)``, ``conf.set(…)`` or a keyword ``checkpointLocation``."""
    texts = _texts(call.args)
    if len(call.args) == len(texts) == 2 and texts[0].lower() in (_OPTION, _SETTING.lower()):
        yield texts[1]
    yield from _texts([one.value for one in call.keywords if one.arg is not None and one.arg.lower() == _OPTION])


def _query_name(call: ast.Call) -> Iterator[str]:
    """The literal of ``.queryName(…)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "queryName":
        yield from _texts(call.args)


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _used(uri: str, queries: Sequence[str], options: StoreOptions) -> Iterator[tuple[str, int]]:
    """Each checkpoint with its last committed batch: the folder itself, or those of the script's queries in it.

    Not every folder in it: many jobs may keep their checkpoints side by side.
    """
    parent, _, name = uri.rpartition("/")
    store = open_store(parent or "/", options=options, makes_root=False)
    for folder in (name, *(f"{name}/{query}" for query in queries)):
        committed = Checkpoint(store, folder).commit_ids()
        if committed:
            yield f"{parent}/{folder}", committed[-1]
