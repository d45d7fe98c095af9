"""What ctrl-c leaves behind, in words."""

from __future__ import annotations

import pytest

from airflow_streamstate.cli.main import interrupted
from support.shell import VERBS, Desk, command_of, shell

ORDERS = {"deploy", "resume", "skip", "stop", "drain", "snapshot create", "kill", "cancel"}


@pytest.mark.parametrize("verb", VERBS)
def test_only_a_verb_that_orders_says_that_its_order_goes_on(verb: str) -> None:
    """A look leaves nothing behind, and a rehearsal is ended; what goes on is named with its stream."""
    told = interrupted(verb, "flights")
    assert ("an order that was recorded goes on" in str(told["message"])) == (verb in ORDERS)
    assert "STREAM" not in str(told["next_step"])


def test_the_stream_is_called_by_its_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and a next step that can be typed as it stands."""

    def interrupt(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    for verb, words in (("stop", ()), ("plan", ("--app", "v2.py"))):
        command = command_of(verb)
        with monkeypatch.context() as patched:
            patched.setattr(command, "callback", interrupt)
            answer = shell("--json", verb, "flights", *words)
        assert answer.status == 1
        assert answer.error == interrupted(verb, "flights")
    assert "`streamstate status flights`" in str(interrupted("stop", "flights")["next_step"])


def test_before_the_stream_is_known_the_word_stands_for_it() -> None:
    """Nothing else can be said that early."""
    assert "status STREAM" in str(interrupted("", "")["next_step"])
