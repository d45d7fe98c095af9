"""The kill-point sweep: after a crash of any actor at any call all continue from the stores alone, and the laws hold.

A life is lived once to count its calls; then once for each call and each way in which it can go wrong. Two queries run
in it, and what a script does with the two makes five lives. ``STREAMSTATE_SIM=full`` leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.faulty_store import KILL_POINTS, Fault
from support.sim_laws import assert_laws
from support.sim_life import Life, Recovery, Step, Style, make_world
from support.sim_strikes import deaths_of_drivers, failures_of_batches, reads_of, writes_of
from support.sim_world import Strike, World

RECOVERIES: tuple[Recovery, ...] = ("resume", "takeover", "redeploy")
OTHER_STYLES: tuple[Style, ...] = ("tolerant", "ending", "late", "absent")
Sweep = Callable[..., None]
Case = tuple[Strike, Recovery]


@pytest.fixture(scope="module")
def calm(folder: Path) -> World:
    """A life to which nothing happens."""
    return lived(folder)


def lived(folder: Path, *strikes: Strike, recovery: Recovery = "resume", style: Style = "together") -> World:
    """A life, and the laws at its end."""
    world = make_world(folder, style)
    world.strikes = strikes
    leaves = ("rows",) if style == "absent" else ()
    Life(world, recovery, goes_on_unhealthy=style == "tolerant", leaves=leaves).live()
    assert_laws(world)
    return world


@pytest.fixture(scope="module")
def struck(struck_so: Callable[[int, Case], World]) -> Callable[[int, Strike], World]:
    """A life with one strike; the ways to recover take turns."""
    return lambda number, strike: struck_so(number, (strike, RECOVERIES[number % 3]))


@pytest.fixture(scope="module")
def struck_so(folder: Path) -> Callable[[int, Case], World]:
    """A life with one strike, which it comes to, and one way to recover."""

    def live(_: int, case: Case) -> World:
        strike, recovery = case
        world = lived(folder, strike, recovery=recovery)
        assert world.has_come_to(strike), "nothing was struck"
        return world

    return live


def test_a_life_to_which_nothing_happens_loses_nothing(calm: World) -> None:
    """Deploy, snapshot, stop, redeploy, drain, redeploy: rows in are rows out, and no law is broken."""
    assert [len(plan.sink.batches) > 8 for plan in calm.plans.values()] == [True, True]
    assert [len(calm.calls[actor]) > 100 for actor in ("controller", "driver")] == [True, True]


def test_the_same_life_is_lived_twice_in_the_same_way(folder: Path, calm: World) -> None:
    """A simulation is deterministic, so that what it finds can be found again."""
    again = lived(folder)
    assert again.launches != calm.launches  # several live at once in one folder, and remove what they launched
    assert again.calls == calm.calls
    assert again.phases == calm.phases


@pytest.mark.timeout(900)
def test_the_controller_may_die_at_every_write_and_launch(
    calm: World, sweep: Sweep, struck: Callable[[int, Strike], World]
) -> None:
    """A controller killed before or after any write or launch, or whose reply is lost: the same request ids continue
    where it was, and nothing is done twice (Laws 1, 2, 3, 5, 8, 14; 1a.8, 1a.9)."""
    sweep(writes_of(calm, "controller", *KILL_POINTS), struck)


@pytest.mark.timeout(900)
def test_the_driver_may_die_in_every_durable_state(
    calm: World, sweep: Sweep, struck_so: Callable[[int, Case], World]
) -> None:
    """A driver killed around any of its writes, and before any claim, state, sink or commit of any batch of either
    query: resume, takeover, redeploy or the drain's next attempt continue from the log, the planned batch runs again
    over the same bounds, and each row is counted once (Laws 3, 9, 11, 12, 13, 14; 1a.5, 1a.6, 1a.7, 1a.10)."""
    sweep(product(deaths_of_drivers(calm), RECOVERIES), struck_so)


@pytest.mark.timeout(900)
def test_every_reply_to_a_write_of_the_driver_may_be_lost(
    calm: World, sweep: Sweep, struck: Callable[[int, Strike], World]
) -> None:
    """A write that landed, and whose reply was lost, is read back and not done twice (Law 8)."""
    sweep(writes_of(calm, "driver", Fault.REPLY_LOST), struck)


@pytest.mark.timeout(900)
def test_every_batch_may_fail(calm: World, sweep: Sweep, struck_so: Callable[[int, Case], World]) -> None:
    """A query that dies in any batch, under a barrier or not, in a flush or not: the failure comes out, nothing of ours
    stays above the batch, and it runs again (Laws 12 and 13; 1a.7)."""
    sweep(product(failures_of_batches(calm), RECOVERIES), struck_so)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("actor", ["controller", "driver"])
def test_every_read_may_go_unanswered(
    calm: World, sweep: Sweep, struck: Callable[[int, Strike], World], actor: str
) -> None:
    """A read that the store does not answer changes nothing: the same request continues (Law 2), never ends the job,
    and loses no row (Law 7)."""
    sweep(reads_of(calm, actor), struck, every=7)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("style", OTHER_STYLES)
def test_one_query_may_be_over_long_before_the_other(folder: Path, sweep: Sweep, style: Style) -> None:
    """One of two queries failed, ended by itself, started late, or is not started by a version at all: after a crash
    between the barriers, flushes, snapshots and ends of the two, each row of both is counted once (Laws 5, 9, 11, 12,
    13, 14; 1a.11, 1a.12)."""
    calm = lived(folder, style=style)

    def live(number: int, case: tuple[Strike, Strike | None]) -> None:
        strikes = [strike for strike in case if strike is not None]
        lived(folder, *strikes, recovery=RECOVERIES[number % 3], style=style)

    # Where one query continues without the other, one has failed before: in its third batch, or in its first.
    before: list[Strike | None] = [Strike("batch", 3), Strike("batch", 27)] if style == "tolerant" else [None]
    alone = [*deaths_of_drivers(calm), *failures_of_batches(calm), *writes_of(calm, "driver", Fault.REPLY_LOST)]
    sweep(product(alone, before), live, every=13 if len(before) > 1 else 11)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["stop", "drain"])
def test_an_order_may_come_at_any_moment_of_a_start(folder: Path, sweep: Sweep, verb: Literal["stop", "drain"]) -> None:
    """While a driver comes to life, while a query has not read its log, in its first batch or between two: no barrier
    is put too early, no batch is passed over or cut, and each row is counted once (Law 12; 1a.2, 1a.3, 1a.4)."""

    def live(_: int, hurry_seconds: float) -> None:
        world = make_world(folder, "slow")
        steps = [step for script in ("v1.py", "v2.py") for step in (Step("deploy", script, hurry_seconds), Step(verb))]
        Life(world, steps=(*steps, Step("deploy", "v3.py"), Step("drain"))).live()
        assert_laws(world)

    sweep([tenth / 10 for tenth in range(45)], live)


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    strikes=st.lists(
        st.one_of(
            st.builds(Strike, st.just("controller"), st.integers(1, 500), st.sampled_from(KILL_POINTS)),
            st.builds(Strike, st.just("driver"), st.integers(1, 1_400), st.sampled_from(KILL_POINTS)),
            st.builds(Strike, st.sampled_from(["spark", "batch"]), st.integers(1, 150)),
        ),
        min_size=2,
        max_size=5,
    ),
    recovery=st.sampled_from(RECOVERIES),
    style=st.sampled_from(("together", *OTHER_STYLES)),
)
def test_several_may_die_in_one_life(folder: Path, strikes: list[Strike], recovery: Recovery, style: Style) -> None:
    """Two to five deaths anywhere in one life, the next while recovering from the last: no law is broken (Law 1)."""
    lived(folder, *strikes, recovery=recovery, style=style)
