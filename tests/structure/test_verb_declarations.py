"""A new verb with its operator is a few files: its terms, its act, its way through the client, the shell, Airflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.scratch_copy import ScratchCopy

pytestmark = pytest.mark.fast

PACKAGE = "airflow_streamstate"
MOST_FILES = 12
TERMS = '''@dataclass(frozen=True)
class PulseTerms:
    """How fresh the sign of a driver must be."""

    within_seconds: Seconds = term(60.0, help="seconds since the last sign of the driver, at most")

    def __post_init__(self) -> None:
        check_terms(self)


'''
ACT = '''"""Whether the driver of a stream has given a sign."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.protocol.terms.order import PulseTerms


@dataclass(frozen=True)
class PulseView:
    """What was seen: whether the driver has given a sign in time."""

    stream_id: str
    is_alive: bool

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return asdict(self)


def pulse(context: ControllerContext, stream_id: str, terms: PulseTerms) -> PulseView:
    """Look at the newest sign of the driver. Raises StreamNotFoundError."""
    beat = context.observer.observe(stream_id).heartbeat
    age_seconds = None if beat is None else (context.clock.now() - beat.at).total_seconds()
    return PulseView(stream_id, age_seconds is not None and age_seconds <= terms.within_seconds)
'''
CLIENT = '''    def pulse(self, stream_id: str, terms: PulseTerms) -> PulseView:
        """Whether the driver has given a sign in time. Raises StreamNotFoundError."""
        return pulse(self._context, stream_id, terms)

'''
SHELL = '''@click.command(cls=Verb)
@stream_argument
@term_options(PulseTerms)
@pass_session
def pulse(session: ShellSession, /, stream_id: str, **given: Any) -> None:
    """Say whether the driver of STREAM has given a sign in time."""
    from airflow_streamstate.cli.options import terms_given

    view = session.controller().pulse(stream_id, terms_given(PulseTerms, given)).to_json()
    session.emit(view, lambda console: console.print(str(view["is_alive"])))


'''
OPERATOR = '''"""``PulseOperator``: whether a driver gives signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.base import names_of, rendered_terms, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import PulseTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PulseOperator(StreamStateOperator):
    """Say whether the driver of a stream has given a sign in time.

    :param within_seconds: written by ``docs/refresh.py``.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(PulseTerms))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        within_seconds: Any = None,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        return hook.client.pulse(str(self.stream_id), rendered_terms(PulseTerms, self, self.taken)).to_json()
'''
ASKED = """
import inspect, json, sys
from click.testing import CliRunner
from airflow_streamstate.cli.main import cli, interrupted
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.operators.pulse import PulseOperator

home = sys.argv[1]
task = PulseOperator(task_id="t", stream_id="s", within_seconds="{{ 5 }}")
print(json.dumps({
    "listed": CliRunner().invoke(cli, ["--help"]).output,
    "help": CliRunner().invoke(cli, ["pulse", "--help"]).output,
    "answer": type(CliRunner().invoke(cli, ["--home", home, "pulse", "s", "--within", "5"]).exception).__name__,
    "refused": CliRunner().invoke(cli, ["pulse", "s", "--within", "0"]).output,
    "interrupted": interrupted("pulse", "s")["message"],
    "call": str(inspect.signature(Controller.pulse)),
    "parameter": str(inspect.signature(PulseOperator.__init__).parameters["within_seconds"]),
    "described": inspect.getdoc(PulseOperator),
    "kept": task.within_seconds,
}))
"""


def test_a_new_verb_with_its_operator_is_a_few_files(tmp_path: Path) -> None:
    """In a scratch copy: terms, act, client, shell, its entry in the table of verbs, operator, its line in the docs."""
    copy = ScratchCopy(tmp_path)
    copy.insert(f"{PACKAGE}/protocol/terms/order.py", TERMS, before="@dataclass(frozen=True)\nclass RetireTerms:")
    copy.create(f"{PACKAGE}/controller/observe/pulse.py", ACT)
    client, order = f"{PACKAGE}/controller/client.py", "airflow_streamstate.protocol.terms.order"
    copy.insert(client, CLIENT, before="    def kill(self, stream_id: str")
    copy.insert(client, f"from {order} import PulseTerms\n", before="\nLOG_TAIL_BYTES")
    view = "from airflow_streamstate.controller.observe.pulse import PulseView, pulse\n"
    copy.insert(client, view, before="\nLOG_TAIL_BYTES")
    look = f"{PACKAGE}/cli/look.py"
    status = "@click.command(cls=Verb)\n@stream_argument\n@term_options(DeploymentChoice)\n@pass_session\ndef status("
    copy.insert(look, SHELL, before=status)
    copy.insert(look, "PulseTerms, ", before="DeploymentChoice\n")
    entry = '"pulse": Entry("Whether the driver gives signs.", "look", "pulse", LOOKED),\n        '
    copy.insert(f"{PACKAGE}/cli/verbs.py", entry, before='"events": Entry(')
    copy.create(f"{PACKAGE}/operators/pulse.py", OPERATOR)
    page = "::: airflow_streamstate.operators.pulse.PulseOperator\n\n"
    copy.insert("docs/reference/operators.md", page, before="::: airflow_streamstate.operators.plan.Plan")
    assert len(copy.changed()) == 7 <= MOST_FILES
    copy.run("docs/refresh.py")
    found = json.loads(copy.run("-c", ASKED, str(tmp_path / "home")).splitlines()[-1])
    assert "pulse" in found["listed"]
    assert "--within SECONDS" in found["help"]
    assert found["answer"] == "HomeNotFoundError"
    assert "is not a number of seconds from 1 to" in found["refused"]
    assert found["interrupted"] == "interrupted; nothing was changed"
    assert "terms: 'PulseTerms') -> 'PulseView'" in found["call"]
    assert found["parameter"] == "within_seconds: 'float | str' = 60.0"
    assert ":param within_seconds: seconds since the last sign of the driver, at most." in found["described"]
    assert found["kept"] == "{{ 5 }}"
