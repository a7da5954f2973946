"""The configuration in force and the files it comes from: which are read, what is noticed, refused and kept."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from two_users import STRANGER, acting_as, open_folder
from waiting import until

from appliance import trio_parts
from appliance.catalog.configuration import LARGEST, ConfigInForce, Files, config_paths, read_sources, sources_below
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


def refused(config: Path | None, folder: Path | None) -> str:
    with pytest.raises(UsageError) as raised:
        read_sources(config, folder)
    return str(raised.value)


def test_one_file(tmp_path: Path) -> None:
    path = tmp_path / "anything.conf"
    path.write_bytes(b"\xef\xbb\xbfname: \xc3\xa9\r\n")
    (source,) = read_sources(path, None)
    assert (source.file, source.text) == (str(path), "name: é\r\n")


def test_a_folder_by_name_without_its_folders_and_other_files(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "C.yaml", "d.json", "e.YAML", ".hidden.yml"):
        (tmp_path / name).write_text(f"# {name}")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "folder.yaml" / "x.yaml").write_text("")
    assert [Path(source.file).name for source in read_sources(None, tmp_path)] == [
        ".hidden.yml",
        "C.yaml",
        "a.yaml",
        "b.yml",
    ]


def test_the_file_is_the_base_of_the_folder_and_is_not_read_twice(tmp_path: Path) -> None:
    folder, other = tmp_path / "d", tmp_path / "z.yaml"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    other.write_text("z")
    assert [source.text for source in read_sources(other, folder)] == ["z", "a"]
    (tmp_path / "link").hardlink_to(folder / "a.yaml")
    for same in (folder / "a.yaml", tmp_path / "link"):
        assert "would be read twice" in refused(same, folder)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert refused(None, None) == "there is no configuration file; name one with --config FILE"
    assert "there is no configuration file in " in refused(None, tmp_path)
    assert ".yml or .yaml" in refused(None, tmp_path)
    assert "there is no file " in refused(tmp_path / "gone.yaml", None)
    assert "there is no folder " in refused(None, tmp_path / "gone")
    assert "is a folder; name a file, or use --config-dir" in refused(tmp_path, None)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    assert f"{path}:2: is not UTF-8 text" in refused(path, None)
    assert "is not a folder; name a file with --config" in refused(None, path)
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    assert "is larger than 16 MiB" in refused(path, None)
    if sys.platform != "win32":  # which has other words
        assert "cannot be read: File name too long" in refused(tmp_path / ("x" * 300), None)


def test_a_root_gives_what_is_there(tmp_path: Path) -> None:
    root, named = tmp_path / "root", tmp_path / "named.yaml"
    file, folder = root / "config.yaml", root / "conf.d"
    for config in (None, named):
        assert sources_below(root, config) == (config, None)
    folder.mkdir(parents=True)
    (folder / "README").touch()
    assert sources_below(root, None) == (None, None)
    (folder / "10-fleet.yaml").touch()
    assert sources_below(root, None) == (None, folder)
    file.touch()
    assert sources_below(root, None) == (file, folder)
    assert sources_below(root, named) == (named, folder)
    folder.rename(root / "elsewhere")
    folder.touch()
    with pytest.raises(UsageError, match="is not a folder"):
        sources_below(root, None)


@pytest.mark.needs("root")
def test_a_root_that_must_not_be_entered_is_an_error_and_not_an_empty_one() -> None:
    with open_folder() as folder:
        root = folder / "root"
        root.mkdir(mode=0o700)
        with acting_as(STRANGER), pytest.raises(UsageError, match="Permission denied; let the server's user into"):
            sources_below(root, None)


def test_paths_to_watch_need_not_be_there(tmp_path: Path) -> None:
    folder, file = tmp_path / "d", tmp_path / "c.yaml"
    assert config_paths(None, None) == []
    assert config_paths(file, folder) == [file]
    folder.mkdir()
    (folder / "b.yml").write_text("")
    (folder / "a.yaml").write_text("")
    assert config_paths(file, folder) == [file, folder / "a.yaml", folder / "b.yml"]
