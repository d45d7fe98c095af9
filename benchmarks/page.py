"""The page of 1,000 streams compared with that of ten, in Chromium: first paint, also of a server that has read none of
them yet, and how long a filter takes, by a key and by a label.

The page's app is served on loopback behind Airflow's simple auth manager, over a home on disk. Needs Chromium and
Playwright, so it runs by name alone.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.policies import Ownership
from airflow_streamstate.store.local import LocalStore
from benchmarks.recorded import record, stream_name
from benchmarks.results import BenchmarkError, Goal, Result, Side
from benchmarks.session import Session
from support.loopback import free_port

NAME = "page"
STREAMS, FEW_STREAMS = 1_000, 10
ROUNDS, QUICK_ROUNDS = 15, 3
PAINT_SECONDS, FILTER_SECONDS = 1.0, 0.1
_PAINTED = """() => new Promise((done) => {
    const isThere = () => document.querySelector('tbody tr a') !== null;
    const look = () => isThere() ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 1);
    look();
})"""
_FILTERED = """(words) => new Promise((done) => {
    const text = document.querySelector('#text');
    const began = performance.now();
    text.value = words;
    text.dispatchEvent(new Event('input'));
    document.querySelector('tbody').getBoundingClientRect();
    requestAnimationFrame(() => done(performance.now() - began));
})"""


_CHOSEN = """(number) => new Promise((done) => {
    document.querySelector('[aria-controls="choice-label"]').click();
    const boxes = [...document.querySelectorAll('#choice-label input[type="checkbox"]')];
    const began = performance.now();
    const box = boxes[number % boxes.length];
    box.click();
    document.querySelector('tbody').getBoundingClientRect();
    requestAnimationFrame(() => { done(performance.now() - began); box.click(); });
})"""
TEAMS, TIERS, REGIONS = 40, 3, 5


def run(session: Session) -> list[Result]:
    """Both homes, each by its own server and window; raises ``BenchmarkError`` where there is no browser."""
    if find_spec("playwright") is None or shutil.which("chromium") is None:
        raise BenchmarkError(
            "The page is measured in Chromium. Install Playwright (`tox -e bench` has it) and chromium."
        )
    rounds = QUICK_ROUNDS if session.quick else ROUNDS
    many, few = (_measured(session.folder / f"{NAME}-{count}", count, rounds) for count in (STREAMS, FEW_STREAMS))
    session.say(f"  the first look at {STREAMS:,} streams took {many['look'][0]:.1f} s")
    return [
        _result(
            "first paint of a new server", many["new"], few["new"], PAINT_SECONDS, "the names, while they are read"
        ),
        _result("first paint", many["paint"], few["paint"], PAINT_SECONDS, f"first look {many['look'][0]:.2f} s"),
        _result("filter", many["filter"], few["filter"], FILTER_SECONDS, "from the key to the frame"),
        _result("filter by a label", many["choice"], few["choice"], FILTER_SECONDS, "of three that each stream has"),
    ]


def _result(what: str, many: list[float], few: list[float], most_seconds: float, note: str) -> Result:
    of, against = statistics.median(many), statistics.median(few)
    return Result(
        name=f"{NAME}: {what}",
        of=Side(f"{STREAMS:,} streams", of, "s"),
        against=Side(f"{FEW_STREAMS} streams", against, "s"),
        ratio=of / against,
        ratio_means="times as long",
        goal=Goal(f"{what} of {STREAMS:,} streams within {most_seconds:g} s", of, "<=", most_seconds, "s"),
        rounds=tuple({"many": one, "few": other} for one, other in zip(many, few, strict=True)),
        notes=(note,),
    )


def _measured(folder: Path, streams: int, rounds: int) -> dict[str, list[float]]:
    # Here, since Airflow's home is made at the import, and no other benchmark needs one.
    import pytest

    from support import airflow_home
    from support.airflow_streams import named_home

    airflow_home.database()
    driver = subprocess.Popen(["sleep", "86400"], start_new_session=True)
    try:
        home = folder / "home"
        home.mkdir(parents=True)
        for number in range(streams):
            record(LocalStore(home), home, stream_name(number), driver.pid, _ownership(number))
        with pytest.MonkeyPatch.context() as patch, named_home(folder, patch), _served(patch) as (url, token):
            return _in_browser(url, token, rounds)
    finally:
        driver.kill()
        driver.wait()


def _ownership(number: int) -> Ownership:
    team = f"team-{number % TEAMS:02d}"
    labels = {"team": team, "tier": f"{number % TIERS + 1}", "region": f"region-{number % REGIONS}"}
    return Ownership(team, labels)


def _in_browser(url: str, token: str, rounds: int) -> dict[str, list[float]]:
    from support.browser import chromium, opened

    found: dict[str, list[float]] = {"look": [], "new": [], "paint": [], "filter": [], "choice": []}
    with chromium() as browser, opened(browser, url, token) as page:
        page.goto(f"{url}static/page.css")  # the browser itself is warm
        began = SYSTEM_CLOCK.monotonic_seconds()
        page.goto(url, wait_until="commit")
        found["new"].append(page.evaluate(_PAINTED) / 1_000)
        while any(home["looked_at"] is None for home in _streams(page, url)):
            SYSTEM_CLOCK.sleep(0.02)
        found["look"].append(SYSTEM_CLOCK.monotonic_seconds() - began)
        for number in range(rounds):
            page.goto(url, wait_until="commit")
            found["paint"].append(page.evaluate(_PAINTED) / 1_000)
            found["filter"].append(page.evaluate(_FILTERED, f"{number % 10}") / 1_000)
            found["choice"].append(page.evaluate(_CHOSEN, number) / 1_000)
    return found


def _streams(page: Any, url: str) -> list[dict[str, Any]]:
    homes: list[dict[str, Any]] = page.request.get(f"{url}api/streams").json()["homes"]
    return homes


@contextmanager
def _served(patch: Any) -> Iterator[tuple[str, str]]:
    import uvicorn

    from airflow_streamstate.page.plugin import URL_PREFIX
    from support.page_site import page_site

    site, port = page_site(patch), free_port()
    server = uvicorn.Server(uvicorn.Config(site.client.app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        SYSTEM_CLOCK.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}{URL_PREFIX}/", site.tokens["op"]
    finally:
        server.should_exit = True
        thread.join(20)
