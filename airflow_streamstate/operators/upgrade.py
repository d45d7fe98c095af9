"""``UpgradeStreamOperator``: upgrade a stream, with a rehearsal before and a way back after a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from airflow_streamstate.hooks.rendered import one_of, optional_factor, optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.changing import ChangingOperator
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.protocol.upgrades import AfterStop, UpgradeMode

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView

AFTER_STOP: tuple[AfterStop, ...] = ("finish", "rollback")


class UpgradeStreamOperator(UpgradeOperatorBase, ChangingOperator):
    """Upgrade a stream to another version: rehearse it, stop the old one, start the new one, wait until it is healthy.

    The new version is rehearsed on a fork of the real state while the old one runs; if it cannot work, the task fails
    and nothing was touched. If the new version fails or makes no progress, the old one continues without a lost or
    doubled row, and the task fails. A retry tries neither again. A version that is only slower is kept: the log and
    ``warnings`` have both rates. Omitted parameters stay as they are; without any the upgrade is a restart.

    Idempotent: a retry, or a cleared task, continues the upgrade that it began. If that was refused or given up, a
    cleared task begins anew.

    Returns ``{upgrade_id, stream_id, phase, outcome, mode, old_deployment_id, new_deployment_id,
    returned_deployment_id, way, bad_batches, begun_batches, downtime_seconds, downtime_by_query,
    downtimes, not_running_seconds, verdict, differences, audit_ok, cancelled_by,
    reason, driver, warnings, waits_for}``; a failed task has the same XCom. The XCom ``upgrade``,
    ``{stream_id, upgrade_id}``, is pushed at the begin.

    :param mode: ``auto`` restores the state if it fits, else drains with ``allow_drain``; or ``restore``, ``drain``,
        ``fresh``. (templated)
    :param allow_drain: ``auto`` may drain: open windows are written early. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a query that also needs a drain still needs ``allow_drain``.
        (templated)
    :param rehearse: run batches on a fork of the state; false compares only the plans. (templated)
    :param warm: launch the next driver while the other one still runs, also on the way back; false if there is no room
        for two. (templated)
    :param warm_return: also keep a driver of the current version ready, from before its stop until the new version is
        healthy: one that fails before its first commit is replaced at once. Needs room for three drivers for a moment,
        then for two. (templated)
    :param needs_approval: wait until a person approves the plan with ``streamstate approve STREAM``. (templated)
    :param approved_by_another: as ``needs_approval``, by another person than the user who has triggered the run.
        (templated)
    :param roll_back_if_slower: a factor, such as 2: give up a version that falls behind its input and reads at
        most this fraction (1 / factor) of the rows per second of the version before; by default it is kept.
        (templated)
    :param rehearsal_id: the approved rehearsal of ``PlanUpgradeOperator``; refused if the change, or what runs, is
        another one by now. (templated)
    :param on_kill_action: what happens to the upgrade when the task is killed, marked or cleared after the old version
        was told to stop: ``finish`` or ``rollback``. Before that nothing has happened. (templated)

    The parameters of ``PlanUpgradeOperator`` describe the change: ``application``, ``arguments``, ``conf``,
    ``environment``, ``master``, ``spark_conn_id``, ``launcher``, ``launcher_options``, ``launcher_conn_id``,
    ``pod_template``, ``py_files``, ``modules``, ``working_folder``, ``files``,
    ``packages``, ``jars``, ``allow_new_queries``, ``rename_queries``, ``move_sources``, ``accept_lost_input``,
    ``allow_state_loss``, ``allow_literal_secrets``, ``version_label``, ``on_query_failure``, ``rehearse_batches``,
    ``rehearse_rows``,
    ``partitions``, ``state_store``, ``checkpoint_format``, ``migration``, ``auto_migrate``.
    """

    template_fields: Sequence[str] = tuple(
        dict.fromkeys(
            (
                *ChangingOperator.template_fields,
                *UpgradeOperatorBase.template_fields,
                "mode",
                "allow_drain",
                "accept_hazards",
                "rehearse",
                "warm",
                "warm_return",
                "needs_approval",
                "approved_by_another",
                "roll_back_if_slower",
                "rehearsal_id",
                "on_kill_action",
            )
        )
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ChangingOperator.template_fields_renderers,
        **UpgradeOperatorBase.template_fields_renderers,
    }

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **ChangingOperator.literal_choices,
        **UpgradeOperatorBase.literal_choices,
        "mode": get_args(UpgradeMode),
        "on_kill_action": AFTER_STOP,
    }

    def __init__(
        self,
        *,
        mode: str = "auto",
        allow_drain: bool | str = False,
        accept_hazards: bool | str = False,
        rehearse: bool | str = True,
        warm: bool | str = True,
        warm_return: bool | str = False,
        needs_approval: bool | str = False,
        approved_by_another: bool | str = False,
        roll_back_if_slower: float | str | None = None,
        rehearsal_id: str | None = None,
        on_kill_action: str = "finish",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.allow_drain = allow_drain
        self.accept_hazards = accept_hazards
        self.rehearse = rehearse
        self.warm = warm
        self.warm_return = warm_return
        self.needs_approval = needs_approval
        self.approved_by_another = approved_by_another
        self.roll_back_if_slower = roll_back_if_slower
        self.rehearsal_id = rehearsal_id
        self.on_kill_action = on_kill_action

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrades import LEASE_SECONDS
        from airflow_streamstate.hooks.upgrading import refuse_unless_planned, upgrade_of

        request, rehearsal_id = self._request(), optional_text(self.rehearsal_id)
        if rehearsal_id is not None and upgrade_of(hook.client, request.stream_id, request_id) is None:
            refuse_unless_planned(hook.client, self.change(), rehearsal_id)
        return hook.client.upgrades.begin(
            request, request_id, lease_seconds=LEASE_SECONDS, if_abandoned=self.after_stop()
        )

    def after_stop(self) -> AfterStop:
        return one_of(self.on_kill_action, AFTER_STOP, "on_kill_action")

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.upgrade.requests import MODES, UpgradeRequest

        batches, rows = self.rehearsed()
        return UpgradeRequest(
            change=self.change(),
            mode=one_of(self.mode, MODES, "mode"),
            allow_drain=yes_or_no(self.allow_drain, "allow_drain"),
            accept_hazards=yes_or_no(self.accept_hazards, "accept_hazards"),
            runs_batches=yes_or_no(self.rehearse, "rehearse"),
            rehearse_batches=batches,
            rehearse_rows=rows,
            warm=yes_or_no(self.warm, "warm"),
            warm_return=yes_or_no(self.warm_return, "warm_return"),
            needs_approval=yes_or_no(self.needs_approval, "needs_approval"),
            approved_by_another=yes_or_no(self.approved_by_another, "approved_by_another"),
            healthy_when=replace(
                self.healthy_when(),
                roll_back_if_slower=optional_factor(self.roll_back_if_slower, "roll_back_if_slower"),
            ),
            rehearsal_within_seconds=self.rehearsal_seconds(),
            undo_command=self.undo_words(),
        )
