"""Starts drivers on this machine for ``local``: what it checks, the command, and the process that leads the session."""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.launch import detached
from airflow_streamstate.launch.command import DriverCommand, build_command, check_request, spark_version_of
from airflow_streamstate.launch.driver_zip import LEAD_NAME, RUNNER_NAME, ZIP_NAME, build_driver_zip, write_runner
from airflow_streamstate.launch.folder import LaunchFolder, translated, write_file
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.local import inherited
from airflow_streamstate.launch.processes import MARKER, read_stat
from airflow_streamstate.launch.submit_options import check_master_answers

START_SECONDS = 30.0
_SHELL = "/bin/sh"


class LocalStart:
    """Starts drivers on this machine.

    Args:
        environ: as of ``LocalLauncher``.
    """

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self._environ = environ

    def check(self, request: LaunchRequest) -> None:
        """As ``Launcher.check``."""
        _check_platform()
        # Only here: a launch that is under way is not refused because its master is being restarted.
        check_master_answers(*check_request(request, self._inherited()))

    def spark_version(self, request: LaunchRequest) -> str:
        """As ``Launcher.spark_version``."""
        return spark_version_of(request, self._inherited())

    def command(self, request: LaunchRequest) -> DriverCommand:
        """The command line of a driver, and the files that it reads; raises InvalidRequestError."""
        _check_platform()
        return build_command(request, self._inherited())

    def start(
        self, folder: LaunchFolder, request: LaunchRequest, command: DriverCommand, facts: Mapping[str, object]
    ) -> None:
        """Start the leading process and wait until it has claimed the folder, or has found it claimed."""
        _write_working_files(folder, command)
        log = Path(request.log_path)
        with translated(log):
            log.parent.mkdir(parents=True, exist_ok=True)
        place = str(folder.path)
        argv = [sys.executable, "-I", "-S", detached.__file__, place, request.log_path, json.dumps(facts)]
        argv += [_SHELL, str(folder.path / LEAD_NAME), place, *command.argv]
        environ = {**command.environment, MARKER: place}
        try:
            answer = _answer_of(argv, environ, request.working_folder)
        except OSError as error:
            answer = f"error: {error.strerror}"
        except subprocess.TimeoutExpired:
            raise OutcomeUnknownError(
                "the driver's process has not answered in time",
                folder=place,
                waited_seconds=START_SECONDS,
                next_step="Launch again with the same key: it is the same driver.",
            ) from None
        if answer not in ("claimed", "lost"):
            raise UnavailableError("the driver's process could not be started", folder=place, answer=answer[-500:])

    def _inherited(self) -> Mapping[str, str]:
        return inherited(os.environ) if self._environ is None else self._environ


def _answer_of(argv: list[str], environ: Mapping[str, str], working_folder: str | None) -> str:
    """Run ``detached.py`` until its child has become the driver, or has failed; returns its answer."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=working_folder,
        env=environ,
        close_fds=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=START_SECONDS)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _write_working_files(folder: LaunchFolder, command: DriverCommand) -> None:
    build_driver_zip(folder.path / ZIP_NAME)
    write_runner(folder.path / RUNNER_NAME)
    lead = importlib.resources.files("airflow_streamstate.launch") / LEAD_NAME
    write_file(folder.path / LEAD_NAME, lead.read_bytes())
    for name, body in command.files.items():
        write_file(folder.path / name, body)


def _check_platform() -> None:
    if read_stat(os.getpid()) is None:
        raise InvalidRequestError(
            "drivers on this machine cannot be watched: there is no /proc",
            platform=sys.platform,
            next_step="Launch from Linux.",
        )
