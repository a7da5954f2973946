"""The bench is beside the package, and runs on Linux alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))

collect_ignore = [] if sys.platform == "linux" else ["test_bench.py"]
