"""``sqsdelay local``: a local AWS with an endpoint and its worker, to try things out."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sqsdelay.cli.console import err, print_json, say, tell
from sqsdelay.cli.options import Hop
from sqsdelay.cli.worker import log_to_stderr, stop_on_signals
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.limits import DEFAULT_HOP_SECONDS

if TYPE_CHECKING:
    from sqsdelay.relaying.mover import Outcome
    from sqsdelay.testing.local_aws import LocalAws

PORT: Final = 4566
"""Where local AWS servers usually listen."""

DEFAULT_HOP: Final = 2
HOPS_SHOWN: Final = 5
"""The example's delay, in hops: seen to travel, and there within seconds."""

_EXPORTED: Final = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
)


def local(
    endpoint: Annotated[str, typer.Argument(help="The destination queue's name.")] = "orders",
    hop: Hop = DEFAULT_HOP,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the local AWS; 0: any free port.")
    ] = PORT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the environment and the commands as JSON.")
    ] = False,
) -> None:
    """Run a local AWS with an endpoint and its delay consumer.

    Runs until SIGTERM or Ctrl-C.

    Prints commands to paste into another terminal. All messages are gone when it ends.
    """
    from sqsdelay.testing.local_aws import LocalAws

    parsed = Endpoint.parse(endpoint)
    log_to_stderr()
    with ExitStack() as started:
        with err.status("starting a local AWS (ministack)"):
            aws = started.enter_context(LocalAws(port=port or None))
        _serve(aws, parsed, hop, as_json=as_json)


def _serve(aws: LocalAws, endpoint: Endpoint, hop: int, *, as_json: bool) -> None:
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.endpoints import create_endpoint

    create_endpoint(aws.client("sqs"), endpoint, hop_seconds=hop)
    counts: Counter[str] = Counter()

    def report(outcomes: Sequence[Outcome]) -> None:
        counts.update(outcome.status.value for outcome in outcomes)

    consumer = DelayConsumer(
        endpoint.name, aws.client("sqs"), hop_seconds=hop, wait_seconds=1, on_outcomes=report
    )
    stop = stop_on_signals()
    exported = {name: aws.environment()[name] for name in _EXPORTED}
    commands = _commands(endpoint.name, hop)
    if as_json:
        print_json({"environment": exported, "commands": commands})
    else:
        _print(endpoint, hop, exported, commands)
    consumer.run(stop)
    line = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"
    tell(f"stopped; {line}")


def _commands(endpoint: str, hop: int) -> list[str]:
    """What to type first. The program is named as it can be found from the same folder."""
    program = "sqsdelay" if shutil.which("sqsdelay") else shlex.quote(sys.argv[0])
    group = " --group customer-7" if endpoint.endswith(".fifo") else ""
    delay = HOPS_SHOWN * hop
    return [
        f"{program} send {endpoint} --hop {hop} --delay {delay}s --body 'hello from the future'{group}",
        f"{program} status {endpoint}",
        f"{program} receive {endpoint} --count 1",
    ]


def _print(endpoint: Endpoint, hop: int, exported: dict[str, str], commands: list[str]) -> None:
    say(
        f"{endpoint.name} accepts messages with any delay, on a local AWS that is gone when you stop it."
    )
    say(f"A hop takes {hop} s here, {DEFAULT_HOP_SECONDS} s on AWS. Paste into another terminal:")
    say("")
    say("  export " + " ".join(f"{name}={value}" for name, value in exported.items()))
    for command in commands:
        say(f"  {command}")
    say("")
    say("Stop with Ctrl-C.")
