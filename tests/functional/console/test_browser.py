"""The console in a real browser: each page is accessible, works by keyboard, and refreshes itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import WebDriverWait

from sqsdelay.console.guard import Access
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from tests.functional.console.conftest import Running
from tests.patience import PATIENCE_SECONDS
from tests.services.chromium import chromium

ROOT = Path(__file__).parents[3]
AXE = (ROOT / "node_modules/axe-core/axe.min.js").read_text()
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run().then(found => done(found.violations.map(
  each => each.id + ' ' + each.nodes.map(node => node.target).join(' '))));
"""
HOSTILE = '<img src=x onerror="alert(1)">\x1b\u202e'


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """One browser for all of these."""
    with chromium() as driver:
        driver.set_page_load_timeout(PATIENCE_SECONDS)
        yield driver


@pytest.fixture
def served(running: Running) -> Iterator[tuple[str, Running]]:
    """A console on a port, with something on each of its pages."""
    running.park("order-1", "order-2", HOSTILE, body=b'<script>alert(1)</script>{"a": 1}')
    running.reject(
        "bad-1", "bad-2", reason="delay of 70 s exceeds 60 s", body="<script>alert(1)</script>"
    )
    running.send("{}", delay="1d", id="order-3")
    running.look()
    with serving(running.services, port=0) as url:
        yield url, running


def until(browser: Chrome, holds: Callable[[Chrome], Any]) -> Any:
    """Wait for the page."""
    return WebDriverWait(browser, PATIENCE_SECONDS, 0.1).until(holds)


def text(browser: Chrome) -> str:
    """What the page says."""
    return browser.find_element(By.TAG_NAME, "main").text


def says(words: str) -> Callable[[Chrome], bool]:
    """Whether the page says it, while it is being replaced too."""
    return lambda browser: words in browser.execute_script("return document.body.innerText")


def press(browser: Chrome, label: str) -> None:
    """Click a button by its text, and wait for the page that it leads to."""

    def pressed(browser: Chrome) -> WebElement | None:
        button = browser.find_element(By.XPATH, f"//button[normalize-space()='{label}']")
        try:
            button.click()
        except WebDriverException as error:
            # The page was replaced between the two.
            if not re.search("not belong to the document|stale element", str(error)):
                raise
            return None
        return button

    button = until(browser, pressed)
    WebDriverWait(browser, PATIENCE_SECONDS, 0.1).until(staleness_of(button))


def look(browser: Chrome, *, dark: bool, width: int) -> None:
    """Light or dark, wide or narrow."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_every_page_is_accessible(browser: Chrome, served: tuple[str, Running]) -> None:
    """No violation that axe knows of, light and dark, at 1280 and at 400 pixels; nothing is cut off
    sideways, and the browser has nothing to complain about (a breach of the policy, a missing file)."""
    url, running = served
    where = f"?endpoint={running.endpoint}"
    paths = [
        "", f"messages{where}", f"message{where}&id=order-1", f"message{where}&id=order-3",
        f"message{where}&id=bad-1", f"errors{where}", f"send{where}", "cost", "results/none",
    ]  # fmt: skip
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    for path in paths:
        look(browser, dark=False, width=1280)
        browser.get(url + path)
        browser.execute_script(AXE)
        for dark in (False, True):
            for width in (1280, 400):
                look(browser, dark=dark, width=width)
                found = browser.execute_async_script(RUN_AXE)
                assert found == [], (path, dark, width)
                wide = browser.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, (path, width)
    look(browser, dark=False, width=1280)
    complaints = [each["message"] for each in browser.get_log("browser")]  # type: ignore[no-untyped-call]
    assert [each for each in complaints if "results/none" not in each] == []


def test_an_action_by_keyboard_alone(browser: Chrome, served: tuple[str, Running]) -> None:
    """From the address bar to the result, without a mouse: skip link, choose, cancel, confirm."""
    url, running = served
    browser.get(f"{url}messages?endpoint={running.endpoint}")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element.get_attribute("aria-label") == "Choose order-1":
            break
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    while browser.switch_to.active_element.get_attribute("value") != "cancel":
        # Back to the buttons above the list.
        browser.switch_to.active_element.send_keys(Keys.SHIFT + Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(browser, says("Cancel 1 message of"))
    focused = browser.switch_to.active_element
    assert focused.text == "Cancel 1 message"
    focused.send_keys(Keys.ENTER)
    until(browser, says("cancelled"))
    assert running.store.find("order-1") is None


def test_it_refreshes_itself_and_not_under_ones_hands(
    browser: Chrome, served: tuple[str, Running]
) -> None:
    """A new message appears without a load; a chosen box and an opened list stay."""
    url, running = served
    browser.get(f"{url}messages?endpoint={running.endpoint}")
    browser.execute_script("window.same = true")
    running.park("order-9")
    until(browser, says("order-9"))
    assert browser.execute_script("return window.same")
    box = browser.find_element(By.CSS_SELECTOR, "input[aria-label='Choose order-9']")
    box.click()
    assert says("1 chosen")(browser)
    running.park("order-10")
    until(browser, says("Not refreshed under your hands. This is the state of"))
    assert box.is_selected()
    assert not says("order-10")(browser)
    box.click()
    until(browser, says("order-10"))
    browser.get(url)
    browser.find_element(By.CSS_SELECTOR, "summary").click()
    before = browser.find_element(By.CSS_SELECTOR, "#live h2")
    running.park("order-11")
    until(browser, lambda b: "6" in b.find_element(By.CSS_SELECTOR, ".tiles dd").text)
    assert browser.find_element(By.CSS_SELECTOR, "details").get_attribute("open")
    assert before.is_displayed()  # the same element: what did not change was not replaced


def test_nothing_of_a_message_runs(browser: Chrome, served: tuple[str, Running]) -> None:
    """No dialog opens, and the text is there to be read, on a phone too."""
    url, running = served
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    browser.get(f"{url}messages?endpoint={running.endpoint}")
    link = browser.find_element(By.PARTIAL_LINK_TEXT, "<img src=x")
    assert link.text == '<img src=x onerror="alert(1)">\\x1b\\u202e'
    link.click()
    until(browser, says('<script>alert(1)</script>{"a": 1}'))
    look(browser, dark=False, width=400)
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    cells = browser.find_elements(By.CSS_SELECTOR, "table.cards tbody td")
    assert len(cells) == 2 * 7, "the whole table on a phone"
    for each in cells:
        assert each.is_displayed()
        assert each.rect["x"] + each.rect["width"] <= 400
    look(browser, dark=False, width=1280)


def test_errors_and_sending(browser: Chrome, served: tuple[str, Running]) -> None:
    """Retry all of a reason; send what the form says, line breaks and all."""
    url, running = served
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    press(browser, "Look again")
    browser.find_element(By.NAME, "which").click()
    press(browser, "Retry…")
    press(browser, "Retry 2 messages")
    until(browser, says("Ended."))
    assert text(browser).count("sent to") == 2
    browser.get(f"{url}send?endpoint={running.endpoint}")
    browser.find_element(By.NAME, "body").send_keys('{"a":\n "<b>"}')
    browser.find_element(By.NAME, "delay").send_keys("1d")
    browser.find_element(By.NAME, "id").send_keys("typed")
    press(browser, "Show route and cost")
    until(browser, says("It goes into the store"))
    press(browser, "Send it")
    until(browser, says("sent (store)"))
    sent = running.store.find("typed")
    assert sent is not None
    assert json.loads(sent.body) == {"a": "<b>"}
    assert b"\r" not in sent.body


def test_the_cost_follows_its_sliders(browser: Chrome, served: tuple[str, Running]) -> None:
    """Moved by keyboard, the field shows the number and the words change without a load; a number that
    is typed moves the slider."""
    url, _ = served
    browser.get(f"{url}cost")
    browser.execute_script("window.same = true")
    slider = browser.find_element(By.CSS_SELECTOR, "input[data-for=delay]")
    slider.send_keys(Keys.END)
    until(browser, says("delayed by 3650 d"))
    assert browser.find_element(By.ID, "delay").get_attribute("value") == "3650d"
    assert browser.switch_to.active_element == slider
    count = browser.find_element(By.ID, "messages")
    count.send_keys(Keys.CONTROL + "a")
    count.send_keys("1000")
    until(browser, says("For 1,000 messages"))
    assert (
        browser.find_element(By.CSS_SELECTOR, "input[data-for=messages]").get_attribute("value")
        == "3"
    )
    count.send_keys("7")
    until(browser, says("For 10,007 messages"))
    assert browser.execute_script("return window.same")
    assert browser.switch_to.active_element == count


def test_light_or_dark_as_one_likes(browser: Chrome, served: tuple[str, Running]) -> None:
    """The choice outlives the page."""
    url, _ = served
    look(browser, dark=False, width=1280)
    browser.get(f"{url}cost")
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    light = browser.execute_script(colour)
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(colour) != light
    browser.get(f"{url}cost")
    assert browser.execute_script(colour) != light
    browser.delete_all_cookies()


def test_a_console_that_is_gone_is_said(browser: Chrome, running: Running) -> None:
    """The page stays, and says from when it is."""
    services = Services(running.services.settings, Access())
    with serving(services, port=0) as url:
        browser.get(url)
        assert running.endpoint in text(browser)
    until(browser, says("The console does not answer."))
    assert running.endpoint in text(browser)
