"""The app of the page: what it shows, to whom, and what it reports where there is nothing to show."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.hooks.configuration import page_conn_ids
from airflow_streamstate.page.app import ACTS, HEADERS, static_files
from airflow_streamstate.page.content import PARTS, row_of
from airflow_streamstate.page.homes import LOOK_SECONDS, HomeOnPage, SharedParts
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.positions import SourceLag
from airflow_streamstate.protocol.records import DeploymentSpec
from support.airflow_streams import NamedHome
from support.earlier_home import STREAM_THERE, WORDS, earlier_home
from support.fake_clock import FakeClock
from support.page_site import CONN_ID, PageSite
from support.recorded_specs import with_version
from support.scripted_stream import QUERY

ROUTES = [
    "",
    "task",
    f"streams/{CONN_ID}/flights",
    "static/window.js",
    "api/me",
    "api/streams",
    *(f"api/{name}" for name in PARTS),
]
WHOLE_LOOK_SECONDS = 30.0
"""Longer than any look of these tests takes."""
HOSTILE = ["../../etc", "<script>alert(1)</script>", "-", "Flights", "a" * 64, "", "%00", "a/b", "a\nb"]


def rows(site: PageSite) -> list[dict[str, object]]:
    """The streams, once each has been read."""
    (home,) = site.get("api/streams").json()["homes"]
    while home["looked_at"] is None:
        (home,) = site.get("api/streams").json()["homes"]
    assert home["error"] is None, home
    found: list[dict[str, object]] = home["streams"]
    return found


@pytest.mark.parametrize("path", ROUTES)
def test_no_route_answers_without_a_user_or_without_a_role(site: PageSite, path: str) -> None:
    """Files of the page among them; the refusal reports what to do."""
    for user, status, word in ((None, 401, "Sign in"), ("nobody", 403, "administrator")):
        answer = site.get(path, user, conn_id=CONN_ID, stream_id="flights")
        assert answer.status_code == status
        assert word in answer.json()["error"]["next_step"]


def test_a_forged_token_is_refused(site: PageSite) -> None:
    """As Airflow itself refuses it."""
    answer = site.client.get(
        "/streamstate/api/streams", headers={"Authorization": f"Bearer {site.tokens['viewer'][:-9]}forgedabc"}
    )
    assert answer.status_code in (401, 403)


def test_every_route_only_reads(site: PageSite) -> None:
    """So no other site can make a signed-in browser act by it: what acts is Airflow's own API."""
    for path in ROUTES:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = site.client.request(
                method, f"/streamstate/{path}", headers={"Authorization": f"Bearer {site.tokens['user']}"}
            )
            assert answer.status_code in (404, 405), (method, path)
            if answer.status_code == 405:
                assert answer.json()["error"]["message"] == "this address can only be read"


def test_a_browser_is_told_to_run_no_script_but_the_pages_own(site: PageSite) -> None:
    """On pages, on data and on refusals."""
    for path, user in (("", "viewer"), ("api/streams", "viewer"), ("api/streams", None)):
        told = site.get(path, user).headers
        assert {name: told.get(name) for name in HEADERS} == HEADERS


def test_viewers_see_and_may_not_act_and_users_may(site: PageSite) -> None:
    """Which acts are allowed is what Airflow's auth manager reports of the right to run their DAGs."""
    for user, is_allowed in (("viewer", False), ("user", True)):
        found = site.get("api/me", user).json()
        assert found["user"] == user
        assert {act: (told["dag_id"], told["is_allowed"]) for act, told in found["acts"].items()} == {
            act: (dag_id, is_allowed) for act, dag_id in ACTS.items()
        }


def test_the_table_has_the_facts_of_each_stream(site: PageSite, named: NamedHome) -> None:
    """State, version, lag, watermark, restarts, last snapshot and event, as ``streamstate status`` has them."""
    attempt = named.stream("flights").deploy().runs()
    attempt.beat(
        lags=(SourceLag("file /in", 40, "files"), SourceLag("kafka t", 2, "rows")),
        lags_at=attempt.clock.now(),
        batch_seconds=1.5,
        watermark_at=attempt.clock.now() - timedelta(seconds=90),
    )
    named.hook().client.details.change_ownership("flights", "ada", {"tier": "1"})
    stopped = named.stream("orders").deploy().runs()
    stopped.stopped()
    failed = named.stream("taxis")
    failed.deploy().runs().failed("ValueError: boom")
    failed.resume().runs().failed("ValueError: boom")
    flights, orders, taxis = rows(site)
    assert (flights["stream_id"], flights["state"], flights["version"], flights["restarts"]) == (
        "flights",
        "running",
        "job.py",
        0,
    )
    assert flights["lags"] == {"files": 40, "rows": 2}
    assert 89 < float(str(flights["watermark_delay_seconds"])) < 300
    assert (flights["owner"], flights["labels"]) == ("ada", {"tier": "1"})
    assert flights["batch_times"] == [flights["batch_seconds"]] == [1.5]
    assert (orders["state"], orders["snapshot_id"], orders["last_event"]["kind"]) == (
        "stopped",
        "d-0001-stopped-000001",
        "Stopped",
    )  # type: ignore[index]
    assert (taxis["state"], taxis["restarts"], "boom" in str(taxis["why"])) == ("failed", 1, True)


def test_batch_times_are_kept_from_look_to_look(named: NamedHome) -> None:
    """One for each batch that was seen, for the line in the table."""
    attempt = named.stream().deploy().runs()
    client, times = named.hook().client, deque(maxlen=3)  # type: ignore[var-annotated]
    for batch_id, seconds in enumerate([1.0, 2.0, 2.0, 3.0, 4.0]):
        attempt.batch_id = batch_id
        attempt.beat(batch_seconds=seconds)
        for _ in range(2):
            row = row_of(client.status("flights"), times, attempt.clock.now())
    assert row["batch_times"] == [2.0, 3.0, 4.0]


def test_each_row_has_its_age(named: NamedHome) -> None:
    """A browser that comes back greys what is old."""
    named.stream("flights").deploy()
    clock = FakeClock()
    home = HomeOnPage(CONN_ID, clock, WHOLE_LOOK_SECONDS)
    assert [row["read_age_seconds"] for row in home.seen().rows] == [0.0]
    clock.advance(LOOK_SECONDS - 1)
    assert [row["read_age_seconds"] for row in home.seen().rows] == [LOOK_SECONDS - 1]
    clock.advance(540)
    assert [row["read_age_seconds"] for row in home.seen().rows] == [0.0]  # a request waits for a new look


def test_a_stream_that_cannot_be_read_hides_no_other(site: PageSite, named: NamedHome) -> None:
    """It has its own row."""
    named.stream("flights").deploy().runs()
    named.stream("orders").deploy().runs()
    (named.base / "home" / layout.register_key("orders")).write_text("{")
    assert [(row["stream_id"], row["state"]) for row in rows(site)] == [
        ("flights", "running"),
        ("orders", "unreadable"),
    ]


def test_a_home_that_is_not_there_is_told_and_found_when_it_comes(
    site: PageSite, monkeypatch: pytest.MonkeyPatch, named: NamedHome
) -> None:
    """With what to do; a connection that is fixed in the meantime is read again."""
    good = named.connection
    clock = FakeClock()
    home = HomeOnPage(CONN_ID, clock, WHOLE_LOOK_SECONDS)
    for connection, word in (
        ('{"conn_type": "streamstate"}', "names no home"),
        (good.replace(named.config.home_uri, f"{named.base}/elsewhere"), "there is no home here"),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection)
        clock.advance(60)
        seen = home.seen()
        assert seen.error is not None
        assert word in str(seen.error)
        assert seen.error.next_step
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", good)
    named.stream().deploy()
    clock.advance(60)
    seen = home.seen()
    assert (seen.error, [row["stream_id"] for row in seen.rows]) == (None, ["flights"])


def test_the_names_are_shown_before_the_streams_are_read(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a home of many streams is there at once; each row follows when its stream is read."""
    named.stream("flights").deploy()
    named.stream("orders").deploy()
    (named.base / "home" / "never" / "deployments").mkdir(parents=True)
    asked, may_answer = threading.Event(), threading.Event()

    def late(self: Controller, *args: object, of: object = Controller.observed) -> object:
        asked.set()
        assert may_answer.wait(WHOLE_LOOK_SECONDS)
        return of(self, *args)  # type: ignore[operator]

    monkeypatch.setattr(Controller, "observed", late)
    home = HomeOnPage(CONN_ID, FakeClock(), wait_seconds=0)
    home.seen()
    assert asked.wait(WHOLE_LOOK_SECONDS)
    seen = home.seen()
    names = [row["stream_id"] for row in seen.rows]
    assert ({"flights", "orders"} <= set(names), {row["state"] for row in seen.rows}) == (True, {""})
    assert (seen.is_looking, seen.looked_at) == (True, None)
    may_answer.set()
    while home.seen().looked_at is None:
        SYSTEM_CLOCK.sleep(0.01)
    assert [(row["stream_id"], bool(row["state"])) for row in home.seen().rows] == [("flights", True), ("orders", True)]


def test_many_requests_share_one_look(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """For some seconds; then there is another one, and a stream that is gone since goes from the table."""
    named.stream("flights").deploy()
    named.stream("orders").deploy()
    asked: list[Path] = []
    monkeypatch.setattr(Home, "stream_ids", lambda self, of=Home.stream_ids: (asked.append(Path()), of(self))[1])
    clock = FakeClock()
    home = HomeOnPage(CONN_ID, clock, WHOLE_LOOK_SECONDS)
    assert [len(home.seen().rows) for _ in range(20)] == [2] * 20
    assert len(asked) == 1
    for path in sorted((named.base / "home" / "orders").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    clock.advance(60)
    assert [row["stream_id"] for row in home.seen().rows] == ["flights"]
    assert len(asked) == 2


def test_many_requests_share_one_reading_of_a_part() -> None:
    """For its seconds; an error is not kept."""
    clock = FakeClock()
    shared, values = SharedParts(clock), iter(range(10))
    assert [shared.get(("a",), lambda: next(values), 3.0) for _ in range(5)] == [0] * 5
    clock.advance(3.0)
    assert shared.get(("a",), lambda: next(values), 3.0) == 1
    with pytest.raises(ZeroDivisionError):
        shared.get(("b",), lambda: 1 // 0, 3.0)
    assert shared.get(("b",), lambda: 7, 3.0) == 7


def test_a_part_of_a_home_that_does_not_answer_is_being_read() -> None:
    """Few requests wait, and the others are refused at once: the home must not hold the threads of the api-server."""
    may_answer = threading.Event()
    shared = SharedParts(FakeClock(), wait_seconds=0)
    try:
        for number in range(50):
            with pytest.raises(UnavailableError, match="is being read"):
                shared.get((str(number),), lambda: may_answer.wait(WHOLE_LOOK_SECONDS), 3.0)
        assert SharedParts(FakeClock()).get(("0",), lambda: 7, 3.0) == 7  # another home
    finally:
        may_answer.set()
    while True:
        with suppress(UnavailableError):
            assert shared.get(("0",), lambda: 1 // 0, 3.0) is True
            break
        SYSTEM_CLOCK.sleep(0.01)


def test_only_the_connections_of_the_configuration_are_shown(site: PageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is not even asked for; by default there is ``streamstate_default``."""
    answer = site.get("api/stream", conn_id="aws_default", stream_id="flights")
    assert answer.status_code == 404
    assert "page_conn_ids" in answer.json()["error"]["next_step"]
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_CONN_IDS", " one, two ,one,, ")
    assert page_conn_ids() == ("one", "two")


@pytest.mark.parametrize("part", PARTS)
def test_a_malformed_id_is_refused_in_one_sentence(site: PageSite, part: str) -> None:
    """Whatever it is; nothing of it is an element or a path."""
    for stream_id in HOSTILE:
        answer = site.get(f"api/{part}", conn_id=CONN_ID, stream_id=stream_id)
        assert answer.status_code == 400, stream_id
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["message"] == "this is not a valid stream id"


@pytest.mark.parametrize("part", PARTS)
def test_a_stream_that_is_not_there_is_named_as_such(site: PageSite, named: NamedHome, part: str) -> None:
    """Never deployed, with an id of 63 characters, or gone since."""
    named.stream().deploy()
    answer = site.get(f"api/{part}", conn_id=CONN_ID, stream_id="a" * 63)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "StreamNotFoundError")


def test_pages_of_odd_addresses_hold_nothing_of_the_address(site: PageSite) -> None:
    """The one file is served, with a status; its addresses are relative, at any depth."""
    for path, status in (
        ("streams/x/flights", 200),
        ("streams/x/%3Cscript%3E", 400),
        ("streams/x/..%2f..%2fetc", 400),
        ("nothing", 404),
    ):
        answer = site.get(path)
        assert answer.status_code == status, path
        assert "<script>" not in answer.text
    assert '"./static/window.js"' in site.get("").text
    assert '"../../static/window.js"' in site.get("streams/x/flights").text
    assert '"../../static/window.js"' in site.get("streams/x/..%2f..%2fetc").text  # one part of the path, for a browser


def test_only_the_pages_own_files_are_served(site: PageSite) -> None:
    """By name, out of the package; each with its type."""
    for name in static_files():
        is_served = not name.endswith(".html")
        assert site.get(f"static/{name}").status_code == (200 if is_served else 404)
    for name in ("..%2fapp.py", "app.py", "..%5capp.py", "index.html"):
        assert site.get(f"static/{name}").status_code == 404
    assert site.get("static/page.css").headers["content-type"] == "text/css; charset=utf-8"


def test_scripts_of_the_page_parse_no_text_as_html_and_load_nothing_from_elsewhere() -> None:
    """What a stream records becomes text nodes; and no address of a different server is in a file."""
    for name, body in static_files().items():
        text = body.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
            " style=",
        ):
            assert word not in text, (name, word)
        assert text.replace("http://www.w3.org/2000/svg", "").count("http") == text.count("https?:") + text.count(
            "noreferrer http"
        ), name


def test_secrets_are_in_no_part(site: PageSite, named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the deployment nor those of the connection; where an event repeats one, it is hidden."""
    create = StreamControl.create_spec

    def with_secret(control: StreamControl, spec: DeploymentSpec) -> None:
        create(control, with_version(spec, conf={"spark.x.password": "hunter2-of-spark"}))

    monkeypatch.setattr(StreamControl, "create_spec", with_secret)
    attempt = named.stream().deploy().runs()
    attempt.failed("ValueError: cannot log in with hunter2-of-spark")
    for name in ("streams", *PARTS):
        answer = site.get(f"api/{name}", conn_id=CONN_ID, stream_id="flights")
        while "it is being read" in answer.text:
            answer = site.get(f"api/{name}", conn_id=CONN_ID, stream_id="flights")
        assert answer.status_code == 200, answer.text
        assert "hunter2" not in answer.text, name
        assert "cannot log in" in answer.text or name not in ("streams", "stream", "events")
    assert QUERY in site.get("api/stream", conn_id=CONN_ID, stream_id="flights").text


def test_a_home_of_an_earlier_checkout_is_named_and_not_read(site: PageSite, named: NamedHome) -> None:
    """Its streams are not shown as damaged; nothing in it changes. (Law 7)"""
    with earlier_home(Path(named.config.home_uri)):
        (home,) = site.get("api/streams").json()["homes"]
        while home["looked_at"] is None and home["error"] is None:
            (home,) = site.get("api/streams").json()["homes"]
        assert WORDS in home["error"]["message"]
        assert home["streams"] == []
        answer = site.get("api/stream", conn_id=CONN_ID, stream_id=STREAM_THERE)
        assert WORDS in answer.json()["error"]["message"]
