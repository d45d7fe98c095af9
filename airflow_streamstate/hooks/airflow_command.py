"""``airflow streamstate``: the shell, with the home of an Airflow connection."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow.cli.cli_config import CLICommand

    from airflow_streamstate.cli.session import ShellSession

_HELP = "Savepoints, drains and safe upgrades for Spark Structured Streaming"
_DESCRIPTION = """The shell `streamstate`, with the home and the credentials of an Airflow connection, and with
secrets of Airflow's connections and variables. Without --conn-id the home is that of --home or
STREAMSTATE_HOME, as in the shell.
`airflow streamstate -- --help` lists the verbs, `airflow streamstate VERB --help` describes one."""


def get_commands() -> list[CLICommand]:
    """What provider discovery adds to the command ``airflow``."""
    from airflow.cli.cli_config import ActionCommand, Arg, lazy_load_command

    return [
        ActionCommand(
            name="streamstate",
            help=_HELP,
            description=_DESCRIPTION,
            func=lazy_load_command(f"{__name__}.streamstate"),
            args=(
                Arg(("--conn-id",), help="The connection that names the home", metavar="CONN_ID"),  # type: ignore[no-untyped-call]
                Arg(("words",), help="A verb, its options and arguments", metavar="VERB ...", nargs="..."),  # type: ignore[no-untyped-call]
            ),
        )
    ]


def streamstate(args: Namespace) -> None:
    """Run the shell with these words; exits with its status."""
    from airflow_streamstate.cli.main import own_session, run
    from airflow_streamstate.cli.session import exit_status_of
    from airflow_streamstate.errors import StreamStateError

    words = list(args.words)
    if words[:1] == ["--"]:
        words = words[1:]
    session = own_session(words)
    try:
        if args.conn_id is not None:
            _connect(session, args.conn_id)
    except StreamStateError as error:
        session.fail(error.to_json())
        sys.exit(exit_status_of(error))
    sys.exit(run(words, session))


def _connect(session: ShellSession, conn_id: str) -> None:
    """Give the session the home of a connection; raises StreamStateError."""
    from airflow_streamstate.hooks.streamstate import StreamStateHook, controller_on_this_machine

    # A command of Airflow's reads connections from the metadata database, as `airflow connections` does.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    config = StreamStateHook(conn_id).home_config
    session.home_uri, session.checkpoints_uri = config.home_uri, config.checkpoints_uri
    session.work_dir, session.options = config.work_dir, config.options
    session.keys, session.named, session.allowed_file = lambda: config.keys, config.allowed, None
    session.open_controller = controller_on_this_machine
