"""The Spark jobs, measured: the sink against plain boto3 in ``foreachPartition``.

``python benchmarks/spark.py`` runs all parts; name one to run it alone, with options of its own.
"""

from __future__ import annotations

import sys

import spark_sink

PARTS = {"sink": spark_sink.main}


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in PARTS:
        return PARTS[sys.argv[1]](sys.argv[2:])
    if len(sys.argv) > 1:
        sys.exit(f"usage: spark.py [{'|'.join(PARTS)} [OPTIONS]]")
    return max(part([]) for part in PARTS.values())


if __name__ == "__main__":
    sys.exit(main())
