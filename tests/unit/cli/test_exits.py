"""Exit statuses: 0 done, 1 failed, 2 usage, 3 deadline, 4 refused; one rule for every verb."""

from __future__ import annotations

import ast
import inspect
import itertools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate import cli, errors
from airflow_streamstate.cli.session import (
    DEADLINE,
    DONE,
    FAILED,
    REFUSED,
    USAGE,
    exit_status_of,
    status_of_rehearsal,
    status_of_replay,
    status_of_several,
    status_of_upgrade,
)
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.upgrade_journal import state_of
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.errors import Remedy, StreamStateError
from airflow_streamstate.plan.replay_report import ReplayOutcome
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.events import Expired, Ignored, Rejected
from airflow_streamstate.protocol.upgrades import Phase, Upgrade, UpgradeKind, UpgradeStep
from airflow_streamstate.store.local import LocalStore
from support.asked_upgrades import of_kind
from support.examples import AT, example
from support.scripted_stream import ScriptedAttempt
from support.shell import STREAM_VERBS, Desk, meanwhile, shell, words_of

ERRORS = [
    cls
    for cls in vars(errors).values()
    if inspect.isclass(cls) and issubclass(cls, StreamStateError) and cls is not StreamStateError
]
STATUS_OF = {
    Remedy.FIX: USAGE,
    Remedy.RETRY: FAILED,
    Remedy.REREAD: REFUSED,
    Remedy.READ_BACK: FAILED,
    Remedy.STOP: REFUSED,
    Remedy.REPAIR: FAILED,
    Remedy.INSPECT: FAILED,
}
BY_NAME = {
    errors.DeadlineExceededError: DEADLINE,
    errors.ExpiredError: DEADLINE,
    errors.HomeFormatError: REFUSED,
    errors.IncompatibleUpgradeError: REFUSED,
    errors.InputLostError: REFUSED,
    errors.UnsupportedCheckpointError: REFUSED,
    errors.ReadOnlyError: FAILED,
    errors.StartRefusedError: REFUSED,
    errors.DeploymentRefusedError: REFUSED,
}
ONE_OF_EACH_STATUS = (errors.InvalidRequestError, errors.UnavailableError, errors.ConflictError)
DRIVERLESS = [verb for verb in STREAM_VERBS if verb not in ("adopt",)]
"""Verbs whose shortest command line asks for a stream of the home."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda cls: cls.__name__)
def test_the_exit_status_follows_from_the_error(error: type[StreamStateError]) -> None:
    """A caller that reads only the exit status knows what to do next, as docs/reference/errors.md describes."""
    assert exit_status_of(error("it is so")) == BY_NAME.get(error, STATUS_OF[error.remedy])


def test_only_a_deadline_ends_with_three() -> None:
    """Exit status 3 means that the work continues, and no other status means it."""
    late = [cls for cls in ERRORS if exit_status_of(cls("it is so")) == DEADLINE]
    assert late == [errors.DeadlineExceededError, errors.ExpiredError]


@pytest.mark.parametrize("verb", DRIVERLESS)
@pytest.mark.parametrize("error", ONE_OF_EACH_STATUS, ids=lambda cls: cls.__name__)
def test_what_a_home_answers_ends_every_verb_by_the_same_rule(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: str, error: type[StreamStateError]
) -> None:
    """Whichever verb meets an error of a kind ends with the status of that kind."""
    desk.stream().deploy().runs().stopped()
    (desk.base / "job.py").write_text("runs\n")

    def answers(_store: LocalStore, key: str, _most_bytes: int) -> object:
        raise error("the edge to the disk says so", key=key)

    monkeypatch.setattr(LocalStore, "get_within", answers)
    assert shell(*words_of(verb, "flights", desk)).status == exit_status_of(error("it is so"))


def answer_order(attempt: ScriptedAttempt, slot: CommandSlot, how: str) -> None:
    """The driver's answer to an order, in this way."""
    assert slot.command is not None
    facts: dict[str, Any] = {"command_id": slot.command.command_id, "command_number": slot.number}
    if how == "rejected":
        attempt.say(Rejected, **facts, key=slot.key, reason="a memory sink")
    elif how == "ignored":
        attempt.say(Ignored, **facts, command=to_json(slot.command), reason="for another attempt")
    elif how == "expired":
        attempt.say(Expired, **facts, command=to_json(slot.command))
    else:
        attempt.failed("ValueError: boom")
    attempt.control.journal(attempt.deployment_id).delete_command(slot)


def saying(attempt: ScriptedAttempt, how: str) -> AbstractContextManager[None]:
    """In the meantime the driver answers each order that it finds in this way."""

    def answer_all() -> None:
        for slot in attempt.control.journal(attempt.deployment_id).commands():
            answer_order(attempt, slot, how)

    return meanwhile(answer_all)


ENDS_OF_ORDERS = {
    ("stop", "rejected"): REFUSED,
    ("stop", "ignored"): REFUSED,
    ("stop", "expired"): DEADLINE,
    ("stop", "failed"): FAILED,
    ("drain", "rejected"): REFUSED,
    ("drain", "ignored"): REFUSED,
    ("drain", "expired"): DEADLINE,
    ("drain", "failed"): FAILED,
    ("snapshot create", "rejected"): REFUSED,
    ("snapshot create", "ignored"): DEADLINE,  # it is asked again until the time is up
    ("snapshot create", "expired"): DEADLINE,
    ("snapshot create", "failed"): DEADLINE,  # the next attempt may take it yet
}


@pytest.mark.parametrize(("verb", "how"), ENDS_OF_ORDERS)
def test_every_end_of_an_order_has_the_status_of_its_kind(desk: Desk, verb: str, how: str) -> None:
    """A rejected drain ends as a refused upgrade does."""
    running = desk.stream().deploy().runs()
    with saying(running, how):
        answer = shell(verb, "flights", "--timeout", 2 if ENDS_OF_ORDERS[verb, how] == DEADLINE else 20, "--json")
    assert answer.status == ENDS_OF_ORDERS[verb, how], answer


OVER: tuple[Phase, ...] = ("upgraded", "rolled_back", "refused", "failed")
ENDS_OF_UPGRADES = {
    # (asked, cancelled with): statuses by outcome, in the order of OVER
    ("upgrade", None): (DONE, FAILED, REFUSED, FAILED),
    ("rollback", None): (REFUSED, DONE, REFUSED, FAILED),
    ("upgrade", "rollback"): (REFUSED, DONE, DONE, FAILED),
    ("upgrade", "finish"): (DONE, FAILED, DONE, FAILED),
    ("rollback", "finish"): (REFUSED, DONE, DONE, FAILED),
}


@pytest.mark.parametrize(("asked", "cancelled"), ENDS_OF_UPGRADES, ids=str)
def test_every_end_of_an_upgrade_has_the_status_of_its_kind(asked: UpgradeKind, cancelled: str | None) -> None:
    """For ``upgrade``, ``restart`` and ``rollback``, for their callers and for a caller that cancels."""
    upgrade = of_kind(example(Upgrade), asked)
    found = []
    for phase in OVER:
        step = UpgradeStep("orders", upgrade.upgrade_id, 1, phase, AT, "test", "w")
        found.append(status_of_upgrade(UpgradeView(state_of(upgrade, [step])), cancelled))  # type: ignore[arg-type]
    assert tuple(found) == ENDS_OF_UPGRADES[asked, cancelled]


def test_every_end_of_a_rehearsal_has_the_status_of_its_kind() -> None:
    """Of ``plan``."""
    outcomes = ("fits", "refused", "failed", "deadline")
    assert [status_of_rehearsal(outcome) for outcome in outcomes] == [DONE, REFUSED, FAILED, DEADLINE]


def test_every_end_of_a_replay_has_the_status_of_its_kind() -> None:
    """Rows that are others than a job of CI asks for are a failure of a replay that is done, and of no other."""
    outcomes: tuple[ReplayOutcome, ...] = ("done", "refused", "failed", "deadline")
    assert [status_of_replay(outcome) for outcome in outcomes] == [DONE, REFUSED, FAILED, DEADLINE]
    others = [status_of_replay(outcome, is_as_asked=False) for outcome in outcomes]
    assert others == [FAILED, REFUSED, FAILED, DEADLINE]


def test_several_ends_have_one_status() -> None:
    """Of ``home restore``: that of all, where it is the same and nothing was done; else it has failed."""
    late, refused = errors.DeadlineExceededError("late"), errors.ConflictError("refused")
    assert [status_of_several(each, 0) for each in ([], [refused, refused], [late], [late, refused])] == [
        DONE, REFUSED, DEADLINE, FAILED
    ]  # fmt: skip
    assert [status_of_several(each, 1) for each in ([], [refused])] == [DONE, FAILED]


def test_no_verb_decides_an_exit_status_by_itself() -> None:
    """Each ``return`` of a verb that ends with a status goes through the one place that holds the rule."""
    folder = Path(inspect.getfile(cli)).parent
    found = []
    for path in sorted(folder.glob("*.py")):
        if path.name in ("session.py", "main.py"):
            continue
        for function in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)):
            if not (isinstance(function.returns, ast.Name) and function.returns.id == "int"):
                continue
            returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
            found += [(path.name, function.name, ast.unparse(each.value)) for each in returns if each.value is not None]
    assert {module for module, _, _ in found} >= {
        "doctor.py",
        "look.py",
        "snapshots.py",
        "state.py",
        "orders.py",
        "upgrade.py",
    }
    allowed = ("status_of_", "run_to_end(", "_begin_and_run(", "_finish(", "_answer(", "_look(", "_show(")
    odd = itertools.filterfalse(lambda one: one[2].startswith(allowed) or one[2] == "DONE", found)
    assert list(odd) == []
