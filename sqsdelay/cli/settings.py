"""What any command may be told besides its own options: whose AWS, where, and how much to tell."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Annotated, Any, Final

import typer

from sqsdelay.cli.worker import OneLine
from sqsdelay.errors import SqsDelayError

logger = logging.getLogger(__name__)

_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""They would win over a profile of the environment; the AWS CLI's --profile wins over them."""

_TOLD: Final = {
    "sqsdelay": logging.DEBUG,
    "botocore.credentials": logging.INFO,
    "botocore.retries": logging.DEBUG,
    "urllib3.connectionpool": logging.DEBUG,
    "pika": logging.INFO,
}
"""What --verbose shows: where credentials came from, each request and its status. No body, no secret."""

Profile = Annotated[str | None, typer.Option(help="The AWS profile, as with the AWS CLI.")]
Region = Annotated[str | None, typer.Option(help="The AWS region, as with the AWS CLI.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Log each request, and an error's cause, to stderr."),
]

Command = Callable[..., None]


def verbose(command: Command) -> Command:
    """The command, with ``--verbose``."""

    def run(arguments: dict[str, Any]) -> None:
        with _logging(arguments.pop("verbose")):
            command(**arguments)

    return _with(command, run, {"verbose": (Verbose, False)})


def with_aws(command: Command) -> Command:
    """The command, with ``--profile``, ``--region`` and ``--verbose``."""

    def run(arguments: dict[str, Any]) -> None:
        profile, region = arguments.pop("profile"), arguments.pop("region")
        with _logging(arguments.pop("verbose")), _environment(profile, region):
            command(**arguments)

    return _with(
        command,
        run,
        {"profile": (Profile, None), "region": (Region, None), "verbose": (Verbose, False)},
    )


def _with(
    command: Command, run: Callable[[dict[str, Any]], None], more: dict[str, tuple[Any, Any]]
) -> Command:
    """``command`` under its own name and help, with more options behind its own."""

    @wraps(command)
    def wrapped(**arguments: Any) -> None:
        run(arguments)

    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in more.items()
    ]
    signature = own.replace(parameters=[*own.parameters.values(), *added])
    del wrapped.__wrapped__
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return wrapped


@contextmanager
def _environment(profile: str | None, region: str | None) -> Iterator[None]:
    """The environment boto3 and child processes read, as the options have it."""
    before = dict(os.environ)
    if profile is not None:
        for key in _KEYS:
            os.environ.pop(key, None)
        os.environ["AWS_PROFILE"] = profile
    if region is not None:
        os.environ["AWS_DEFAULT_REGION"] = os.environ["AWS_REGION"] = region
    try:
        yield
    finally:
        if profile is not None or region is not None:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _logging(wanted: bool) -> Iterator[None]:
    """Log to stderr what `_TOLD` names, and the cause of an error."""
    if not wanted:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(name)s %(levelname)s %(message)s"))
    with ExitStack() as restored:
        logging.getLogger().addHandler(handler)
        restored.callback(logging.getLogger().removeHandler, handler)
        for name, level in _TOLD.items():
            restored.callback(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(level)
        try:
            yield
        except SqsDelayError as error:
            if error.__cause__ is not None:
                cause = error.__cause__
                logger.debug("the cause", exc_info=(type(cause), cause, cause.__traceback__))
            raise
