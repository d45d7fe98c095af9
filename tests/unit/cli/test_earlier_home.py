"""A home of a checkout before the first release is refused by every verb, and left as it is. (Law 7)"""

from __future__ import annotations

import pytest
from unit.cli.test_declared import declare

from support.earlier_home import STREAM_THERE, WORDS, earlier_home
from support.shell import STREAM_VERBS, Desk, shell, words_of

NEW = "flights"


@pytest.mark.parametrize("verb", STREAM_VERBS)
def test_every_verb_of_a_stream_refuses_it(desk: Desk, verb: str) -> None:
    """Exit status 4 and one sentence, for a stream that is there and for a new one."""
    (desk.base / "job.py").write_text("runs\n")
    with earlier_home(desk.home):
        for stream_id in (STREAM_THERE, NEW):
            answer = shell(*words_of(verb, stream_id, desk))
            assert (answer.status, answer.error["type"]) == (4, "HomeFormatError"), answer
            assert answer.error["message"].startswith(WORDS)
            assert answer.error["context"]["protocol"] == 1


@pytest.mark.parametrize("words", [("list",), ("watch", "--once"), ("home sign",)])
def test_every_verb_of_a_home_refuses_it(desk: Desk, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is a key that signs."""
    monkeypatch.setenv("STREAMSTATE_SIGNING_KEY", "k" * 40)
    with earlier_home(desk.home):
        answer = shell(*words, "--json")
        assert (answer.status, WORDS in answer.out) == (4, True), answer


def test_the_doctor_says_so(desk: Desk) -> None:
    """As the check of the home."""
    with earlier_home(desk.home):
        answer = shell("home doctor", "--json")
        (check,) = [check for check in answer.json["checks"] if check["name"] == "home"]
        assert not check["ok"]
        assert WORDS in str(check)


def test_files_of_streams_are_not_applied_to_it(desk: Desk) -> None:
    """Neither compared."""
    with earlier_home(desk.home):
        folder = declare(desk, NEW)
        for verb in ("diff", "apply"):
            answer = shell(verb, folder, "--json")
            assert (answer.status, WORDS in answer.out) == (4, True), answer
