"""The console in a real browser: each page is accessible, works by keyboard, and refreshes itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
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
LEFT = "return !window.left && document.readyState === 'complete'"
TEXT = "return document.body.innerText"
STILL = "document.addEventListener('htmx:beforeRequest', event => event.preventDefault());"
RIGHTS = """return [...document.querySelectorAll('table.cards tbody td')].map(
  each => each.checkVisibility() && each.getBoundingClientRect().left + each.scrollWidth)"""
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
    running.reject("bad-1", "bad-2", reason="x" * 99, body="<script>alert(1)</script>")
    running.send("{}", delay="1d", id="order-3")
    running.look()
    with serving(running.services, port=0) as url:
        yield url, running


def until(browser: Chrome, holds: Callable[[Chrome], Any]) -> Any:
    """Wait for the page. While one replaces another, Chrome fails in many words: they mean "not yet"."""
    return WebDriverWait(browser, PATIENCE_SECONDS, 0.1, [WebDriverException]).until(holds)


def says(words: str) -> Callable[[Chrome], bool]:
    """Whether the page says it, in one question, for an element may be replaced between two."""
    return lambda browser: words in browser.execute_script(TEXT)


def click(browser: Chrome, by: str, what: str) -> None:
    """Click what a refresh may replace before the click."""

    def clicked(browser: Chrome) -> bool:
        browser.find_element(by, what).click()
        return True

    until(browser, clicked)


def press(browser: Chrome, label: str) -> None:
    """Click a button by its text, and wait for the page that it leads to, which has no mark."""
    browser.execute_script("window.left = true")
    click(browser, By.XPATH, f"//button[normalize-space()='{label}']")
    until(browser, lambda browser: browser.execute_script(LEFT))


def focused(browser: Chrome, name: str) -> Any:
    """A property of what the focus is at."""
    return browser.execute_script("return document.activeElement[arguments[0]]", name)


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
    browser.get("about:blank")  # What another test left open complains that its server is gone.
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    for path in paths:
        look(browser, dark=False, width=1280)
        browser.get(url + path)
        browser.execute_script(AXE + STILL)
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
    ActionChains(browser).send_keys(Keys.TAB).perform()
    assert focused(browser, "innerText") == "Skip to content"
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    for _ in range(40):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if focused(browser, "ariaLabel") == "Choose order-1":
            break
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    while focused(browser, "value") != "cancel":
        # Back to the buttons above the list.
        ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    until(browser, lambda browser: focused(browser, "innerText") == "Cancel 1 message")
    assert says("Cancel 1 message of")(browser)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    until(browser, says("cancelled"))
    assert running.store.find("order-1") is None


def test_it_refreshes_not_under_ones_hands(browser: Chrome, served: tuple[str, Running]) -> None:
    """A new message appears without a load; a chosen box and an opened list stay."""
    url, running = served
    browser.get(f"{url}messages?endpoint={running.endpoint}")
    browser.execute_script("window.same = true")
    running.park("order-9")
    until(browser, says("order-9"))
    assert browser.execute_script("return window.same")
    box = "input[aria-label='Choose order-9']"
    # Chosen while the answer to a refresh is under way: it comes too late.
    browser.execute_script(
        f'const choose = () => document.querySelector("{box}").click();'
        'addEventListener("htmx:beforeSend", choose, {once: true});'
    )
    until(browser, says("1 chosen"))
    running.park("order-10")
    until(browser, says("Not refreshed under your hands. This is the state of"))
    assert browser.execute_script(f'return document.querySelector("{box}").checked')
    assert not says("order-10")(browser)
    click(browser, By.CSS_SELECTOR, box)
    until(browser, says("order-10"))
    browser.get(url)
    click(browser, By.CSS_SELECTOR, "summary")
    browser.execute_script("window.before = document.querySelector('#live h2')")
    running.park("order-11")
    until(browser, lambda b: "6" in b.find_element(By.CSS_SELECTOR, ".tiles dd").text)
    assert browser.execute_script("return document.querySelector('details').open")
    assert browser.execute_script("return before.isConnected"), "what did not change was replaced"


def test_nothing_of_a_message_runs(browser: Chrome, served: tuple[str, Running]) -> None:
    """No dialog opens, and the text is there to be read, on a phone too."""
    url, running = served
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    browser.get(f"{url}messages?endpoint={running.endpoint}")
    click(browser, By.LINK_TEXT, '<img src=x onerror="alert(1)">\\x1b\\u202e')
    until(browser, says('<script>alert(1)</script>{"a": 1}'))
    look(browser, dark=False, width=400)
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    rights = browser.execute_script(RIGHTS)
    assert len(rights) == 2 * 7, "the whole table on a phone"
    click(browser, By.NAME, "which")
    press(browser, "Retry…")
    assert all(0 < right <= 400 for right in rights + browser.execute_script(RIGHTS))
    look(browser, dark=False, width=1280)


def test_errors_and_sending(browser: Chrome, served: tuple[str, Running]) -> None:
    """Retry all of a reason; send what the form says, line breaks and all."""
    url, running = served
    browser.get(f"{url}errors?endpoint={running.endpoint}")
    press(browser, "Look again")
    click(browser, By.NAME, "which")
    press(browser, "Retry…")
    press(browser, "Retry 2 messages")
    until(browser, says("Ended."))
    assert browser.execute_script(TEXT).count("sent to") == 2
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
    level = "return document.querySelector('input[data-for=messages]').value"
    assert browser.execute_script(level) == "3"
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
        assert says(running.endpoint)(browser)
    until(browser, says("The console does not answer."))
    assert says(running.endpoint)(browser)
