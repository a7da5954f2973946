"""Memory that this process has freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREED = """
from appliance.platform.machine import give_back_memory, own_bytes
blocks = [bytes(4096) for _ in range(20_000)]
kept = blocks[::50]
del blocks
before = own_bytes()
give_back_memory()
print((before - own_bytes()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give back by themselves")
def test_what_lies_between_things_in_use_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 40, "MiB of the 78 that were freed"
