"""The page of streams on a real Airflow, in a real browser: each view, each act, each refusal.

The screenshots of the documentation are made here (``docs/assets/page-*.png``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.page.app import ACTS
from airflow_streamstate.page.content import PARTS
from support.airflow_site import SiteError, eventually
from support.browser import chromium, opened
from support.page_story import (
    PRIVATE_CONN_ID,
    PageStory,
    all_beat,
    beats,
    begun,
    deployed,
    lived,
    page_story,
    upgraded,
    written_by_hand,
)

pytestmark = [pytest.mark.named, pytest.mark.components, pytest.mark.timeout(1800)]
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
MOST_BYTES = 150_000
UNNAMED = """(page) => [...page.querySelectorAll('button, a, input, select, [role=img], [role=region], [tabindex="0"]')]
    .filter((one) => one.checkVisibility() && !(one.getAttribute('aria-label') || one.labels?.length
        || one.getAttribute('aria-labelledby') || one.textContent.trim()))
    .map((one) => one.outerHTML.slice(0, 200))"""
CUT = """(page) => [...page.querySelectorAll('.streams th, .streams td, .streams th button')]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""
SWITCHED_TO_LIGHT = """() => {  // as Airflow hears of it from another window
    localStorage.setItem("theme", "light");
    window.dispatchEvent(new StorageEvent("storage", { key: "theme", newValue: "light" }));
}"""
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageStory]:
    """A real Airflow over a home with ten streams."""
    with page_story(tmp_path_factory.mktemp("page")) as made:
        written_by_hand(made.home)
        lived(made.home)
        made.site.wait_for_dags(*ACTS.values())
        yield made


@pytest.fixture(autouse=True)
def all_alive(story: PageStory) -> None:
    """A busy machine may take minutes for the tests before this one."""
    all_beat(story.home)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tokens(story: PageStory) -> dict[str, str]:
    return {user: story.site.token(user) for user in ("viewer", "editor")}


def shot(page: Any, name: str, **more: Any) -> None:
    """Keep a picture for the documentation."""
    path = ASSETS / f"page-{name}.png"
    page.screenshot(path=path, animations="disabled", **more)
    assert path.stat().st_size < MOST_BYTES, path


def ask(page: Any, act: str, button: str, end: str = "Done") -> str:
    """Press the button of an act, confirm it, and wait for the end of its run; gives what the dialog showed before."""
    page.locator(f'button[data-act="{act}"][aria-disabled="false"]').click()
    dialog = page.get_by_role("dialog")
    said = str(dialog.inner_text())
    dialog.get_by_label("Why").fill("asked on the page")
    dialog.get_by_role("button", name=button, exact=True).click()
    dialog.get_by_text(end).wait_for(timeout=180_000)
    dialog.get_by_role("button", name="Close").click()
    return said


def runs_of(story: PageStory, dag_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = story.site.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
    return found


def chosen_streams(page: Any) -> list[str]:
    names: list[str] = page.locator("tbody tr a").all_inner_texts()
    return names


def test_the_page_is_a_view_of_airflows(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """A viewer finds it under Browse, sees every stream, comes from there to the page of one, and back; in no frame."""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.site.url)
        page.evaluate("window.wasNotLoadedAgain = true")
        page.get_by_text("Browse", exact=True).first.click()
        page.get_by_role("menuitem", name="Streams", exact=True).click()
        page.get_by_role("link", name="weather").wait_for()
        page.get_by_text("10 of 10").wait_for()  # each of them is read
        assert page.locator("tbody tr").count() == 10
        assert page.locator("iframe").count() == 0
        assert page.locator(".page").evaluate(CUT) == []
        shot(page, "streams")
        page.get_by_role("link", name="flights").click()
        page.get_by_role("heading", name="flights").wait_for()
        page.wait_for_url("**/plugin/streamstate/streamstate/streams/streamstate_default/flights#overview")
        assert page.title() == "flights · Streams"
        page.get_by_role("tab", name="Events", exact=True).click()
        address = page.url
        page.go_back()
        page.get_by_text("10 of 10").wait_for()
        page.go_forward()
        page.get_by_role("heading", name="flights").wait_for()
        page.get_by_role("link", name="Streams", exact=True).click()
        page.get_by_text("10 of 10").wait_for()
        page.get_by_role("link", name="Dags").first.click()
        page.get_by_role("link", name="streamstate_stop").first.wait_for()
        assert page.evaluate("window.wasNotLoadedAgain")
    with opened(browser, story.site.url, tokens["viewer"]) as page:  # the address leads there again
        page.goto(address)
        page.get_by_role("heading", name="flights").wait_for()
        assert page.get_by_role("tab", selected=True).inner_text() == "Events"


def test_neither_the_styles_nor_the_keys_of_airflow_and_the_page_meet(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """Airflow's own buttons look as before; what is typed into a field of the page is no command to Airflow."""
    look = "(one) => JSON.stringify([getComputedStyle(one).border, getComputedStyle(one).font])"
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.goto(story.site.url)
        before = page.get_by_role("button", name="User").evaluate(look)
        page.goto(story.shown_stream("flights"))
        page.locator('button[data-act="drain"][aria-disabled="false"]').click()
        assert page.get_by_role("button", name="User", include_hidden=True).evaluate(look) == before
        pressed = page.evaluate_handle(
            "() => { const keys = []; document.addEventListener('keydown', ({ key }) => keys.push(key)); return keys; }"
        )
        page.get_by_label("Why").press_sequentially("g? ok")
        assert page.get_by_label("Why").input_value() == "g? ok"
        assert pressed.json_value() == []
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")


def test_in_a_frame_it_is_the_same_page(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """As a version of Airflow shows it whose views are frames: a link to a run leads the window around it."""
    frame = '<iframe sandbox="allow-scripts allow-same-origin allow-forms" src="/streamstate/" width=900 height=600>'
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.route(f"{story.site.url}/around", lambda route: route.fulfill(content_type="text/html", body=frame))
        page.goto(f"{story.site.url}/around")
        inside = page.frame_locator("iframe")
        inside.get_by_role("link", name="flights").click()
        inside.get_by_role("heading", name="flights").wait_for()
        assert page.url.endswith("/around")
        inside.locator(".view").evaluate(
            "(view) => { const link = document.createElement('a'); link.href = '/dags/x'; link.textContent = 'its run';"
            "view.append(link); }"
        )
        inside.get_by_role("link", name="its run").click()
        assert page.url == f"{story.site.url}/dags/x"


def test_the_table_is_filtered_sorted_and_refreshed(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """By text, state and version; from the keyboard; without a new element at a refresh."""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.streams)
        page.get_by_role("link", name="flights").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("clicks")
        assert chosen_streams(page) == ["clicks-eu", "clicks-us"]
        page.keyboard.press("Control+a")
        page.keyboard.type("boom that no stream has")
        page.get_by_role("button", name="Show all").click()
        page.get_by_role("button", name="failed 1").click()
        assert chosen_streams(page) == ["sessions"]
        page.get_by_role("button", name="failed 1").click()
        page.get_by_role("button", name="Filter by version").click()
        page.get_by_role("checkbox", name="v2").check()
        assert chosen_streams(page) == ["flights"]
        page.get_by_role("checkbox", name="v2").uncheck()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Lag").click()
        page.get_by_role("button", name="Lag").click()
        assert chosen_streams(page)[0] == "flights"
        assert page.locator('[aria-sort="descending"]').inner_text() == "Lag"
        page.locator("tbody tr a").first.focus()
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") != "flights"
        page.evaluate("document.querySelector('tbody tr').kept = true")
        beats(story.home, "flights", lags=())
        page.get_by_text("5,400 rows").wait_for(state="detached")
        assert page.evaluate("[...document.querySelectorAll('tbody tr')].some((row) => row.kept)")
        beats(story.home, "flights")


def test_the_table_is_filtered_by_several_labels_and_owners(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """One value of each label's name, and one of the owners; by the keyboard alone; all of it is in the address."""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.shown)
        page.get_by_text("10 of 10").wait_for()
        button = page.get_by_role("button", name="Filter by label")
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-expanded") == "true"
        page.keyboard.press("Space")  # the first box has the focus
        assert chosen_streams(page) == ["clicks-eu"]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        assert chosen_streams(page) == ["clicks-eu", "clicks-us"]  # of one name each value is enough
        page.get_by_role("checkbox", name="region=us").uncheck()
        page.get_by_role("checkbox", name="team=web").check()
        assert chosen_streams(page) == ["clicks-eu"]  # of each name one
        page.get_by_role("checkbox", name="team=payments").check()
        page.get_by_role("checkbox", name="region=eu").uncheck()
        assert chosen_streams(page) == ["clicks-eu", "clicks-us", "ledger"]
        page.keyboard.press("Escape")
        assert page.get_by_role("checkbox").count() == 0
        assert page.evaluate("(name) => document.activeElement.shadowRoot.activeElement.ariaLabel") == (
            "Filter by label: team=web, team=payments"
        )
        page.get_by_role("button", name="Filter by owner").click()
        page.get_by_role("checkbox", name="payments").check()
        page.get_by_role("checkbox", name="operations").check()
        assert chosen_streams(page) == ["ledger"]
        page.get_by_role("searchbox", name="Filter by text").click()  # the list closes where the focus leaves it
        assert page.get_by_role("checkbox").count() == 0
        page.get_by_role("button", name="drained 1").click()
        page.wait_for_url("**/plugin/streamstate?state=drained&owner=payments&owner=operations&label=team*")
        address = page.url
    with opened(browser, story.site.url, tokens["viewer"]) as page:  # for another user
        page.goto(address)
        page.get_by_text("1 of 10").wait_for()
        assert chosen_streams(page) == ["ledger"]
        assert page.get_by_role("button", name="drained 1").get_attribute("aria-pressed") == "true"
        page.get_by_role("link", name="ledger").click()
        page.get_by_role("heading", name="ledger").wait_for()
        page.go_back()
        page.get_by_text("1 of 10").wait_for()
        page.get_by_role("button", name="failed 1").click()
        page.get_by_role("button", name="drained 1").click()
        page.get_by_role("button", name="Show all").click()  # of every filter
        page.get_by_text("10 of 10").wait_for()
        page.wait_for_url("**/plugin/streamstate")
        assert page.get_by_role("button", name="Filter by owner", exact=True).inner_text() == "Owner"


def test_each_part_of_a_stream_is_shown(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """With its life, its upgrade, its plan compared with the one before, its lineage, its log and its events."""
    seen = {
        "Overview": "d-0002",
        "Upgrades": "the new version is healthy",
        "Plan": "Join",
        "Snapshots": "d-0001-live-000001",
        "Lineage": "starts exactly where the one before ended",
        "Replay": "No batch of this stream was replayed",
        "Driver log": "scripted driver: proves",
        "Events": "snapshot d-0001-live-000001 is complete",
        "Journal": "QueryStarted",
    }
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.shown_stream("flights"))
        page.get_by_text("owner operations", exact=True).wait_for()
        assert page.locator(".owned .label").all_inner_texts() == ["team=operations", "tier=1"]
        for tab, words in seen.items():
            page.get_by_role("tab", name=tab, exact=True).click()
            page.locator("section:not([hidden])").get_by_text(words).first.wait_for()
            assert page.get_by_role("tab", selected=True).inner_text() == tab
            page.wait_for_timeout(300)
            if tab in ("Overview", "Upgrades", "Plan", "Lineage"):
                shot(page, tab.lower())
        page.get_by_label("Deployment of the events").select_option("d-0001")
        page.locator("section:not([hidden])").get_by_text("Stopped").first.wait_for()
        page.get_by_role("tab", name="Overview").click()
        page.get_by_role("button", name="d-0001 → d-0002").click()  # the gap fills the picture
        wide = page.locator("rect.uncommitted").first.bounding_box()["width"]
        assert wide > page.locator("svg.timeline").bounding_box()["width"] / 4
        page.locator("svg.timeline").focus()
        page.keyboard.press("0")
        assert page.locator("rect.uncommitted").first.bounding_box()["width"] < wide
        assert page.locator("rect.down").count() == 1  # what no query ran, within it


def test_what_is_old_is_grey_and_is_read_at_once_by_who_comes_back(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """Each row has its age; a tab that was hidden greys what is old before the answer comes, and asks at once."""
    hide = """(is) => {
        Object.defineProperty(document, 'hidden', { value: is, configurable: true });
        if (!is) { const now = Date.now(); Date.now = () => now + 540_000; }
        document.dispatchEvent(new Event('visibilitychange'));
        return document.querySelectorAll('tbody tr[data-old]').length;
    }"""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.streams)
        page.get_by_text("10 of 10").wait_for()
        assert page.locator("tbody tr td.of-age").all_inner_texts() != [""] * 10
        assert page.locator("tbody tr[data-old]").count() == 0
        page.evaluate(hide, True)
        with page.expect_request("**/api/streams", timeout=2_000):
            assert page.evaluate(hide, False) == 10
        page.locator("tbody tr[data-old]").first.wait_for(state="detached")


def test_a_link_of_an_old_run_opens_what_that_run_was_about(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """The deployment, the upgrade, the plan of that time, whatever runs since."""
    (upgrade_id,) = UpgradeJournal(story.home.stream("flights").control).ids()[:1]
    address = f"{story.stream('flights')}?deployment=d-0001&upgrade={upgrade_id}"
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(f"{address}#plan")
        page.get_by_text(f"Opened at d-0001, {upgrade_id}").wait_for()
        page.get_by_text("d-0001, the first version").wait_for()
        page.get_by_role("tab", name="Driver log").click()
        page.get_by_text("d-0001 attempt 1, its end").wait_for()
        page.get_by_role("tab", name="Upgrades").click()
        assert page.locator("details[open]").get_attribute("data-upgrade") == upgrade_id
        page.get_by_role("button", name="Show the current ones").click()
        page.get_by_role("tab", name="Plan").click()
        page.get_by_text("compared with d-0001").wait_for()
        assert "deployment=" not in page.url


def test_it_is_dark_and_narrow_where_the_user_is(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """As the system or Airflow's own switch is set; nothing is wider than a narrow window, and no cell is cut in it."""
    with opened(browser, story.site.url, tokens["viewer"], theme="dark", narrow=True) as page:
        for address, name in ((story.shown, "narrow"), (story.shown_stream("flights"), "narrow-stream")):
            page.goto(address)
            page.get_by_text("flights").first.wait_for()
            page.wait_for_timeout(500)
            shown = page.locator(".page")
            assert shown.get_attribute("data-theme") == "dark"
            assert shown.evaluate("(one) => one.scrollWidth <= one.clientWidth")
            assert shown.evaluate(CUT) == []
            shot(page, name)
        page.evaluate(SWITCHED_TO_LIGHT)
        page.locator('.page[data-theme="light"]').wait_for()
        page.goto(story.streams)  # in its own window
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.evaluate("localStorage.setItem('theme', 'dark')")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.get_by_role("link", name="flights").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    with opened(browser, story.site.url, tokens["viewer"], theme="dark") as page:
        page.goto(story.shown_stream("flights") + "#upgrades")
        page.get_by_text("the new version is healthy").wait_for()
        shot(page, "dark")


def test_every_control_has_a_name_for_a_screen_reader(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """On both pages, in each part, and in the lists of the filters."""
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.goto(story.shown)
        page.get_by_role("link", name="flights").wait_for()
        assert page.locator(".page").evaluate(UNNAMED) == []
        for name in ("version", "owner", "label"):
            page.get_by_role("button", name=f"Filter by {name}").click()
            page.get_by_role("group", name=f"Filter by {name}").wait_for()
            assert page.locator(".page").evaluate(UNNAMED) == []
        page.goto(story.shown_stream("flights"))
        for tab in page.get_by_role("tab").all():
            tab.click()
            page.wait_for_timeout(400)
            assert page.locator(".page").evaluate(UNNAMED) == []


def test_nothing_that_a_stream_says_is_a_part_of_the_page(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """Names of versions, errors, reasons: markup in them is shown as text, on every part."""
    hostile = story.home.stream("hostile")
    hostile.deploy().runs().failed(HOSTILE)
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.shown)
        page.get_by_role("link", name="hostile").wait_for()
        for part in ("overview", "events", "upgrades", "plan", "lineage", "log"):
            page.goto(f"{story.shown_stream('hostile')}#{part}")
            page.reload()
            page.locator(".note", has_text="<script>").first.wait_for()
            assert page.evaluate("window.hacked") is None
            assert page.locator(".page img, .page script").count() == 0


def test_ids_that_are_wrong_are_told_in_a_sentence(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """Malformed, of 63 characters, or of a stream that is gone since."""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        for stream_id, status, words in (
            ("%3Cscript%3Ealert(1)%3C%2Fscript%3E", 400, "This is not a valid stream id."),
            ("..%2F..%2Fetc", 400, "This is not a valid stream id."),
            ("a" * 63, 200, "This home has no such stream."),
        ):
            answer = page.goto(story.stream(stream_id))
            assert answer.status == status
            page.get_by_role("alert").get_by_text(words).first.wait_for()
            assert page.get_by_role("tab").count() == 0
            page.get_by_role("link", name="All streams").wait_for()


def test_a_viewer_and_nobody_are_refused(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """A viewer's buttons show why; Airflow refuses the run itself with 403, and every read without a user with 401."""
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(story.stream("flights"))
        stop = page.locator('button[data-act="stop"]')
        stop.wait_for()
        assert stop.get_attribute("aria-disabled") == "true"
        assert "no right to run the DAG streamstate_stop" in stop.get_attribute("title")
        stop.click(force=True)
        assert page.get_by_role("dialog").count() == 0
        for dag_id in ACTS.values():
            body = {"logical_date": None, "conf": {"stream_id": "flights"}}
            answer = page.request.post(f"{story.site.url}/api/v2/dags/{dag_id}/dagRuns", data=body)
            assert answer.status == 403
    with opened(browser, story.site.url, None) as page:
        for path in ("", "static/page.js", "api/me", "api/streams", *(f"api/{name}" for name in PARTS)):
            assert page.request.get(f"{story.streams}{path}").status == 401
    assert all(runs_of(story, dag_id) == [] for dag_id in ACTS.values())


def test_a_home_without_the_right_is_hidden(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """A viewer finds none of its streams, and its address shows which right is missing; an administrator sees it."""
    address = story.stream("flights").replace("streamstate_default", PRIVATE_CONN_ID)
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(address)
        page.get_by_role("alert").get_by_text("You may not see this home").first.wait_for()
        for name in PARTS:
            query = f"conn_id={PRIVATE_CONN_ID}&stream_id=flights"
            assert page.request.get(f"{story.streams}api/{name}?{query}").status == 403
    with opened(browser, story.site.url, story.site.token("admin")) as page:
        page.goto(address)
        page.get_by_role("heading", name="flights").wait_for()
        page.get_by_text("owner operations", exact=True).wait_for()


def test_another_site_cannot_act_by_a_users_browser(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """A form from a different origin comes without the cookie of Airflow, which is same-site, and is no JSON either."""
    runs = f"{story.site.url}/api/v2/dags/streamstate_stop/dagRuns"
    field = """{"logical_date":null,"conf":{"stream_id":"flights"},"x":" """
    form = f"<form method=post enctype=text/plain action={runs}><input name='{field}' value='\"}}'></form>"
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.route("http://elsewhere.test/", lambda route: route.fulfill(content_type="text/html", body=form))
        page.goto("http://elsewhere.test/")
        with page.expect_response(runs) as answer:
            page.evaluate("document.forms[0].submit()")
        assert answer.value.status == 401
    assert runs_of(story, "streamstate_stop") == []


def test_an_editor_acts_by_runs_of_dags_as_the_user(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """Snapshot, roll back, stop, resume, drain: each shows what will happen, runs as the user, and does it."""
    client = story.home.hook().client
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.goto(story.shown_stream("flights"))
        assert "The stream runs on" in ask(page, "snapshot", "Take a snapshot")
        assert any(
            one.snapshot_kind == "live" and one.deployment_id == "d-0002" for one in client.snapshots.all("flights")
        )

        page.locator('button[data-act="drain"][aria-disabled="false"]').click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("48,211 rows of state are written now").wait_for()
        shot(page, "act")
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")

        said = ask(page, "rollback", "Roll back to the version before")
        assert "The stream commits nothing for about" in said
        assert client.status("flights").deployment_id == "d-0003"

        said = ask(page, "stop", "Stop the stream")
        assert "No row is lost" in said
        assert client.status("flights").state == "stopped"
        page.locator('button[data-act="stop"][aria-disabled="true"]').wait_for()

        ask(page, "resume", "Resume the stream")
        assert (client.status("flights").state, client.status("flights").attempt) == ("running", 2)
        beats(story.home, "flights")

        ask(page, "drain", "Drain the stream")
        assert client.status("flights").state == "drained"
    for act in ("snapshot", "rollback", "stop", "resume", "drain"):
        (run,) = runs_of(story, ACTS[act])
        assert (run["triggering_user_name"], run["conf"]["reason"]) == ("editor", "asked on the page")


def test_an_upgrade_is_approved_on_the_page(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """By the user, whose name is kept; another one is rejected, and the stream runs on."""
    client = story.home.hook().client
    deployed(story.home, "trips")
    with opened(browser, story.site.url, tokens["editor"]) as page:
        for label, button, outcome in (("v2", "Reject", "refused"), ("v3", "Approve", "upgraded")):
            upgrade_id = upgraded(story.home, "trips", label, needs_approval=True)

            def is_planned(one: str = upgrade_id) -> bool:
                return client.upgrades.advance("trips", one).state.phase == "planned"

            eventually(is_planned, "the plan", 120)
            page.goto(story.shown_stream("trips"))
            assert "verdict is same" in ask(page, "answer", button)
            view = client.upgrades.run("trips", upgrade_id, 120)
            assert view.outcome == outcome
    assert [run["triggering_user_name"] for run in runs_of(story, ACTS["answer"])] == ["editor", "editor"]


def test_an_upgrade_that_nobody_drives_is_cancelled_or_continued_on_the_page(
    story: PageStory, browser: Any, tokens: dict[str, str]
) -> None:
    """By the user; until then what the upgrade would refuse is greyed, with the acts that work."""
    deployed(story.home, "buses")
    client = story.home.hook().client
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.goto(story.shown_stream("buses"))
        page.locator('button[data-act="stop"]').wait_for()
        assert page.locator('button[data-act="continue"]').is_hidden()
        for label, act, button, outcome in (
            ("v2", "cancel", "Give the upgrade up", "refused"),
            ("v3", "continue", "Continue the upgrade", "upgraded"),
        ):
            upgrade_id = begun(story.home, "buses", label)
            page.goto(story.shown_stream("buses"))
            page.locator('button[data-act="stop"][aria-disabled="true"]').wait_for()
            assert "continue it, or cancel it" in str(page.locator('button[data-act="stop"]').get_attribute("title"))
            assert upgrade_id in ask(page, act, button)
            assert client.upgrades.view("buses", upgrade_id).outcome == outcome
    for act in ("cancel", "continue"):
        (run,) = runs_of(story, ACTS[act])
        assert (run["triggering_user_name"], run["state"]) == ("editor", "success")


def test_what_is_refused_is_told(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """A DAG that is not there is named, with where it comes from; a run that fails shows the error of its task."""
    stream = story.home.stream("refused")
    stream.deploy().runs().stopped()
    with opened(browser, story.site.url, tokens["editor"]) as page:
        page.route("**/dags/streamstate_drain", lambda route: route.fulfill(status=404, json={"detail": "no such DAG"}))
        page.goto(story.shown_stream("refused"))
        page.locator('button[data-act="drain"][aria-disabled="false"]').click()
        page.get_by_role("dialog").get_by_role("button", name="Drain the stream").click()
        page.get_by_text("put act_on_stream.py in its folder of DAGs").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        ask(page, "resume", "Resume the stream", end="It failed")
    with pytest.raises(SiteError, match=r"40\d|422"):
        story.site.trigger("streamstate_stop", {"stream_id": "../../etc"})


def test_a_task_shows_its_stream(story: PageStory, browser: Any, tokens: dict[str, str]) -> None:
    """The tab of a task instance shows the stream that it acts on."""
    home = story.home
    deployed(home, "taxis")
    run_id = story.site.trigger("streamstate_snapshot", {"stream_id": "taxis"})
    assert story.site.wait_for_run("streamstate_snapshot", run_id, 180) == "success"
    with opened(browser, story.site.url, tokens["viewer"]) as page:
        page.goto(f"{story.site.url}/dags/streamstate_snapshot/runs/{run_id}/tasks/snapshot/plugin/streamstate_task")
        page.get_by_role("heading", name="taxis").wait_for()
        page.get_by_text("Drag to move").wait_for()
        shot(page, "task")
        page.get_by_role("tab", name="Snapshots", exact=True).click()
        page.locator("section:not([hidden])").get_by_text("d-0001-live-000001").first.wait_for()
        page.get_by_role("link", name="Streams", exact=True).click()
        page.get_by_role("link", name="weather").wait_for()
        task = f"dag_id=streamstate_snapshot&run_id={quote(run_id, safe='')}&task_id=snapshot&map_index=-1"
        page.goto(f"{story.streams}task?{task}")
        page.get_by_role("heading", name="taxis").wait_for()  # in its own window
