"""Chromium for the users of an Airflow: Playwright from PyPI drives the browser of the machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WIDE, NARROW = {"width": 1180, "height": 720}, {"width": 420, "height": 760}
WAIT_MILLIS = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips where it or Playwright is not installed. It has ended afterwards."""
    playwright = pytest.importorskip("playwright.sync_api", reason="`tox -e page` has Playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on this machine (`apt-get install chromium`)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, url: str, token: str | None, *, theme: str = "light", narrow: bool = False) -> Iterator[Any]:
    """A window of a signed-in user; whatever its scripts complain of fails the test.

    Args:
        url: of the site, for the cookie.
        token: of the user; None for a user who has not signed in.
    """
    context = browser.new_context(viewport=NARROW if narrow else WIDE, color_scheme=theme)
    context.set_default_timeout(WAIT_MILLIS)
    if token is not None:
        # As Airflow sets it when a user signs in.
        context.add_cookies([{"name": "_token", "value": token, "url": url, "httpOnly": True, "sameSite": "Lax"}])
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    try:
        yield page
        assert errors == []
    finally:
        context.close()
