"""The documentation site: it builds strictly, needs no network, and says what the code says. Its quick start,
pasted from README, is what `sqsdelay local` prints, and works."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import signal
import socket
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

import sqsdelay
from tests.patience import PATIENCE_SECONDS, ended
from tests.services.chromium import chromium
from tests.services.network import serving
from tests.services.processes import ROOT, running

_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\"\s>]+)|<link\b([^>]*)>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it; a link, an anchor or a page that is missing fails it."""
    folder = tmp_path_factory.mktemp("site")
    done = ended(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_of_every_page(site: Path) -> None:
    """And without the tool that builds it."""
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert built - pages == {
        Path(f"{name}.md") for name in ("404", "changelog", "index", "security")
    }
    assert pages <= built
    assert not (site / "docstrings.py").exists()


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    """A section each, as the program has them now; and the search index knows it."""
    page, index = (site / "commands.html").read_text(), (site / "search" / "search_index.json")
    for command in ("send", "consume", "endpoint check", "store migrate", "pipeline schedule"):
        assert f">sqsdelay {command}<" in page
    assert "--park-after" in page
    assert "--park-after" in index.read_text()


@pytest.mark.nightly
def test_the_search_finds_an_option_as_it_is_written(site: Path) -> None:
    """Dashes and all, which the search would take for "without this word"."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with serving(handler) as url, chromium() as browser:
        browser.get(f"{url}/index.html")
        field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
        browser.execute_script("arguments[0].focus()", field)
        field.send_keys("--park-after")
        found = (By.CSS_SELECTOR, ".md-search-result__item")
        # The list is drawn anew with each letter: Chrome has several words for what is gone.
        WebDriverWait(browser, PATIENCE_SECONDS, 0.5, [WebDriverException]).until(
            lambda shown: any("park-after" in each.text for each in shown.find_elements(*found))
        )


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    """Fonts, scripts, images and styles are the site's own."""
    for page in site.rglob("*.html"):
        for source, link in _LOADED.findall(page.read_text()):
            loaded = source or ("" if "canonical" in link else link)
            assert "//" not in loaded.replace("data:image/svg+xml", ""), f"{page.name}: {loaded}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style


def test_the_readmes_links_lead_somewhere(site: Path) -> None:
    """To a file of the repository and, where one is named, to a heading of its page."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 15
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            built = site / Path(path).relative_to("docs").with_suffix(".html")
            assert f'id="{anchor}"' in built.read_text(), link


def documented() -> set[str]:
    """What the API page documents, as dotted names."""
    text = (ROOT / "docs/api.md").read_text()
    return set(re.findall(r"^::: (\S+)", text, re.MULTILINE))


def found(name: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        return importlib.import_module(name)


def public() -> dict[str, Any]:
    """Every name in the ``__all__`` of sqsdelay and its packages."""
    packages: list[ModuleType] = [sqsdelay]
    for package in pkgutil.walk_packages(sqsdelay.__path__, "sqsdelay."):
        if package.ispkg and not package.name.startswith("sqsdelay.cli"):
            packages.append(importlib.import_module(package.name))
    return {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in packages
        for name in getattr(package, "__all__", ())
    }


def test_the_api_page_and_all_agree() -> None:
    """What is public is documented, under one of its names at least, and what is documented exists."""
    shown = [found(name) for name in documented()]
    names = documented()
    missing = [
        name
        for name, value in public().items()
        if name not in names and not any(value is each for each in shown)
    ]
    assert missing == [], f"add '::: {missing[0]}' to docs/api.md"


def test_what_is_public_has_a_docstring() -> None:
    """The reference is made of them."""
    bare = [
        name
        for name, value in public().items()
        if (isinstance(value, type) or callable(value)) and not value.__doc__
    ]
    assert bare == []


def test_a_docstrings_shared_entries_become_entries() -> None:
    """Each name its own, with the words they share, or those of its class."""
    separated = run_path(str(ROOT / "docs/docstrings.py"))["separated"]
    text = (
        "Do it.\n\nArgs:\n    a, b: as before;\n        for long.\n\n"
        "Raises:\n    Gone, Away,\n    Lost\n    Broken: it broke."
    )
    assert separated(text, {"Gone": "It is gone.", "Lost": "It is lost."}) == (
        "Do it.\n\nArgs:\n    a: as before;\n    b: as before;\n        for long.\n\n"
        "Raises:\n    Gone: It is gone.\n    Away:\n    Lost: It is lost.\n    Broken: it broke."
    )


PRINTED_PORT = re.compile(r"127\.0\.0\.1:\d+")
COMMAND = Path(sys.executable).parent / "sqsdelay"


def pasted(page: str) -> list[str]:
    """The lines to paste into another terminal."""
    text = (ROOT / page).read_text()
    (block,) = re.findall(r"```console\n(export AWS_ENDPOINT_URL.*?)```", text, re.DOTALL)
    return str(block).splitlines()


def test_the_pasted_lines_show_an_arrival() -> None:
    """From the first send to its arrival in one go: with a short hop, that is seconds."""
    with running("local", "--port", "0", env={}, program=[str(COMMAND)]) as served:
        served.wait_for("Stop with Ctrl-C")
        shown = [line.strip() for line in served.text.splitlines() if line.startswith("  ")]
        assert [each.replace(".venv/bin/", "") for each in pasted("README.md")] == [
            PRINTED_PORT.sub("127.0.0.1:4566", each).replace(f"{COMMAND.parent}/", "")
            for each in shown
        ]
        done = ended(
            ["bash", "-euc", "\n".join(shown)],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stderr
        sent, arrived = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
        assert "delay-queue" in sent
        assert arrived.endswith("hello from the future")
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == 0
    assert "1 handed-over" in served.text


def test_a_port_that_is_taken_is_told() -> None:
    """Another local AWS may be running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ended([COMMAND, "local", "--port", port])
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr


def test_no_bare_command_before_its_path_is_told() -> None:
    """Who types the first line of a page must find the program."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    bare = next(n for n, line in enumerate(lines) if line.startswith("sqsdelay "))
    assert any(line.startswith("export PATH=$PWD/.venv/bin") for line in lines[:bare])
