"""The protocol on HBase: the tests of §2.2, §2.4 and of the anomalies, on a real HBase.

Each class holds the tests of one module, which say what they claim; only what they stand on is
another here.
"""

from __future__ import annotations

import os
from typing import Final

from borrowed import protocol
from hbase import fixtures_in

NAMESPACE: Final = f"protocol_{os.getpid()}"


cleaner, ground = fixtures_in(NAMESPACE)
globals().update(protocol())
