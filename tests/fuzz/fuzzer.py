"""One run of libFuzzer on one target, by atheris: a process of its own, for it ends the process."""

from __future__ import annotations

import logging
import sys

import atheris

with atheris.instrument_imports(include=["sqsdelay"]):
    # Stores are imported only as they are opened: here, so that they are instrumented.
    import sqsdelay.stores.postgres.postgres_store
    import sqsdelay.stores.sqlite.sqlite_store  # noqa: F401
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()
