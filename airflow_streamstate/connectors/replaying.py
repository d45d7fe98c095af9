"""Which sources of a position cannot be read again from it, as their connectors declare; no source is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_streamstate.connectors.source import NO_OFFSET, SendingOnceConnector, SourceConnector
from airflow_streamstate.protocol.positions import SourceIdentity


def sending_once(
    identities: Sequence[SourceIdentity], lines: Sequence[str], connectors: Iterable[SourceConnector]
) -> dict[str, str]:
    """The sources that have an offset and cannot read it again: identity -> reason.

    Args:
        identities: what each source is, in the order of the offsets; shorter where unknown.
        lines: the offset of each, as Spark wrote it.
    """
    known = {connector.name: connector for connector in connectors if isinstance(connector, SendingOnceConnector)}
    return {
        identity.what: known[identity.adapter].sends_once
        for identity, line in zip(identities, lines, strict=False)
        if identity.adapter in known and line != NO_OFFSET
    }
