"""Who sees what on the page: what Airflow's auth manager allows, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.page.app import page_app, static_files
from airflow_streamstate.page.content import PARTS
from support.airflow_streams import NamedHome
from support.page_site import CONN_ID, OTHER_CONN_ID, PageSite, RightsOfEach, page_site

STREAM = "hidden-stream"
DRIVER_WORDS = "ValueError: boom of the driver"
OF_ROWS = {"log", "replay", "events"}
ROUTES = {
    "/": [""],
    "/task": ["task"],
    "/streams/{conn_id}/{stream_id:path}": [f"streams/{CONN_ID}/{STREAM}"],
    "/static/{name}": [f"static/{name}" for name in static_files()],
    "/api/me": ["api/me"],
    "/api/streams": ["api/streams"],
    "/api/open": ["api/open"],
    "/api/{name}": [f"api/{name}" for name in PARTS],
}
"""Every route of the page, with each address that it has. A new one belongs here, so that its rights are tried."""
ADDRESSES = [address for each in ROUTES.values() for address in each]


@pytest.fixture
def each(site: PageSite, monkeypatch: pytest.MonkeyPatch, named: NamedHome) -> PageSite:
    """The page with rights on single connections and DAGs, two homes of which show a stream."""
    assert site
    monkeypatch.setenv(f"AIRFLOW_CONN_{OTHER_CONN_ID.upper()}", named.connection)
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_CONN_IDS", f"{CONN_ID}, {OTHER_CONN_ID}")
    named.stream(STREAM).deploy().runs().failed(DRIVER_WORDS)
    return page_site(monkeypatch, RightsOfEach)


def seen_homes(site: PageSite, user: str) -> list[str]:
    return [home["conn_id"] for home in site.get("api/streams", user).json()["homes"]]


def asked(site: PageSite, address: str, user: str | None, conn_id: str = CONN_ID) -> Any:
    return site.get(address, user, conn_id=conn_id, stream_id=STREAM)


def test_every_route_of_the_page_is_tried_here() -> None:
    """One that is added and not named above turns this red; pictures and metrics would be routes, too."""
    assert {route.path for route in page_app().routes} == set(ROUTES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("user", ["viewer", "user", "reader of taxis"])
def test_nothing_of_a_home_is_shown_without_the_right(each: PageSite, address: str, user: str) -> None:
    """To users who may see Airflow's website: neither a name nor a word of a stream is in any answer."""
    answer = asked(each, address, user)
    assert STREAM not in answer.text
    assert "boom" not in answer.text or address.startswith("static/")
    if address.removeprefix("api/") in {*PARTS, "open"}:
        assert answer.status_code == 403
        assert answer.json()["error"]["message"] == "you may not see this home"
        assert "the right to read the connection of this home" in answer.json()["error"]["next_step"]


def test_without_the_right_a_home_of_the_page_looks_like_none(each: PageSite) -> None:
    """So that the ids of connections cannot be guessed; with the right the answer reports what is missing."""
    answers = [asked(each, "api/stream", "viewer", conn_id).text for conn_id in (CONN_ID, "aws_default")]
    assert answers[0] == answers[1]
    assert asked(each, "api/stream", "reader of one").status_code == 200


def test_the_table_has_only_the_homes_that_the_user_may_see(each: PageSite) -> None:
    """In the order of the configuration; without any the page reports that, and not that it is empty."""
    assert seen_homes(each, "reader of one") == [CONN_ID]
    assert seen_homes(each, "reader of both") == [CONN_ID, OTHER_CONN_ID]
    assert each.get("api/streams", "viewer").json() == {"homes": [], "is_refused": True}
    assert each.get("api/streams", "reader of one").json()["is_refused"] is False


@pytest.mark.parametrize("part", PARTS)
def test_rows_and_logs_need_the_right_for_task_logs(each: PageSite, part: str) -> None:
    """In addition to the right to see the home; a reader of one home sees nothing of a different one."""
    assert asked(each, f"api/{part}", "reader of one").status_code == 200
    assert asked(each, f"api/{part}", "reader of one", OTHER_CONN_ID).status_code == 403
    answer = asked(each, f"api/{part}", "reader without logs")
    assert answer.status_code == (403 if part in OF_ROWS else 200)
    if part in OF_ROWS:
        assert answer.json()["error"]["message"] == "you may not read logs, journals and rows of this home"
        assert "the right to read task logs of DAGs" in answer.json()["error"]["next_step"]


@pytest.mark.parametrize("part", PARTS)
def test_a_home_with_a_dag_is_seen_by_the_readers_of_that_dag(
    each: PageSite, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by nobody else, a reader of its connection among them: each home has one right."""
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_DAG_IDS", f"{CONN_ID}=flights")
    assert asked(each, f"api/{part}", "reader of flights").status_code == 200
    assert asked(each, f"api/{part}", "reader of flights", OTHER_CONN_ID).status_code == 403
    expected = 403 if part in OF_ROWS else 200
    assert asked(each, f"api/{part}", "reader of flights without logs").status_code == expected
    for user in ("reader of taxis", "reader of both", "viewer"):
        assert asked(each, f"api/{part}", user).status_code == 403
    assert seen_homes(each, "reader of flights") == [CONN_ID]
    assert seen_homes(each, "reader of both") == [OTHER_CONN_ID]


def test_a_page_that_lets_anybody_in_is_opened_for_those_who_may_read_logs(
    each: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a redirect that no store of the browser keeps; a driver without such a page is reported as having none."""

    def opened(_self: Controller, stream_id: str, page: str, deployment_id: str | None = None) -> str:
        return f"https://dashboard.example/{stream_id}?{page}&{deployment_id}"

    def open_as(user: str, conn_id: str = CONN_ID) -> Any:
        return each.get("api/open", user, conn_id=conn_id, stream_id=STREAM, page="Spark UI")

    assert "this stream has no driver" in open_as("reader of one").text
    monkeypatch.setattr(Controller, "opened_page", opened)
    answer = open_as("reader of one")
    assert answer.status_code == 303
    assert answer.headers["Location"].startswith(f"https://dashboard.example/{STREAM}?Spark")
    assert (answer.headers["Cache-Control"], answer.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    for user in ("reader without logs", "viewer", "reader of taxis"):
        assert (open_as(user).status_code, "dashboard" in open_as(user).text) == (403, False)
    assert open_as("reader of one", OTHER_CONN_ID).status_code == 403


def test_a_part_that_was_read_for_one_user_is_not_shown_to_another(each: PageSite) -> None:
    """Parts are shared between browsers: the right is asked for before what is kept is looked at."""
    for part in PARTS:
        assert asked(each, f"api/{part}", "reader of one").status_code == 200
        assert asked(each, f"api/{part}", "viewer").status_code == 403


def test_roles_of_the_simple_auth_manager(site: PageSite, named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the table of the documentation has them: op and admin by default, every role where a DAG is named."""
    named.stream(STREAM).deploy().runs()
    by_role = {user: asked(site, "api/log", user).status_code for user in ("viewer", "user", "op", "nobody")}
    assert by_role == {"viewer": 403, "user": 403, "op": 200, "nobody": 403}
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_DAG_IDS", f"{CONN_ID}=flights")
    by_role = {user: asked(site, "api/log", user).status_code for user in ("viewer", "user", "op", "nobody")}
    assert by_role == {"viewer": 200, "user": 200, "op": 200, "nobody": 403}


@pytest.mark.parametrize(
    "said", [f"{CONN_ID}", f"{CONN_ID}=", "=flights", "elsewhere=flights", f"{CONN_ID}=a,{CONN_ID}=b"]
)
def test_a_wrong_entry_opens_nothing(site: PageSite, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """It is named with the form that is right; no home is shown until then."""
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_DAG_IDS", said)
    for address in ("api/streams", "api/stream"):
        error = asked(site, address, "op").json()["error"]
        assert re.search("page_dag_ids of Airflow's configuration is wrong", error["message"])
        assert "CONN_ID=DAG_ID" in error["next_step"]
