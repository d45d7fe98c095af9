"""Requests to write state anew, checked as far as that needs no Spark."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER, STATE_FORMAT
from airflow_streamstate.checkpoint.rewriting import pins_of
from airflow_streamstate.controller.request.code_files import CodeFile
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.migration import read_migrations
from airflow_streamstate.protocol.records import STATE_STORES, StateRewrite

MOST_PARTITIONS = 10_000


def check_rewrite(partitions: int | None, state_store: str | None, checkpoint_format: int | None) -> None:
    """Raises InvalidRequestError for a value that no state can be written in."""
    if partitions is not None and not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidRequestError(
            "state cannot have this number of partitions",
            partitions=partitions,
            next_step=f"Use 1 to {MOST_PARTITIONS:,}; `streamstate rescale --suggest` suggests one. Each partition of"
            " each operator is a task and a store of its own.",
        )
    if state_store is not None and state_store not in STATE_STORES:
        raise InvalidRequestError(
            "state cannot be moved to this state store",
            state_store=str(state_store)[:60],
            next_step=f"Use {', '.join(STATE_STORES)}: Spark writes state anew into no other.",
        )
    if checkpoint_format not in (None, 1, 2):
        raise InvalidRequestError(
            "Spark has no such state checkpoint format", checkpoint_format=checkpoint_format, next_step="Use 1 or 2."
        )


def conf_of(rewrite: StateRewrite | None) -> dict[str, str]:
    """The settings of a session whose state is written anew so: it keeps to them when it is seeded later, too."""
    if rewrite is None:
        return {}
    conf = pins_of(rewrite)
    if rewrite.checkpoint_format == 2:
        conf[PROVIDER] = ROCKSDB_PROVIDER
    if rewrite.checkpoint_format is not None:
        conf[STATE_FORMAT] = str(rewrite.checkpoint_format)
    return conf


def migration_file(path: Path) -> CodeFile:
    """The file with migrations.

    Raises:
        InvalidRequestError: it cannot be read, or is not usable.
    """
    file = CodeFile(path.name, path)
    read_migrations(file.read(), path.name)
    return file
