"""``sqsdelay endpoint``: create an endpoint's queues, and check them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sqsdelay.cli.console import out, print_json
from sqsdelay.endpoint import Endpoint
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS

app = typer.Typer(help="Create or check an endpoint's queues.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The destination queue's name, URL or ARN.")]
Hop = Annotated[int, typer.Option(help="Delivery delay of the delay queue, seconds (1 to 900).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(endpoint: Name, hop: Hop = MAX_MESSAGE_TIMER_SECONDS, as_json: Json = False) -> None:
    """Create the queue and those that serve its delays, where they do not exist yet."""
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.endpoints import create_endpoint

    parsed = Endpoint.parse(endpoint)
    created = create_endpoint(default_client(connections=1), parsed, hop_seconds=hop)
    if as_json:
        print_json({"endpoint": parsed.name, "created": created})
        return
    for ref in parsed.queues:
        out.print(f"{'created' if ref.name in created else 'exists '}  {ref.name}", highlight=False)


@app.command()
def check(endpoint: Name, hop: Hop = MAX_MESSAGE_TIMER_SECONDS, as_json: Json = False) -> None:
    """Say what keeps an endpoint from serving delays, and how to mend it. Exit code 1 if anything."""
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.endpoints import check_endpoint

    parsed = Endpoint.parse(endpoint)
    problems = check_endpoint(default_client(connections=1), parsed, hop_seconds=hop)
    if as_json:
        print_json({"endpoint": parsed.name, "problems": [asdict(problem) for problem in problems]})
    elif not problems:
        out.print(f"{parsed.name} is fit for delays of any length", highlight=False)
    else:
        table = Table("queue", "problem", "mend it with")
        for problem in problems:
            table.add_row(problem.queue, problem.text, problem.remedy)
        out.print(table)
    if problems:
        raise typer.Exit(1)
