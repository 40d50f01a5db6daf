"""A headless Chromium, Debian's, with a profile of its own that goes when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

from tests.services import packages

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)


def install() -> None:
    """Install Debian's packages where they are missing."""
    programs = ("chromium", "chromedriver")
    packages.install(
        "chromium", "chromium-driver", unless=lambda: all(shutil.which(p) for p in programs)
    )


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser; ended with its driver."""
    install()
    with TemporaryDirectory(prefix="sqsdelay-chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = _started(options)
        try:
            yield driver
        finally:
            driver.quit()


def _started(options: webdriver.ChromeOptions) -> webdriver.Chrome:
    """Selenium looks for the driver's port before the driver binds it: another may be quicker."""
    for left in reversed(range(3)):
        try:
            return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        except WebDriverException as error:
            if not left or "Service" not in str(error):
                raise
    raise AssertionError("unreachable")
