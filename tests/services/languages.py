"""Other languages and their AWS SDKs, as Debian and PyPI have them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.services import debian
from tests.services.processes import ROOT

AWS_CLI: Final = "awscli==1.46.3"

_PHP: Final = Path("/usr/share/php/AsyncAws/Sqs/autoload.php")
_GO: Final = Path("/usr/share/gocode/src/github.com")
_GO_SDK: Final = _GO / "aws" / "aws-sdk-go-v2" / "service" / "sqs"
_GO_UUID: Final = _GO / "google" / "uuid"
_SECONDS: Final = 280


def php() -> Path:
    """Install PHP with AsyncAws; returns the file that loads it."""
    debian.install(
        "php-cli",
        "php-async-aws-sqs",
        unless=lambda: shutil.which("php") is not None and _PHP.exists(),
    )
    return _PHP


def go() -> dict[str, str]:
    """Install Go with AWS's SDK; returns the environment in which its packages are found."""
    debian.install(
        "golang-go",
        "golang-github-aws-aws-sdk-go-v2-dev",
        "golang-github-google-uuid-dev",
        unless=lambda: shutil.which("go") is not None and _GO_SDK.exists() and _GO_UUID.exists(),
    )
    cache = ROOT / "build" / "go"  # a second run need not compile the SDK
    return {"GO111MODULE": "off", "GOPATH": str(_GO.parents[1]), "GOCACHE": str(cache)}


def aws_cli() -> str:
    """The AWS CLI as a word of a shell: the machine's own, or one installed from PyPI."""
    found = shutil.which("aws")
    if found:
        return shlex.quote(found)
    folder = ROOT / "build" / AWS_CLI.replace("==", "-")
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(folder), AWS_CLI], check=True, timeout=_SECONDS)
        (folder / "installed").touch()
    return f"PYTHONPATH={shlex.quote(str(folder))} {shlex.quote(sys.executable)} -m awscli"
