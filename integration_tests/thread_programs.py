"""The programs of many threads (see `bytecap.testing.threads`) under `stagefold.compile`.

python -m integration_tests.thread_programs lock 10 [first seed]
"""

from __future__ import annotations

import sys

import stagefold
from bytecap.testing.threads import run

if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), stagefold.compile, *map(int, sys.argv[3:]), limit=300.0)
