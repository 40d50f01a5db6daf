"""100,000 messages through all levels of the S3 store on a local S3, as time passes.

Slots are seconds long, two dispatchers share them, and some messages are cancelled. Exits with 1 if anything
is lost, early, released twice, or arrives though it was cancelled.
"""

from __future__ import annotations

import argparse
import time

from sqsdelay.testing import LocalAws
from tests.acceptance.test_s3_store import play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=60, help="seconds until the first is due")
    parser.add_argument("--spread", type=int, default=120, help="seconds they are due within")
    options = parser.parse_args()
    started = time.monotonic()
    with LocalAws() as aws:
        played = play(
            aws,
            options.messages,
            first_seconds=options.first,
            spread_seconds=options.spread,
            patience_seconds=900,
        )
    print(
        f"{options.messages:,} messages due within {options.spread} s, slots of "
        f"{', '.join(str(each) for each in sorted(played.levels, reverse=True))} s: "
        f"{len(played.arrived):,} arrived, {options.messages - len(played.expected)} were cancelled; "
        f"the latest {played.latest_ms:,} ms late; {time.monotonic() - started:.0f} s in all"
    )
    for text in played.wrong():
        print(f"FAILED: {text}")
    return bool(played.wrong())


if __name__ == "__main__":
    raise SystemExit(main())
