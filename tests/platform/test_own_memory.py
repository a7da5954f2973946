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

LATER = """
import trio
from appliance import upkeep
from appliance.platform.machine import own_bytes

async def main():
    upkeep.LOOK_AT_MEMORY = 0.1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upkeep.keep_small)
        await trio.sleep(0.05)
        blocks = [bytes(4096) for _ in range(20_000)]
        kept = blocks[::50]
        await trio.sleep(1)  # they are looked at while all of them are in use
        del blocks
        before = own_bytes()
        with trio.move_on_after(10):
            while (before - own_bytes()) >> 20 < 50:
                await trio.sleep(0.05)
        print((before - own_bytes()) >> 20)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give back by themselves")
@pytest.mark.parametrize("script", [FREED, LATER], ids=["freed", "freed after a look"])
def test_what_lies_between_things_in_use_is_given_back(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 40, "MiB of the 78 that were freed"
