"""A hook of MkDocs: the reference of every command and option, and the pages that stand outside docs."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sqsdelay.cli import app

MARK: Final = "<!-- commands -->"
"""Where the page takes them."""


OUTSIDE: Final = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site, and the files of the repository they are."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with all it found."""
    root = Path(config.config_file_path).parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    for page, name in OUTSIDE.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, told in OUTSIDE.items():
            text = text.replace(f"]({told})", f"]({other})")
        text = text.replace("](CONTRIBUTING.md)", f"]({repository}/blob/main/CONTRIBUTING.md)")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """A section for each command."""
    return "\n".join(_commands(typer.main.get_command(app), ("sqsdelay",)))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    below = getattr(command, "commands", {})
    for name in sorted(below):
        if not below[name].hidden:
            yield from _commands(below[name], (*path, name))
    if not below:
        yield from _command(command, path)


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each
        for each in command.params
        if each.param_type_name == "option" and not each.hidden and each.name != "help"
    ]
    named = "".join(f" {each.name.upper()}" for each in arguments)
    yield f"## {' '.join(path)}\n"
    yield f"`{' '.join(path)}{named}{' [OPTIONS]' if options else ''}`\n"
    yield inspect.cleandoc(command.help or "").replace("\b", "") + "\n"
    if arguments or options:
        yield "| argument or option | meaning | default |"
        yield "|---|---|---|"
        for each in arguments:
            yield _row(each.name.upper(), each)
        for each in options:
            yield _row(", ".join([*each.opts, *each.secondary_opts]), each)
        yield ""


def _row(name: str, each: Any) -> str:
    told = re.sub(r"\s+", " ", each.help or "").replace("|", r"\|").replace("<", "&lt;").strip()
    given = each.default
    if each.required:
        default = "required"
    elif given is None or given is False or given == () or callable(given) or str(given) == "":
        default = ""
    else:
        default = f"`{getattr(given, 'value', given)}`"
    variable = f" Environment: `{each.envvar}`." if each.envvar else ""
    return f"| `{name}` | {told}{variable} | {default} |"
