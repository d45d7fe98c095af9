"""Before evidence goes, what it proves is recorded: the chain of custody up to the last known good version."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.control.retention import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.lineage import custody_of
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.retention import RetentionRegister, SettledCustody


def settle(home: Home, control: StreamControl, retention: Retention, through: str | None) -> None:
    """Audit the beginnings of deployments whose evidence is about to go, and record what came of it.

    Args:
        home: of the stream.
        control: the stream.
        retention: what is kept of it.
        through: the last deployment whose evidence may go; None for none.
    """
    before = retention.read().settled
    if through is None or (before is not None and order_of(before.through) >= order_of(through)):
        return
    is_whole = custody_of(home, control.stream_id, through=through).is_whole
    settled = SettledCustody(through, is_whole, home.clock.now())

    def edit(register: RetentionRegister) -> RetentionRegister:
        now = register.settled
        if now is not None and order_of(now.through) >= order_of(through):
            return register
        return replace(register, settled=settled)

    retention.change(edit)
