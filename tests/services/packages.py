"""What tests install: from Debian, from PyPI, and sqsdelay itself as a wheel."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqsdelay.cdk.function_code import functions_archive
from tests.patience import ended
from tests.services.processes import ROOT

_SECONDS: Final = 280
_LOCK: Final = Path(tempfile.gettempdir()) / "sqsdelay-tests-apt.lock"


def install(*packages: str, unless: Callable[[], bool], instead: str = "") -> None:
    """Install packages unless what they bring is there; one process of the tests at a time.

    Args:
        instead: another remedy for who is not root.

    Raises:
        RuntimeError: something is missing, and only root may install it.
    """
    if unless():
        return
    if os.geteuid() != 0:
        raise RuntimeError(f"missing: apt-get install {' '.join(packages)}{instead}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if unless():
            return  # another process has installed it meanwhile
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(
                ["apt-get", "-qq", *command],
                env=environment,
                check=True,
                timeout=_SECONDS,
                stdout=subprocess.DEVNULL,
            )


AWS_CLI: Final = "awscli==1.46.3"

_PHP: Final = Path("/usr/share/php/AsyncAws/Sqs/autoload.php")
_GO: Final = Path("/usr/share/gocode/src/github.com")
_GO_SDK: Final = _GO / "aws" / "aws-sdk-go-v2" / "service" / "sqs"
_GO_UUID: Final = _GO / "google" / "uuid"


def php() -> Path:
    """Install PHP with AsyncAws; returns the file that loads it."""
    install(
        "php-cli",
        "php-async-aws-sqs",
        unless=lambda: shutil.which("php") is not None and _PHP.exists(),
    )
    return _PHP


def go() -> dict[str, str]:
    """Install Go with AWS's SDK; returns the environment in which its packages are found."""
    install(
        "golang-go",
        "golang-github-aws-aws-sdk-go-v2-dev",
        "golang-github-google-uuid-dev",
        unless=lambda: shutil.which("go") is not None and _GO_SDK.exists() and _GO_UUID.exists(),
    )
    cache = ROOT / "build" / "go"  # a second run need not compile the SDK
    return {"GO111MODULE": "off", "GOPATH": str(_GO.parents[1]), "GOCACHE": str(cache)}


def aws_cli() -> str:
    """The AWS CLI as a word of a shell: the machine's own, or one installed from PyPI."""
    if found := shutil.which("aws"):
        return shlex.quote(found)
    folder = _from_pypi(AWS_CLI)
    return f"PYTHONPATH={shlex.quote(str(folder))} {shlex.quote(sys.executable)} -m awscli"


def older_celery(version: str) -> Path:
    """The folder with this Celery, and the kombu of its time: the last of each series."""
    kombu = {"5.5.3": "5.5.4", "5.6.3": "5.6.2"}[version]
    return _from_pypi(f"celery=={version}", f"kombu=={kombu}", "--no-deps")


def _from_pypi(package: str, *more: str) -> Path:
    """A folder to go before this Python's packages, made the first time."""
    folder = ROOT / "build" / package.replace("==", "-")
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Of an older CDK's 200 MB a test imports a few modules: compiling all took most of its time.
        wanted = ["--no-compile", "--target", str(folder), package, *more]
        subprocess.run([*pip, *wanted], check=True, timeout=_SECONDS)
        (folder / "installed").touch()
    return folder


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run to the end; returns what it printed."""
    arguments = [str(part) for part in command]
    done = ended(arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files(folder: Path) -> set[str]:
    """What of the package stands in a folder."""
    return {
        str(path.relative_to(folder))
        for path in (folder / "sqsdelay").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def older_cdk(version: str) -> Path:
    """The folder with this aws-cdk-lib, and what it needs."""
    return _from_pypi(f"aws-cdk-lib=={version}", "constructs<11")


def build_wheel(folder: Path, *, archive: bool = True) -> Path:
    """Built from a copy: a build in place would pick up what an earlier one left behind.

    Args:
        archive: the functions' archive is there, as after an earlier build of the same sources.
    """
    sources = folder / "sources"
    functions = {
        str(p.relative_to(ROOT)) for p in (ROOT / "lambdas").rglob("*.*") if p.suffix != ".pyc"
    }
    built = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}
    if archive:
        built.add(str(functions_archive().relative_to(ROOT)))
    for name in package_files(ROOT) | functions | built:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    # What pip calls, without pip.
    program = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", program, folder, folder=sources)
    (wheel,) = folder.glob("sqsdelay-*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel; returns its Python.

    The dependencies are this environment's: they are the pinned ones.
    """
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", "--quiet", wheel)
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(here)
    return python
