"""The acts of the life, one function each; each prints what it does and its result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from rich.console import Console

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.cli.main import run
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import SnapshotManifest

QUERY = "delays"
READ_ALL_SECONDS = 180.0


class LifeError(RuntimeError):
    """An act did not end as it must; the life ends here."""


def shell(console: Console, *arguments: str) -> None:
    """Run one ``streamstate`` command in front of the person."""
    console.print(f"[bold cyan]$[/] streamstate {' '.join(arguments)}", highlight=False, soft_wrap=True)
    sys.stdout.flush()
    status = run(list(arguments))
    if status != 0:
        raise LifeError(f"streamstate {arguments[0]} ended with status {status}")


def run_dag(console: Console, airflow: Any, dag_id: str, conf: dict[str, object], seconds: float) -> None:
    """Trigger a DAG of ``dags/`` in the running Airflow, and see it succeed."""
    console.print(f"[bold cyan]$[/] airflow dags trigger {dag_id} --conf '{json.dumps(conf)}'", highlight=False)
    airflow.unpause(dag_id)
    run_id = airflow.trigger(dag_id, conf)
    with console.status(f"{dag_id} runs in Airflow"):
        state = airflow.wait_for_run(dag_id, run_id, seconds)
    for task, task_state in airflow.task_states(dag_id, run_id).items():
        console.print(f"  task {task}: {task_state}", highlight=False)
    if state != "success":
        raise LifeError(f"{dag_id} ended as {state}: {airflow.why_failed(dag_id, run_id)}")


def wait_until_read(controller: Controller, stream_id: str, deployment_id: str, files: int) -> None:
    """Wait until the stream has committed this many input files."""
    clock = SYSTEM_CLOCK
    until = clock.monotonic_seconds() + READ_ALL_SECONDS
    folder = layout.checkpoint_folder(stream_id, deployment_id, QUERY)
    read = 0
    while clock.monotonic_seconds() < until:
        last = _last_committed(Checkpoint(controller.home.checkpoints, folder))
        read = 0 if last is None else len(_names(controller, f"{folder}/sources/0", last))
        if read >= files:
            return
        clock.sleep(0.5)
    raise LifeError(f"the stream had read {read} of {files} files after {READ_ALL_SECONDS:.0f} s")


def _last_committed(checkpoint: Checkpoint) -> int | None:
    committed = checkpoint.commit_ids()
    entry = checkpoint.read_offset(committed[-1]) if committed else None
    return None if entry is None else parse_file_source_offset(entry.source_lines[0])


def files_read(controller: Controller, manifest: SnapshotManifest) -> list[Path]:
    """The input files that were read according to a drained snapshot, by the file source's own log."""
    line = manifest.queries[QUERY].position.end_offsets[0]
    last = parse_file_source_offset(line)
    folder = f"{layout.snapshot_data_folder(manifest.stream_id, manifest.snapshot_id, QUERY)}/sources/0"
    return [] if last is None else _names(controller, folder, last)


def _names(controller: Controller, folder: str, last: int) -> list[Path]:
    taken = files_taken(controller.home.checkpoints, folder, last)
    return [Path(unquote(urlparse(entry.path).path)) for entry in taken]
