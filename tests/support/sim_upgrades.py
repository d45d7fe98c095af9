"""Lives in which streams are upgraded, by good and by bad versions.

Whatever is struck in them, an upgrade has two ends only: the old version runs as before, or the new one has proven
itself (``Ascent.seen`` remembers which).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import ALIVE
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest, UpgradeRequest
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms
from support.sim_life import SCRIPTS, Life, Step, make_world
from support.sim_world import World
from support.simulated_driver import STREAM, QueryFailedError, SimulatedDriver

HEALTHY = {"healthy_batches": 2, "healthy_deadline_seconds": 60.0}
REHEARSAL_SECONDS = 60.0
STILLBORN, SHORT_LIVED = "stillborn.py", "short-lived.py"
BAD = (STILLBORN, SHORT_LIVED)
"""A version that fails before its first batch, and one that fails when its queries have committed some."""
SHORT_LIFE_SECONDS = 2.1
WHOLE_ASCENT = (
    Step("deploy", "v1.py"),
    Step("grow"),
    Step("upgrade", "v2.py"),
    Step("grow"),
    Step("upgrade", "v3.py", mode="drain", warm=True),
    Step("grow"),
    Step("upgrade", STILLBORN, warm=True, warm_return=True),
    Step("grow"),
    Step("upgrade", SHORT_LIVED, warm=True),
    Step("grow"),
    Step("upgrade", "v1.py"),
    Step("grow"),
    Step("rollback", warm=True),
    Step("grow"),
    Step("drain"),
)


@dataclass
class Ascent(Life):
    """One life with upgrades.

    Attributes:
        seen: how each upgrade ended that came to an end, in order.
        is_late: it may learn the end of an upgrade after which others have moved the stream.
    """

    steps: tuple[Step, ...] = WHOLE_ASCENT
    seen: list[UpgradeView] = field(default_factory=list)
    is_late: bool = False

    def _order(self, controller: Controller, step: Step, lasting_id: str, request_id: str) -> None:
        if step.verb not in ("upgrade", "rollback"):
            super()._order(controller, step, lasting_id, request_id)
            return
        upgrades = controller.upgrades
        if step.verb == "upgrade":
            begun = upgrades.begin(self.upgrade_request(step), request_id)
        else:
            begun = upgrades.begin_rollback(
                RollbackRequest(
                    STREAM,
                    RollbackTerms(**HEALTHY, rehearsal_deadline_seconds=REHEARSAL_SECONDS, warm=step.warm),
                ),
                request_id,
            )
        view = upgrades.run(STREAM, begun.upgrade_id, self.timeout_seconds * 4)
        self.seen.append(view)
        if not self.is_late:
            self._judge(view)
        error = view.as_error()
        if error is not None and not (step.script in BAD and view.outcome == "given_up"):
            raise error

    def upgrade_request(self, step: Step) -> UpgradeRequest:
        """The request of a step."""
        return UpgradeRequest(
            change_request(
                STREAM,
                self.world.folder / step.script,
                partitions=step.partitions,
                state_store=None if step.partitions is None else "rocksdb",
            ),
            UpgradeTerms(
                mode=step.mode,
                warm=step.warm,
                warm_return=step.warm_return,
                **HEALTHY,
                rehearsal_deadline_seconds=REHEARSAL_SECONDS,
            ),
        )

    def _judge(self, view: UpgradeView) -> None:
        """What holds at its end."""
        state, upgrade = view.state, view.state.upgrade
        control = self.world.control
        register = control.need_register().value
        says = f"{upgrade.asked} {upgrade.upgrade_id} is {view.outcome} ({state.text})"
        if register.upgrade_id == upgrade.upgrade_id:
            assert not UpgradeJournal(control).is_under_way(upgrade.upgrade_id), says
        if view.outcome == "failed":
            self.world.violations.append(f"neither here nor there: {says}")
        if view.outcome == "upgraded":
            expected = state.new_deployment_id
        elif view.is_back:
            expected = state.returned_deployment_id
        elif upgrade.asked == "upgrade":
            expected = upgrade.old_deployment_id
        else:
            return
        if register.deployment_id != expected:
            self.world.violations.append(f"{says}, and {register.deployment_id} is current, not {expected}")
        if state.audit_ok is False:
            self.world.violations.append(f"{says}, and the lineage is not whole")

    def _recover(self, controller: Controller, step: Step, number: int, error: StreamStateError) -> bool:
        if step.verb not in ("upgrade", "rollback"):
            return super()._recover(controller, step, number, error)
        held = controller.upgrades.under_way(STREAM)
        if held is not None:
            return True  # the same again
        self.progress.tries[number] += 1
        if isinstance(error, ConflictError) and "first deployment" in str(error):
            return False
        if controller.status(STREAM).state not in ALIVE:
            self._resume(controller, number)
        return not (self.seen and self.seen[-1].outcome == "rolled_back" and step.verb == "rollback")


def make_ascent(folder: Path) -> World:
    """A world for it: as ``make_world``, with versions that are not well."""
    world = make_world(folder)
    for number, name in enumerate(BAD):
        path = folder / name
        if not path.exists():
            path.write_text(f"print({name!r})\n")
        world.scripts[name] = _bad(world.scripts[list(SCRIPTS)[number]], name)
    return world


def _bad(script: Callable[[SimulatedDriver], None], name: str) -> Callable[[SimulatedDriver], None]:
    def bad(driver: SimulatedDriver) -> None:
        if not isinstance(driver, SimulatedDriver):
            script(driver)  # it rehearses, and all is well
            return
        if name == STILLBORN:
            raise QueryFailedError("no such table")
        driver.clock.after(SHORT_LIFE_SECONDS, lambda: _spoil(driver))
        script(driver)

    return bad


def _spoil(driver: SimulatedDriver) -> None:
    """From now on each batch of it fails."""
    for startable in driver.startables:
        startable.plan = replace(startable.plan, fails_at=_Every())
        for run in startable.runs:
            run._plan = startable.plan


class _Every(set[int]):
    """Whatever batch."""

    def __contains__(self, _: object) -> bool:
        return True


_BEFORE, _AFTER = WHOLE_ASCENT[:2], (Step("grow"), Step("drain"))
CLIMBS: dict[str, tuple[Step, ...]] = {
    "restore": (*_BEFORE, Step("upgrade", "v2.py"), *_AFTER),
    "drain": (*_BEFORE, Step("upgrade", "v2.py", mode="drain", warm=True), *_AFTER),
    "handover": (*_BEFORE, Step("upgrade", STILLBORN), *_AFTER),
    "forward": (*_BEFORE, Step("upgrade", SHORT_LIVED, warm=True), *_AFTER),
    "rollback": (*_BEFORE, Step("upgrade", "v2.py"), Step("grow"), Step("rollback", warm=True), *_AFTER),
    "rescale": (
        *_BEFORE,
        Step("upgrade", "v2.py", partitions=3),
        Step("grow"),
        Step("rollback", warm=True),
        *_AFTER,
    ),
}
"""Shorter lives, with one upgrade each, or one that is withdrawn."""
