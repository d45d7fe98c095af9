"""``home sign``: sign the records of a home that a person has looked at."""

from __future__ import annotations

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import Verb, option, pass_session
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.control.signatures import Signatures, SignedRecord
from airflow_streamstate.errors import InvalidRequestError


@click.command(cls=Verb)
@option("--yes", "is_meant", is_flag=True, help="Sign what the same command without --yes shows.")
@option(
    "--rotate",
    is_flag=True,
    help="Only what has a valid signature of another accepted key. After a rotation, before the old key is removed.",
)
@pass_session
def sign(session: ShellSession, is_meant: bool, rotate: bool) -> int:
    """Show the records of the home that its signing key has not signed, and sign them with --yes.

    The key is that of STREAMSTATE_SIGNING_KEY (inside Airflow: of the connection). A record is shown with who wrote it
    and what it names. Sign only what you know: whoever wrote it will be believed. Of what drivers write only the
    modules are signed that a script loaded while it ran.
    """
    home = session.home()
    keys = home.config.keys
    if keys is None:
        raise InvalidRequestError(
            "there is no signing key to sign with",
            next_step="Set STREAMSTATE_SIGNING_KEY; `openssl rand -hex 32` makes a key.",
        )
    home.presence.need()
    signatures = Signatures(home.guarded, keys)
    rows: list[dict[str, object]] = []
    for record in signatures.records():
        if record.state == "signed" or (rotate and record.state != "older key"):
            continue
        is_signed = is_meant and signatures.sign(record)
        rows.append(_row(record, "signed" if is_signed else "changed since" if _may_sign(record) and is_meant else ""))
    done = sum(row["done"] == "signed" for row in rows)
    answer = {"key_id": keys.key_id, "is_dry": not is_meant, "signed": done, "records": rows}
    session.emit(answer, lambda console: render.signatures(console, answer, rows))
    return status_of_findings(is_well=not is_meant or done == len(rows))


def _may_sign(record: SignedRecord) -> bool:
    return record.state != "unreadable"


def _row(record: SignedRecord, done: str) -> dict[str, object]:
    return {
        "key": record.key,
        "kind": record.kind,
        "state": record.state,
        "reason": record.reason,
        "says": record.says,
        "done": done,
    }
