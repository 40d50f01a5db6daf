"""What pages show: how endpoints are, and templates in which whatever stands in a value is text."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sqsdelay.console.sampling import GONE_SECONDS, OLD_SECONDS, Sample
from sqsdelay.console.services import Services
from sqsdelay.console.source import BODY_SHOWN, Body, BrokerStatus, Source, text_of
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS, SCHEDULE_SECONDS
from sqsdelay.core.message import Attribute
from sqsdelay.core.readable import age, instant, one_line, plain
from sqsdelay.cost import dollars
from sqsdelay.errors import SqsDelayError
from sqsdelay.ledger.events import Source as Recorder
from sqsdelay.operating.status import OVERDUE_MARGIN_SECONDS, EndpointStatus, Role, StoreStatus

LATELY_SECONDS: Final = {Recorder.CONSUMER: 20, Recorder.DISPATCHER: SCHEDULE_SECONDS}
"""Within which a worker that records something is at work: a long poll, a run of the deployed one."""
UNSERVED_SECONDS: Final = 30
"""How long messages may be receivable while nobody receives: a Lambda poller takes up to 20 s."""


def troubles(services: Services, *, ask: bool) -> list[str]:
    """What is down or does not answer, in its own words; without ``ask``, as far as it is known."""
    found: list[str] = []
    now_ms, sources = services.clock.now_ms(), services.sources.values()
    for source in sources if ask else ():
        source.start()
    for source in sources:
        broker = "SQS" if source.on_sqs else "RabbitMQ"
        for what, sampled, awaited in (
            ("Store", source.store_sample, ask),
            (broker, source.queues_sample, ask),
            ("Error queue", source.errors_sample, False),
            ("Ages of the oldest messages", source.ages_sample, False),
        ):
            each: Sample[Any] = sampled.get() if awaited else sampled.known()
            seconds = 0 if each.trouble_ms is None else (now_ms - each.trouble_ms) // 1000
            ago = f" ({age(seconds)} ago)" if seconds > OLD_SECONDS else ""
            faults = [f"{each.trouble}{ago}"] if each.trouble else []
            seconds = each.age_seconds(now_ms)
            if isinstance(each.value, BrokerStatus) and seconds <= GONE_SECONDS:
                old = f" ({age(seconds)} old)" if seconds > OLD_SECONDS else ""
                faults += [f"{fault}{old}" for fault in each.value.faults]
            found += [f"{what}, {source.name}: {fault}" for fault in faults]
    try:
        services.ledger.tail()
    except SqsDelayError as error:
        found.append(f"Ledger: {one_line(error)}")
    return found


def states_of(services: Services, span: str) -> list[dict[str, Any]]:
    """Every endpoint, and what its numbers mean; all are asked at once."""
    sources = services.sources.values()
    for source in sources:
        source.start()
        source.outlooks[span].start()
    return [_state_of(services, source, source.outlooks[span].get()) for source in sources]


def _state_of(services: Services, source: Source, due: Sample[Any]) -> dict[str, Any]:
    now_ms, ledger = services.clock.now_ms(), services.ledger
    queues, store = source.queues_sample.get(), source.store_sample.get()
    lateness, seen = dict[str, int](), dict[Recorder, int]()
    # `troubles` says why a ledger cannot be read.
    with suppress(SqsDelayError):
        lateness, seen = ledger.lateness(source.name), ledger.last_seen_ms(source.name)
    # EventBridge Scheduler releases by itself.
    dispatched = source.store_url and not source.store_url.startswith("scheduler:")
    workers = []
    for name, recorder, sample, here, judged in (
        ("delay consumer", Recorder.CONSUMER, queues, source.on_sqs, _consumer),
        ("dispatcher", Recorder.DISPATCHER, store, dispatched, _dispatcher),
    ):
        seen_ms = seen.get(recorder)
        lately = abs(now_ms - (seen_ms or 0)) <= LATELY_SECONDS[recorder] * 1000
        value: Any = sample.value if sample.tells(now_ms) else None
        if here:
            state, text = judged(source, value, lately=lately)
            workers.append((name, sample, seen_ms, state or sample.unknown, text))
    return {
        "source": source,
        "outlook": due,
        "lateness": lateness,
        "workers": workers,
        "late_copies": _late_copies(source, queues.value),
    }


def _consumer(source: Source, queues: EndpointStatus | None, *, lately: bool) -> tuple[str, str]:
    """A worker's state, empty where it is not known, and what that is concluded from."""
    if queues is None:
        source.unmoved = None
        return "", "its queues cannot be read"
    waiting = sum(q.visible for q in queues.queues if q.role in (Role.DELAY, Role.DUE))
    now, in_hand = source.clock.monotonic(), queues.in_flight
    seen = (in_hand, in_hand and waiting) if in_hand or waiting else None  # more may come to wait
    since, watched, before = source.unmoved or (now, now, seen)
    # What was there when nobody looked may have been received, and be others now.
    since = since if seen == before and now - watched <= OLD_SECONDS else now
    source.unmoved = (since, now, seen) if seen else None
    if lately and not in_hand:
        return "working", "recorded something just now"
    if in_hand and (lately or now - since <= OLD_SECONDS):
        return "working", f"has {in_hand:,} messages in hand"
    if in_hand:
        return "unknown", f"{in_hand:,} messages in hand, the same for {now - since:.0f} s"
    received = f"{waiting:,} messages can be received"
    if now - since > UNSERVED_SECONDS:
        return "not seen", f"{received}, and none has been for {now - since:.0f} s"
    return "idle", received if waiting else "no message waits for it"


def _dispatcher(_: Source, parked: StoreStatus | None, *, lately: bool) -> tuple[str, str]:
    if parked is None:
        return "", "its store cannot be read"
    if parked.overdue:
        return "not seen", f"the earliest message is {age(parked.late_ms // 1000)} overdue"
    if lately:
        return "working", "recorded something just now"
    return "idle", "a message has just become due" if parked.late_ms else "nothing is due"


def _late_copies(source: Source, queues: object) -> list[tuple[str, Any]]:
    """What the deployed alarms ring for, as far as CloudWatch tells."""
    served = {Role.DELAY: source.settings.hop_seconds, Role.DUE: MAX_MESSAGE_TIMER_SECONDS}
    return [
        ("OldestMessage" if queue.role is Role.DELAY else "OldestDueMessage", queue)
        for queue in (queues.queues if isinstance(queues, EndpointStatus) else ())
        if queue.role in served
        and (queue.oldest_seconds or 0) > served[queue.role] + OVERDUE_MARGIN_SECONDS
    ]


def top_of(counts: Sequence[int]) -> int:
    """The top of a scale for them: 1, 2 or 5 times a power of ten."""
    number = max(1, *counts)
    power: int = 10 ** (len(str(number)) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)


def edge(epoch_ms: int, span: str) -> str:
    """Where a span begins, as short as it can be told from its neighbours."""
    shown = instant(epoch_ms).replace("T", " ")
    return {"hours": shown[5:16], "days": shown[5:10], "months": shown[:7]}[span]


UNKNOWN: Final = "\u2013"


def finalized(value: Any) -> Any:
    """A value as a template prints it: without what acts on a screen, whoever wrote it."""
    if value is None:
        return UNKNOWN
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def wire(text: str) -> str:
    """Text for a form's hidden value or a URL's query: a browser alters neither."""
    return quote(text, safe="", errors="surrogatepass")


def pretty(text: str) -> str:
    """JSON with indents, as far as it is shown; anything else, and JSON that would lose by it, as it is."""
    shown = ""
    try:
        parsed = json.loads(text)
        # Keys that occur twice and numbers no float has would be lost in silence.
        whole = "".join(json.dumps(parsed, ensure_ascii=False).split()) == "".join(text.split())
        if not (whole and isinstance(parsed, dict | list)):
            return text
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(parsed):
            shown += part
            # A thousand brackets make a million spaces.
            if len(shown) > BODY_SHOWN:
                break
    except (ValueError, RecursionError):
        return text
    return shown


def attribute(value: Attribute) -> str:
    if "BinaryValue" in value:
        return base64.b64encode(value["BinaryValue"]).decode("ascii")
    return text_of(value["StringValue"])


def late(milliseconds: int) -> str:
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1000:.2f} s"
    return ("-" if milliseconds < 0 else "") + age(abs(milliseconds) // 1000)


def templates(services: Services) -> Environment:
    """The templates of a console; what they say of ages goes by its clock."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    now_ms = services.clock.now_ms

    def relative(epoch_ms: int) -> str:
        seconds = round((epoch_ms - now_ms()) / 1000)
        return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"

    def gone(sample: Sample[Any]) -> bool:
        return sample.age_seconds(now_ms()) > GONE_SECONDS

    def old(sample: Sample[Any]) -> str:
        seconds = sample.age_seconds(now_ms())
        told = f"{age(seconds)} old" if seconds > OLD_SECONDS else ""
        return sample.unknown if seconds > GONE_SECONDS else told

    shared = (age, attribute, dollars, edge, gone, instant, late, old, pretty, relative, text_of)
    found.filters |= {each.__name__: each for each in (*shared, top_of, wire)}
    others: dict[str, Any] = {
        "at": lambda epoch_ms: instant(epoch_ms)[:19].replace("T", " "),
        "count": lambda number: UNKNOWN if number is None else f"{number:,}",
        "line": one_line,
        "shown": Body.of,
        # What the visitor has typed goes back into its field as it was.
        "typed": escape,
    }
    found.filters |= others
    numbers = {"body_shown": BODY_SHOWN, "old_seconds": OLD_SECONDS}
    found.globals |= {**numbers, "version": version("sqsdelay")}
    return found


def page(
    request: Request, template: str, status: int = 200, *, of: Source | None = None, **values: Any
) -> Response:
    """A page, ``of`` an endpoint or none; who looks, what is shown and what is down is added."""
    services: Services = request.app.state.services
    theme, path = request.cookies.get("sqsdelay_theme"), request.url.path
    values |= {
        "visitor": request.state.visitor,
        "csrf": request.session.get("csrf", ""),
        "access": services.access,
        "endpoints": list(services.sources),
        "troubles": [] if path == "/sign-in" else troubles(services, ask=path != "/cost"),
        "theme": theme if theme in ("light", "dark") else "auto",
        "path": path,
        "has_ledger": services.settings.ledger is not None,
    }
    if of is not None:
        values |= {"source": of, "endpoint": of.name, "can_release": of.soonest_seconds is None}
    found: Environment = request.app.state.templates
    return HTMLResponse(found.get_template(template).render(values), status)
