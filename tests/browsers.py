"""A real Chromium for tests, where there is one."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@contextmanager
def started_chromium():
    """Start a browser; skip the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install -y chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()
