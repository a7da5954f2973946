"""The configuration in force and the files it comes from: what is noticed, what is refused, what is kept."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from waiting import until

from appliance import trio_parts
from appliance.catalog.configuration import ConfigInForce, Files
from appliance.core.config.types import Config
from appliance.errors import Conflict, InvalidConfig, UsageError
from appliance.trio_parts import SETTLED, Changed

WATCH_EVERY = 0.1


class Followed:
    """A configuration, and what its follower was given."""

    def __init__(self, config: Path | None, folder: Path | None = None) -> None:
        files = Files(config=config, config_dir=folder)
        read = files.read()
        self.configuration = ConfigInForce(files, read.require(), read.ports, (self.follow,))
        self.seen: list[list[str]] = []
        self.refuse: UsageError | None = None
        self._news = Changed()

    def follow(self, config: Config) -> Iterable[str]:
        if self.refuse is not None:
            raise self.refuse
        self.seen.append(list(config.models))
        self._news.wake()
        return ()

    async def wait_for(self, *models: str) -> None:
        await until(lambda: self.seen[-1:] == [list(models)], changed=self._news.wait)


@asynccontextmanager
async def watched(
    config: Path | None, folder: Path | None = None, *, before: Callable[[], object] = lambda: None
) -> AsyncGenerator[Followed]:
    """``before`` is called between the first reading and the first look."""
    followed = Followed(config, folder)
    before()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.configuration.watch)
        yield followed
        nursery.cancel_scope.cancel()


def write(path: Path, *models: str) -> Path:
    path.write_text("".join(("models:\n", *(f"  {model}: {{cmd: 'serve ${{PORT}}'}}\n" for model in models))), "utf-8")
    return path


def ports(configuration: ConfigInForce) -> dict[str, str]:
    return {name: model.proxy.rpartition(":")[2] for name, model in configuration.current.models.items()}


# ---- reading again ---------------------------------------------------------------------------------------------------


def test_files_that_have_not_changed_are_not_understood_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_TEST_TTL", "5")
    path = write(tmp_path / "c.yaml", "m", "n")
    path.write_text(path.read_text() + "globalTTL: ${env.APPLIANCE_TEST_TTL}\nunknown: 1\n")
    files = Files(config=path)
    first = files.read()
    assert files.read(first.ports) is first
    assert files.read({**first.ports, "gone": 5900}) is first
    assert Files(config=path).read({**first.ports, "gone": 5900}) == first, "and would be understood as the same"
    assert len(first.warnings) == 1

    other_port = files.read({**first.ports, "n": 5950})
    assert other_port.require().models["n"].proxy == "http://localhost:5950"
    monkeypatch.setenv("APPLIANCE_TEST_TTL", "6")
    assert files.read(first.ports).require().global_ttl == 6
    write(path, "m", "n")
    assert files.read(first.ports).require().global_ttl == 0
    path.write_text("models: [")
    assert files.read(first.ports).config is None
    assert files.read(first.ports).config is None
    write(path, "m", "n")
    assert files.read(first.ports).config == files.read(first.ports).config


# ---- reload ----------------------------------------------------------------------------------------------------------


async def test_models_keep_their_ports_also_when_they_were_away(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "m", "n")
    configuration = Followed(path).configuration
    assert ports(configuration) == {"m": "5800", "n": "5801"}
    for models, expected in (
        (("a", "n"), {"a": "5802", "n": "5801"}),
        (("b", "n"), {"b": "5803", "n": "5801"}),
        (("a", "b", "m", "n"), {"a": "5802", "b": "5803", "m": "5800", "n": "5801"}),
    ):
        write(path, *models)
        await configuration.reload()
        assert ports(configuration) == expected
    for first in (7000, 5000):
        write(path, "a", "b", "m", "n")
        path.write_text(f"startPort: {first}\n{path.read_text()}")
        await configuration.reload()
        assert ports(configuration) == {name: str(first + n) for n, name in enumerate("abmn")}


async def test_nothing_is_done_for_what_says_the_same(tmp_path: Path) -> None:
    followed = Followed(write(tmp_path / "c.yaml", "m", "n"))
    (tmp_path / "c.yaml").write_text("# a comment\n" + (tmp_path / "c.yaml").read_text())
    assert (await followed.configuration.reload()).changed == ()
    assert followed.seen == []
    write(tmp_path / "c.yaml", "n", "m")  # the order may decide between things that are equally good
    await followed.configuration.reload()
    assert followed.seen == [["n", "m"]]


async def test_what_a_follower_refuses_is_not_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(write(tmp_path / "c.yaml", "m"))
    write(tmp_path / "c.yaml", "n")
    followed.refuse = UsageError("not like this")
    with pytest.raises(UsageError, match="not like this"):
        await followed.configuration.reload()
    assert list(followed.configuration.current.models) == ["m"]
    assert "not like this" in caplog.text
    followed.refuse = None
    await followed.configuration.reload()
    assert followed.seen == [["n"]]


async def test_every_mistake_is_a_record_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "c.yaml", "m")
    followed = Followed(path)
    path.write_text("startPort: x\nmodels: {m: {ttl: -3}}\n")
    with pytest.raises(InvalidConfig) as refused:
        await followed.configuration.reload()
    assert len(refused.value.problems) == 2
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[0] for line in told[1:]] == [f"{path}:1:12", f"{path}:2:19"]
    caplog.clear()
    await followed.configuration.reload_quietly()
    assert [record.getMessage() for record in caplog.records] == told


async def test_a_reload_that_comes_during_another_is_refused_or_waits(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "m")
    followed = Followed(path)
    write(path, *(f"m{n}" for n in range(500)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.configuration.reload)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Conflict):
            await followed.configuration.reload()
        nursery.start_soon(followed.configuration.reload_quietly)
        await trio.testing.wait_all_tasks_blocked()
        write(path, "last")  # the first may have read the file by now
    assert followed.seen[-1] == ["last"]
    assert len(followed.seen) <= 2


# ---- watching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio_parts, "WATCH_EVERY", WATCH_EVERY)


@pytest.mark.usefixtures("looks_often")
async def test_files_that_vanish_come_back_or_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "m")
    async with watched(path, before=lambda: write(path, "early")) as followed:
        await followed.wait_for("early")
        path.unlink()
        await trio.sleep(WATCH_EVERY + SETTLED)  # it is looked at, and nothing follows
        assert list(followed.configuration.current.models) == ["early"]
        write(path, "n")
        await followed.wait_for("n")
        # as editors do, and with everything but the content the same
        other = write(tmp_path / "c.yaml~", "o")
        status = path.stat()
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
        await followed.wait_for("o")
        path.write_text("models: [")
        await trio.sleep(WATCH_EVERY + 2 * SETTLED)  # as above
        write(path, "p")
        await followed.wait_for("p")
        assert followed.seen == [["early"], ["n"], ["o"], ["p"]]


@pytest.mark.usefixtures("looks_often")
async def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "m", "n")
    async with watched(path) as followed:
        text = path.read_text()
        end = trio.current_time() + WATCH_EVERY + 3 * SETTLED
        with path.open("w") as file:  # it is empty for a moment, which would be a configuration without models
            while trio.current_time() < end:
                file.write("#" * 10 + "\n")
                file.flush()
                await trio.sleep(SETTLED / 5)  # before it counts as written
            file.write(text.replace("n:", "o:"))
        await followed.wait_for("m", "o")
        assert followed.seen == [["m", "o"]]


@pytest.mark.usefixtures("looks_often")
async def test_a_folder_whose_files_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    write(folder / "a.yaml", "m")
    async with watched(None, folder) as followed:
        write(folder / "b.yml", "n")
        await followed.wait_for("m", "n")
        (folder / "ignored.txt").write_text("models: {x: {}}")
        (folder / "a.yaml").unlink()
        await followed.wait_for("n")
        (folder / "b.yml").unlink()
        await trio.sleep(WATCH_EVERY + 2 * SETTLED)  # as above
        assert list(followed.configuration.current.models) == ["n"]
        write(folder / "c.yaml", "o")
        await followed.wait_for("o")
