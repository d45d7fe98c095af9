"""``home sign``: sign the records of a home that a person has looked at."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import Verb, option, pass_session
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.protocol.views import selected

if TYPE_CHECKING:
    from airflow_streamstate.control.signatures import SignedRecord

_OF_ROTATION = "rotation"


@click.command(cls=Verb)
@option(
    "--yes",
    "consent",
    is_flag=False,
    flag_value=_OF_ROTATION,
    metavar="DIGEST",
    help="Sign the list that the same command without --yes has shown with this digest. --rotate needs no digest.",
)
@option(
    "--rotate",
    is_flag=True,
    help="Only what has a valid signature of another accepted key. After a rotation, before the old key is removed.",
)
@pass_session
def sign(session: ShellSession, consent: str | None, rotate: bool) -> int:
    """Show the records of the home that its signing key has not signed, and sign exactly these with --yes.

    The key is that of STREAMSTATE_SIGNING_KEY (inside Airflow: of the connection). Each record is shown with all of
    its fields, then one digest of the list, and the command that signs it. Where another record was written in
    between, nothing is signed. At a terminal the command asks. Sign only what you know: whoever wrote it will be
    believed. Of what drivers write only the modules are signed that a script loaded while it ran.

    Exit status 4 where the digest is another one.
    """
    from airflow_streamstate.control.signatures import Signatures

    home = session.home()
    keys = home.config.keys
    if keys is None:
        raise InvalidRequestError(
            "there is no signing key to sign with",
            next_step="Set STREAMSTATE_SIGNING_KEY; `openssl rand -hex 32` makes a key.",
        )
    home.presence.need()
    signatures = Signatures(home.guarded, keys)
    wanted = ("older key",) if rotate else ("older key", "refused", "unreadable")
    records = [record for record in signatures.records() if record.state in wanted]
    if consent is None:
        _show(session, keys, records, rotate=rotate)
        if not records or not _asks(session) or not click.confirm("Sign them?", err=True):
            return status_of_findings(is_well=True)
    else:
        _check_consent(session, consent, records, keys, rotate=rotate)
    rows = [_row(record, _done(record, is_signed=signatures.sign(record))) for record in records]
    signed = sum(row["done"] == "signed" for row in rows)
    answer = {"key_id": keys.key_id, "is_dry": False, "signed": signed, "records": rows}
    session.emit(answer, lambda console: render.signatures(console, answer, rows))
    return status_of_findings(is_well=signed == len(rows))


def _show(session: ShellSession, keys: SigningKeys, records: Sequence[SignedRecord], *, rotate: bool) -> None:
    from airflow_streamstate.control.signatures import digest_of

    rows = [_row(record, "") for record in records]
    digest = digest_of(records, keys)
    command = ["streamstate", "home", "sign", "--home", str(session.home_uri), *(["--rotate"] if rotate else [])]
    answer = {
        "key_id": keys.key_id,
        "is_dry": True,
        "signed": 0,
        "digest": digest,
        "next_command": shlex.join([*command, "--yes", digest]) if rows else "",
        "records": rows,
    }
    session.emit(answer, lambda console: render.signatures(console, answer, rows))


def _check_consent(
    session: ShellSession, consent: str, records: Sequence[SignedRecord], keys: SigningKeys, *, rotate: bool
) -> None:
    """Raise ConflictError, InvalidRequestError where a person has not agreed to sign exactly these records."""
    from airflow_streamstate.control.signatures import digest_of

    again = shlex.join(["streamstate", "home", "sign", "--home", str(session.home_uri)])
    if consent == _OF_ROTATION:
        if rotate:
            return  # each of them has a valid signature
        raise InvalidRequestError(
            "--yes needs the digest of the list that it signs",
            next_step=f"`{again}` shows the records, and the whole command.",
        )
    if consent != digest_of(records, keys):
        raise ConflictError(
            "these are not the records that were shown: nothing is signed",
            asked=consent,
            digest=digest_of(records, keys),
            records=len(records),
            next_step=f"Look again: `{again}`. Something was written since; stop what writes, if it was no attacker.",
        )


def _asks(session: ShellSession) -> bool:
    return not session.as_json and sys.stdin.isatty() and sys.stdout.isatty()


def _done(record: SignedRecord, *, is_signed: bool) -> str:
    if is_signed:
        return "signed"
    return "" if record.state == "unreadable" else "changed since"


def _row(record: SignedRecord, done: str) -> dict[str, object]:
    return selected(record, "key kind state reason sha256 record=fields") | {"done": done}
