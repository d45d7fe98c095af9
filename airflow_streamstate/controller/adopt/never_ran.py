"""A stream that was deployed and never ran a query makes way for an adoption under its name.

Its driver refused to start a query that ran without streamstate before, and named the adoption as the way on. Nothing
but records of that is removed.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.control.adoption import adoption_register
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted

Delete = Callable[[str], object]
"""Deletes the stream of this id, if it has ended."""


def make_way(home: Home, control: StreamControl, delete: Delete) -> bool:
    """Delete the stream where it never ran a query; whether it did. An adopted stream stays, whatever it ran.

    Raises:
        ConflictError: it runs, or may run.
        UnavailableError: the home does not answer.
    """
    adoption = adoption_register(control).read()
    if adoption is not None and adoption.value.status != "given_up":
        return False
    register = control.register()
    if register is None or register.value.deployment_id is None or _has_run(home, control):
        return False
    delete(control.stream_id)
    return True


def _has_run(home: Home, control: StreamControl) -> bool:
    if control.snapshot_ids():
        return True
    for deployment_id in control.deployment_ids():
        if any(isinstance(entry.event, QueryStarted) for entry in control.journal(deployment_id).events()):
            return True
        home.check_place(control.spec(deployment_id))
        # A driver may have been killed before it reported a query's start.
        if home.checkpoints.list_folders(layout.checkpoints_folder(control.stream_id, deployment_id)):
            return True
    return False
