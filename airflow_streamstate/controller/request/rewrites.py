"""Requests to write state anew, checked as far as that needs no Spark."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER, STATE_FORMAT
from airflow_streamstate.checkpoint.rewriting import pins_of
from airflow_streamstate.controller.request.code_files import CodeFile
from airflow_streamstate.migration import read_migrations
from airflow_streamstate.protocol.records import StateRewrite


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
