"""``StreamStateHook``: the client of the streams in the home of an Airflow connection."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.connection import (
    CONNECT,
    CONNECTION_TYPE,
    Fetched,
    airflow_secrets,
    aws_conn_id_of,
    home_config,
    mask_credentials,
)
from airflow_streamstate.protocol.codec import format_time

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.home import Home, HomeConfig

# No reference leads to Airflow's own variables, which may hold secrets.
_AIRFLOWS_OWN = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "__AIRFLOW_")


class StreamStateHook(BaseHook):
    """Gives the client of the streams in the home that an Airflow connection names.

    ``client`` has the verbs, and starts drivers on this machine or by their launchers. A changing verb takes a
    ``request_id`` of 1 to 63 characters of a-z, 0-9 and ``-``: the same id is the same request. Errors are those of
    ``airflow_streamstate.errors``.

    :param streamstate_conn_id: the connection that names the home.
    :param requested_by: the requester, for records and commands.
    """

    conn_name_attr = "streamstate_conn_id"
    default_conn_name = "streamstate_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Stream State"

    def __init__(
        self,
        streamstate_conn_id: str = default_conn_name,
        *,
        requested_by: str = "airflow",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self.streamstate_conn_id = streamstate_conn_id
        self.requested_by = requested_by
        self.clock = clock

    @functools.cached_property
    def home_config(self) -> HomeConfig:
        """The home as the connection configures it."""
        fetched = _fetched(self.streamstate_conn_id)
        aws_conn_id = aws_conn_id_of(fetched)
        config = home_config(fetched, _fetched(aws_conn_id) if aws_conn_id else None)
        mask_credentials(config)
        return config

    @functools.cached_property
    def home(self) -> Home:
        """The home that the connection names."""
        from airflow_streamstate.controller.home import Home

        return Home(self.home_config, self.clock)

    @functools.cached_property
    def client(self) -> Controller:
        """The verbs."""
        return self.new_client()

    def new_client(self) -> Controller:
        """Another client of the same home; each thread needs its own."""
        return controller_on_this_machine(self.home, self.clock, self.requested_by)

    def get_conn(self) -> Controller:
        """The client."""
        return self.client

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's test button: create, replace and delete an object in the home, with conditions."""
        try:
            return True, self.home.check()
        except StreamStateError as error:
            return False, str(error)

    def is_running(
        self,
        stream_id: str,
        *,
        application: str | Path,
        arguments: Sequence[str] = (),
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        **more: Any,
    ) -> bool:
        """Whether the stream runs exactly this: the same bytes, arguments, configuration and master.

        A stream with the trigger ``availableNow`` or ``once`` also runs between two of its runs.

        :param more: other terms of ``deploy_request``.
        """
        from airflow_streamstate.controller.request.requests import deploy_request

        request = deploy_request(
            stream_id,
            Path(application),
            arguments=tuple(arguments),
            master=master,
            conf=dict(conf or {}),
            **more,
        )
        return self.client.running_same_code(request)

    def deadline_text(self, seconds: float) -> str:
        """The time this many seconds from now, as a trigger takes it."""
        return format_time(self.clock.now() + timedelta(seconds=seconds))


def controller_on_this_machine(home: Home, clock: Clock, requested_by: str) -> Controller:
    """The client for a worker or triggerer; drivers on this machine get none of Airflow's secrets."""
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.hooks.connection import spark_submission
    from airflow_streamstate.launch.launchers import Launchers
    from airflow_streamstate.launch.local import inherited

    launcher = Launchers(clock, CONNECT, environ=inherited(os.environ))
    _quiet_botocore()
    return Controller(
        home, launcher, clock, requested_by, spark_submission, airflow_secrets(without_airflows_own(os.environ))
    )


def _quiet_botocore() -> None:
    """Keep botocore's INFO lines out of the logs of tasks and triggers, which would have some at each wake-up; a level
    that somebody has set stays."""
    botocore = logging.getLogger("botocore")
    if botocore.level == logging.NOTSET:
        botocore.setLevel(logging.WARNING)


def without_airflows_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that ``env://`` may refer to."""
    return {name: value for name, value in environ.items() if not name.startswith(_AIRFLOWS_OWN)}


def _fetched(conn_id: str) -> Fetched:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise InvalidRequestError(
            "there is no such connection", conn_id=conn_id, next_step="Create it: type streamstate, with a home."
        ) from None
    return Fetched(connection, connection.extra_dejson)
