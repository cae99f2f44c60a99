"""Tests of a cluster: three nodes on this machine, on 127.0.0.1."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from three_nodes import _marked, nodes  # noqa: F401 (fixtures)
