"""The verb ``deploy``: decides which deployment a request becomes, again after each write of another controller."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Became, Begin, Refused, decide_request
from airflow_streamstate.controller.deploy.attempts import Attempts, someone_was_first
from airflow_streamstate.controller.deploy.deploying import Deploying, OnStart, taken
from airflow_streamstate.controller.idempotency import check_same_request
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.retired import refuse_retired
from airflow_streamstate.controller.under_upgrade import refuse_during_upgrade
from airflow_streamstate.controller.wait.notifications import retire_commands
from airflow_streamstate.errors import VersionConflictError

TRIES = 3


class Deployer:
    """Makes a script the current deployment of a stream."""

    def __init__(self, context: ControllerContext, attempts: Attempts) -> None:
        self._context = context
        self._attempts = attempts

    def deploy(
        self,
        request: DeployRequest,
        request_id: str,
        on_start: OnStart,
        *,
        upgrade_id: str | None = None,
        until_finished: bool = False,
    ) -> DeploymentView:
        """As ``Controller.deploy``; ``upgrade_id``: the upgrade that this is a step of."""
        control = self._context.home.control(request.stream_id, begins=True)
        _ = self._context.home.checkpoints  # raises where they cannot be opened, before anything is written
        for _try in range(TRIES):
            record = control.request(request_id)
            if record is not None:
                check_same_request(record, request.digest)
            stored = control.register_or_lost()
            register = None if stored is None else stored.value
            decision = decide_request(record, register, request_id, self._context.clock.now())
            if isinstance(decision, Refused):
                raise decision.error
            if upgrade_id is not None or isinstance(decision, Begin):
                refuse_during_upgrade(control, register, upgrade_id)
            if isinstance(decision, Became):
                return self._became(control, decision.deployment_id, request_id, request.rehearsal_id, until_finished)
            refuse_retired(register, revive=request.terms.revive)
            try:
                deploying = Deploying(self._context, self._attempts, control, request, request_id, decision)
                return deploying.run(stored, on_start)
            except VersionConflictError:
                continue
        raise someone_was_first(control)

    def _became(
        self,
        control: StreamControl,
        deployment_id: str,
        request_id: str,
        rehearsal_id: str | None,
        until_finished: bool,
    ) -> DeploymentView:
        seen = self._context.observer.observe(control.stream_id, deployment_id)
        if seen.spec.request_id != request_id:
            raise taken(seen.spec)
        if seen.is_unlaunched and seen.spec.start.predecessor_id is not None:
            retire_commands(control, seen.spec.start.predecessor_id)
        return self._attempts.go_on(control, seen, rehearsal_id, until_finished=until_finished)
