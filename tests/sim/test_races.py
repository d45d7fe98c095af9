"""Two controllers at once: one is paused at each of its calls while the other acts, in any interleaving.

``PAIRS`` names the two actors. Their answers depend on the order; the laws hold in any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.errors import ConflictError, StreamStateError
from support.faulty_store import Call
from support.sim_race import (
    SCENES,
    Act,
    Race,
    deploys,
    forces,
    kills,
    orders,
    patiently,
    race,
    resumes,
    takes_back,
    watches,
)
from support.sim_turns import TO_THE_END

Sweep = Callable[..., None]
AGED_SECONDS = 70.0
"""Longer than an intent in the register holds others off."""
PAUSES = (0.0, AGED_SECONDS)


@dataclass(frozen=True)
class Pair:
    """The two actors, and where they meet."""

    scene: str
    first: Act
    second: Act


def two(verb: str, other: str) -> tuple[Act, Act]:
    """Two orders."""
    return orders(verb, "first"), orders(other, "second")


NEXT, OTHER = deploys("v2.py", "first"), deploys("v3.py", "second")
NEXT_AS_SECOND = deploys("v2.py", "second")
PAIRS = {
    "a deploy while a stop is in progress": Pair("running", orders("stop", "first"), patiently(NEXT_AS_SECOND)),
    "a stop while a deploy waits": Pair("running", patiently(NEXT), orders("stop", "second")),
    "a deploy while a drain is in progress": Pair("running", orders("drain", "first"), patiently(NEXT_AS_SECOND)),
    "a drain while a deploy waits": Pair("running", patiently(NEXT), orders("drain", "second")),
    "a resume while a stop is in progress": Pair("running", orders("stop", "first"), patiently(resumes("second"))),
    "a drain and a stop": Pair("running", *two("drain", "stop")),
    "a stop and a drain": Pair("running", *two("stop", "drain")),
    "two drains": Pair("running", *two("drain", "drain")),
    "a drain and its being withdrawn": Pair("running", orders("drain", "first"), orders("cancel", "second")),
    "a drain that is withdrawn and a stop": Pair("running", takes_back("first"), orders("stop", "second")),
    "a drain that is withdrawn and a kill": Pair("running", takes_back("first"), kills()),
    "a drain that is withdrawn and a deploy": Pair("running", takes_back("first"), patiently(NEXT_AS_SECOND)),
    "a drain of the dead that is withdrawn and a resume": Pair("dead", takes_back("first"), resumes("second")),
    "a drain of the dead that is withdrawn and a takeover": Pair("dead", takes_back("first"), NEXT_AS_SECOND),
    "a snapshot and a stop": Pair("running", *two("snapshot", "stop")),
    "a snapshot and a drain": Pair("running", *two("snapshot", "drain")),
    "a kill and a deploy": Pair("running", kills(), patiently(NEXT_AS_SECOND)),
    "a drain and a kill": Pair("running", orders("drain", "first"), kills()),
    "a forced stop and a deploy": Pair("running", forces("first"), patiently(NEXT_AS_SECOND)),
    "a deploy that waits and a forced stop": Pair("running", patiently(NEXT), forces("second")),
    "a forced stop and a resume": Pair("running", forces("first"), patiently(resumes("second"))),
    "a forced stop and a drain": Pair("running", forces("first"), orders("drain", "second")),
    "a drain and a forced stop": Pair("running", orders("drain", "first"), forces("second")),
    "two forced stops": Pair("running", forces("first"), forces("second")),
    "a forced stop of the dead and a takeover": Pair("dead", forces("first"), NEXT_AS_SECOND),
    "a takeover and a forced stop of the dead": Pair("dead", NEXT, forces("second")),
    "a forced stop of the dead and a resume": Pair("dead", forces("first"), patiently(resumes("second"))),
    "a resume and a forced stop of the dead": Pair("dead", resumes("first"), forces("second")),
    "two takeovers": Pair("dead", NEXT, OTHER),
    "a takeover and a resume": Pair("dead", NEXT, patiently(resumes("second"))),
    "a resume and a takeover": Pair("dead", resumes("first"), NEXT_AS_SECOND),
    "two resumes": Pair("dead", resumes("first"), resumes("second")),
    "a takeover and a drain of the dead": Pair("dead", NEXT, orders("drain", "second")),
    "a drain of the dead and a takeover": Pair("dead", orders("drain", "first"), NEXT_AS_SECOND),
    "a drain of the dead and a resume": Pair("dead", orders("drain", "first"), resumes("second")),
    "a resume and a drain of the dead": Pair("dead", resumes("first"), orders("drain", "second")),
    "a takeover of a second attempt and a resume": Pair("resumed and dead", NEXT, patiently(resumes("second"))),
    "two watchers": Pair("dead", watches(), watches()),
    "a watcher and a resume": Pair("dead", watches(), patiently(resumes("second"))),
    "a resume and a watcher": Pair("dead", resumes("first"), watches()),
    "a watcher and a takeover": Pair("dead", watches(), patiently(NEXT_AS_SECOND)),
    "a takeover and a watcher": Pair("dead", NEXT, watches()),
    "a watcher and a drain of the dead": Pair("dead", watches(), orders("drain", "second")),
    "a drain of the dead and a watcher": Pair("dead", orders("drain", "first"), watches()),
    "a watcher and a kill": Pair("running", kills(), watches()),
    "a forced stop and a watcher": Pair("running", forces("first"), watches()),
    "two deploys": Pair("stopped", NEXT, OTHER),
    "a deploy and a resume": Pair("stopped", NEXT, resumes("second")),
    "a resume and a deploy": Pair("stopped", resumes("first"), NEXT_AS_SECOND),
    "a deploy and a drain of the stopped": Pair("stopped", NEXT, orders("drain", "second")),
    "a drain of the stopped and a deploy": Pair("stopped", orders("drain", "first"), NEXT_AS_SECOND),
}


def met(folder: Path, pair: Pair, *turns: tuple[int, float], fences_may_stray: bool = False) -> Race:
    """Two meet, and each is done or learns why not."""
    found = race(folder, SCENES[pair.scene], pair.first, pair.second, turns, fences_may_stray=fences_may_stray)
    for answer in found.answers.values():
        assert not isinstance(answer, StreamStateError) or isinstance(answer, ConflictError), found.answers
    return found


def each_pause(folder: Path, sweep: Sweep, pair: Pair, live: Callable[[Race], None] = lambda _: None) -> None:
    """The first is paused at each of its calls until the other is done, and the other comes at once, or when an intent
    has become old. Before a write all that was read is out of date by then: none of these is left out."""
    calm = race(folder, SCENES[pair.scene], pair.first, pair.second, [])
    cases = [(call, seconds) for call in calm.calls["first"] for seconds in PAUSES]
    at_writes = [(call, seconds) for call, seconds in cases if call.writes and seconds == AGED_SECONDS]

    def act(_: int, case: tuple[Call, float]) -> None:
        live(met(folder, pair, (case[0].number - 1, 0.0), (TO_THE_END, case[1])))

    if at_writes:  # none where it waits, undisturbed, for ever
        sweep(at_writes, act)
    sweep([case for case in cases if case not in at_writes], act, every=13)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PAIRS)
def test_wherever_two_meet_the_laws_hold(folder: Path, sweep: Sweep, name: str) -> None:
    """One is paused at each of its calls until the other is done, at once or a minute later: each is done or learns
    why not, every order has one end, no two drivers run on one log, and each row is counted once (Laws 1, 2, 4, 8, 14;
    1a.8)."""
    each_pause(folder, sweep, PAIRS[name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", ["stopped", "dead"])
def test_of_two_deploys_at_once_one_wins(folder: Path, sweep: Sweep, scene: str) -> None:
    """Wherever two deploys meet, one becomes the next deployment and the other learns which (Laws 1 and 4)."""
    pair = Pair(scene, NEXT, OTHER)

    def live(found: Race) -> None:
        assert len(found.deployed) == 1, found.answers
        current = found.world.control.need_register().value.deployment_id
        assert found.deployed[0].deployment_id == current

    each_pause(folder, sweep, pair, live)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", ["stopped", "dead"])
def test_one_request_twice_at_once_is_one_deployment(folder: Path, sweep: Sweep, scene: str) -> None:
    """Two tries of one request at the same time come to the same deployment, with one driver (Law 2)."""
    pair = Pair(scene, deploys("v2.py", "same"), deploys("v2.py", "same"))

    def live(found: Race) -> None:
        made = {(view.deployment_id, view.attempt) for view in found.deployed}
        assert made == {("d-0002", 1)}, found.answers
        assert [key for key in found.world.machine if key.startswith("d-0002")] == ["d-0002-a0001"]

    each_pause(folder, sweep, pair, live)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["stop", "drain", "snapshot"])
def test_one_order_twice_at_once_is_one_command(folder: Path, sweep: Sweep, verb: str) -> None:
    """Two tries of one order at the same time are one command (Law 2)."""
    pair = Pair("running", orders(verb, "same"), orders(verb, "same"))

    def live(found: Race) -> None:
        views = [answer for answer in found.answers.values() if isinstance(answer, CommandView)]
        assert len(views) == 2, found.answers
        assert len({view.command_id for view in views}) == 1

    each_pause(folder, sweep, pair, live)


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(PAIRS)),
    turns=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from((0.0, 0.0, 0.4, 3.0, 20.0, AGED_SECONDS))), min_size=2, max_size=7
    ),
)
def test_two_may_take_turns_in_any_way(folder: Path, name: str, turns: list[tuple[int, float]]) -> None:
    """Any interleaving of the calls of two controllers, with pauses in which the driver continues and an intent gets
    old: the laws hold (Laws 1, 2, 4, 14; 1a.8)."""
    met(folder, PAIRS[name], *turns, fences_may_stray=True)
