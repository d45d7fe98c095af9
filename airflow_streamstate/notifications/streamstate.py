"""``StreamNotifier``: alerts about streams, sent by the notifiers of other providers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

from airflow_streamstate.alerts.alert_watch import AlertWatch
from airflow_streamstate.alerts.conditions import AlertChange
from airflow_streamstate.alerts.metrics import gauges
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.hooks.configuration import count, gauge
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.protocol.policies import Told

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class StreamNotifier(BaseNotifier):
    """Polls the streams of a home, and sends each alert that was raised or resolved since by other notifiers.

    It is called by a task of a scheduled DAG, or as a callback of a task or DAG; each alert is sent once per audience,
    however often and by how many DAGs it is called. The templated fields of each notifier may use ``alert``, the JSON
    of the alert (``{{ alert.text }}``, ``{{ alert.kind }}``, ``{{ alert.stream_id }}``, ``{{ alert.rule }}`` …).

    A notifier that raises stops nothing: the others are called, and the error is logged. An alert that no notifier has
    sent stays owed: the task fails when all alerts were tried, and its retry, or the next run, sends the alert again.

    :param notifiers: of Slack, SMTP, PagerDuty or any other provider; each is called for each alert.
    :param stream_ids: only these streams; None for all streams of the home. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)
    :param audience: each audience gets every alert once; another one than that of ``streamstate watch``, so that both
        send them.
    """

    template_fields: Sequence[str] = ("stream_ids", "streamstate_conn_id")

    def __init__(
        self,
        *,
        notifiers: Iterable[BaseNotifier] = (),
        stream_ids: Sequence[str] | str | None = None,
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        audience: str = "airflow",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.notifiers = tuple(notifiers)
        self.stream_ids = stream_ids
        self.streamstate_conn_id = streamstate_conn_id
        self.audience = audience

    def notify(self, context: Context) -> None:
        """Poll the streams, and send what is new.

        Raises:
            StreamStateError: the home does not answer.
            UnavailableError: no notifier has sent some alert.
        """
        self.looked(context)

    def looked(self, context: Context) -> dict[str, Any]:
        """As ``notify``; what was sent, how often a notifier raised, and the alerts that are raised, as JSON.

        Raises:
            StreamStateError: the home does not answer.
            UnavailableError: no notifier has sent some alert.
        """
        told: list[AlertChange] = []
        untold: set[str] = set()
        failures = 0

        def tell(change: AlertChange) -> None:
            nonlocal failures
            failed = self._failures(change, context)
            failures += failed
            if self.notifiers and failed == len(self.notifiers):
                untold.add(change.message_id)
            else:
                told.append(change)

        hook = StreamStateHook(str(self.streamstate_conn_id), requested_by=f"airflow alerts ({self.audience})")
        watch = AlertWatch(hook.client, self.audience, tell, remembers=False, waiting=lambda: untold)
        if self.stream_ids is None:
            watch.look()
        else:
            for stream_id in [self.stream_ids] if isinstance(self.stream_ids, str) else self.stream_ids:
                watch.look_at(str(stream_id))
        for watched in watch.streams.values():
            for name, tags, value in gauges(watched):
                gauge(name, value, **tags)
        if untold:
            watch.settle()
            raise UnavailableError(
                "no notifier has reported some alerts",
                alerts=len(untold),
                told=len(told),
                next_step="The log of the task has each notifier's error. A retry, or the next run, sends them again.",
            )
        standing = {stream_id: _rules_of(one.told) for stream_id, one in watch.streams.items() if one.told.standing}
        return {"told": [one.to_json() for one in told], "failed_notifications": failures, "standing": standing}

    def _failures(self, change: AlertChange, context: Context) -> int:
        """Call every notifier; how many raised."""
        level = self.log.warning if change.kind == "raised" else self.log.info
        level("%s", change.line)
        count(f"streamstate.alert.{change.kind}", stream_id=change.stream_id, rule=change.alert.rule)
        failures = 0
        for notifier in self.notifiers:
            # A notifier renders its fields in place, so each alert has its own notifier.
            one = copy.copy(notifier)
            try:
                one({**context, "alert": change.to_json()})
            except Exception:
                failures += 1
                self.log.exception("A %s has not reported an alert; the others are called", type(notifier).__name__)
        return failures


def _rules_of(told: Told) -> list[str]:
    return [" ".join(filter(None, (alert.rule, alert.subject))) for alert in told.standing]
