"""Chromium for tests, if it is installed."""

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@contextmanager
def started_chromium():
    """Start a browser; skip the test if none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install -y chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


def appears(page, selector, timeout_ms):
    """Wait for an element; return whether it appears in time."""
    from playwright.sync_api import TimeoutError as NotInTime  # noqa: PLC0415  # installed, because there is a page

    try:
        page.wait_for_selector(selector, state="attached", timeout=timeout_ms)
    except NotInTime:
        return False
    return True
