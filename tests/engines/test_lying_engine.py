"""The lying engine tells the lies that it is told to tell, to the program's own eyes; other tests rely on it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
import trio
from engine_folders import ABORTED, CRASHED, Lie, Listed, lie_of, make_build, tell
from engine_runs import engine_in

from appliance.core.engines.builds import MANIFEST, Build
from appliance.core.engines.trials import KNOWN
from appliance.engines.found import EXECUTABLE
from appliance.engines.trial import TrialFailed, open_trial
from appliance.platform.children import Children, describe_status, inherited_env, open_children

CARDS = (Listed(name="CUDA0", total=8192, free=8000), Listed(name="Vulkan1", description="A (B), C"))


async def listed(folder: Path, children: Children) -> tuple[int, bytes]:
    """Exit status and output of its ``--list-devices``."""
    child = await children.spawn([str(folder / EXECUTABLE), "--list-devices"], inherited_env())
    output, status = bytearray(), 0
    try:
        while chunk := await child.output.receive_some(1 << 16):
            output += chunk
    finally:
        child.kill()
        with trio.CancelScope(shield=True):
            status = await child.wait()
            await child.stdin.aclose()
            await child.output.aclose()
    return status, bytes(output).replace(b"\r\n", b"\n")


def test_its_manifest_tells_the_truth_about_its_files(tmp_path: Path) -> None:
    folder = make_build(tmp_path, "vulkan", "b7", CARDS)
    build = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Build)
    assert folder == tmp_path / build.id
    (sums,) = build.files
    assert hashlib.sha256((folder / sums.path).read_bytes()).hexdigest() == sums.sha256
    assert (folder / sums.path).stat().st_size == sums.size
    other = make_build(tmp_path, "vulkan", "b8")
    assert msgspec.json.decode((other / MANIFEST).read_bytes(), type=Build).digest != build.digest


async def test_it_lists_its_devices_as_llama_server_does(tmp_path: Path) -> None:
    folder = make_build(tmp_path, "cuda12", devices=CARDS)
    async with open_children() as children:
        lines = [
            b"Available devices:",
            b"  CUDA0: Test Card 9000 (8192 MiB, 8000 MiB free)",
            b"  Vulkan1: A (B), C (8192 MiB, 8000 MiB free)",
            b"",
        ]
        assert await listed(folder, children) == (0, b"\n".join(lines))
        tell(folder, Lie())
        assert await listed(folder, children) == (0, b"Available devices:\n  (none)\n")


async def test_it_lies_about_its_devices(tmp_path: Path) -> None:
    folder = make_build(tmp_path, "cuda12", devices=CARDS)
    async with open_children() as children:
        tell(folder, Lie(devices=CARDS, list="crash"))
        assert CRASHED in describe_status((await listed(folder, children))[0])
        tell(folder, Lie(devices=CARDS, list="fail"))
        assert (await listed(folder, children))[0] == 1
        tell(folder, Lie(devices=CARDS, list="flood"))
        assert len((await listed(folder, children))[1]) > 4 << 20
        tell(folder, Lie(devices=CARDS, list="absurd"))
        assert b"(17592186044416 MiB, 17592186044416 MiB free)" in (await listed(folder, children))[1]
        tell(folder, Lie(devices=CARDS, list="garbage"))
        assert b"CUDA0" not in (await listed(folder, children))[1]
        tell(folder, Lie(devices=CARDS, list="hang"))
        with trio.move_on_after(0.5) as scope:
            await listed(folder, children)
        assert scope.cancelled_caught


async def test_it_changes_while_it_runs(tmp_path: Path, fake_model: Path) -> None:
    folder = make_build(tmp_path, "cuda12", devices=CARDS)
    question = {"prompt": KNOWN[0].prompt, "n_predict": 64, "return_tokens": True}
    async with open_children() as children:
        trying = open_trial(engine_in(folder), ("--device", "CUDA0"), fake_model, children, seconds=10)
        async with trying as trial:
            assert KNOWN[0].content.encode() in await trial.ask("/completion", question, seconds=5)
            tell(folder, Lie(devices=CARDS, work="garbage"))
            assert b"GGGG" in await trial.ask("/completion", question, seconds=5)
            tell(folder, Lie(devices=CARDS, work="garbage", on=("Vulkan1",)))
            assert b"GGGG" not in await trial.ask("/completion", question, seconds=5)
            tell(folder, Lie(devices=CARDS, work="crash"))
            with pytest.raises(TrialFailed, match=ABORTED):
                await trial.ask("/completion", question, seconds=5)


async def test_it_crashes_in_the_middle_of_a_stream(tmp_path: Path, fake_model: Path) -> None:
    folder = make_build(tmp_path, lie=Lie(work="crash", after_tokens=3))
    question = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with (
        open_children() as children,
        open_trial(engine_in(folder), (), fake_model, children, seconds=10) as trial,
    ):
        with pytest.raises(TrialFailed, match=f"{ABORTED} at work"):
            await trial.ask("/v1/chat/completions", question, seconds=5)


def test_what_it_does_can_be_read_back(tmp_path: Path) -> None:
    folder = make_build(tmp_path, devices=CARDS, lie=Lie(load="hang"))
    assert lie_of(folder).load == "hang"
    assert [each.name for each in lie_of(folder).devices] == ["CUDA0", "Vulkan1"]
