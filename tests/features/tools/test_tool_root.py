"""A root that the tools cannot leave, and names and repositories that were made to do something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_harness import Tools, open_builtins, put_runtimes

from appliance.core.rooted_paths import BadPath, Outside, parts_below
from appliance.errors import Forbidden, NotFound, UsageError
from appliance.platform.rooted_files import open_regular, real_root, resolved

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files and shells")

SECRET = "the secret outside"
RACE = 2.0  # seconds that the tools and the swapper run against each other


class Place:
    def __init__(self, folder: Path) -> None:
        self.outside = folder / "outside"
        self.root = folder / "root"
        (self.root / "sub" / "deep").mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret").write_text(SECRET)
        (self.root / "inside").write_text("inside")
        (self.root / "sub" / "f").write_text("in sub")
        (self.root / "link-file").symlink_to(self.outside / "secret")
        (self.root / "link-dir").symlink_to(self.outside)
        (self.root / "link-up").symlink_to("../outside")
        (self.root / "sub" / "link-in").symlink_to("../inside")
        (self.root / "sub" / "link-abs").symlink_to(self.root / "inside")
        (self.root / "loop").symlink_to("loop")
        (self.root / "dangling").symlink_to(self.outside / "new")

    def untouched(self) -> bool:
        return [path.name for path in self.outside.iterdir()] == ["secret"] and (
            self.outside / "secret"
        ).read_text() == SECRET


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


@pytest.fixture
async def tools(place: Place) -> AsyncGenerator[Tools]:
    async with open_builtins(root=place.root) as opened:
        yield opened


async def test_inside_everything_works(tools: Tools, place: Place) -> None:
    assert await tools.text("read_file", path="inside") == "inside\n"
    assert await tools.text("read_file", path=place.root / "sub" / ".." / "inside") == "inside\n"
    assert await tools.text("read_file", path="sub/link-in") == "inside\n"
    assert await tools.text("read_file", path="link-abs", cwd="sub") == "inside\n"
    await tools.call("write_file", path="a/b/c", content="new")
    assert (place.root / "a" / "b" / "c").read_text() == "new"
    await tools.call("edit_file", path="a/b/c", edits=[{"old_text": "new", "new_text": "newer"}])
    assert "sub/f:in sub" in await tools.text("grep_search", path=".", pattern="in")
    assert (await tools.call("file_glob_search", path=place.root))["base"] == str(place.root)
    assert (await tools.call("get_info"))["cwd"] == str(place.root)


HOSTILE = (
    "../outside/secret", "link-file", "link-dir/secret", "link-up/secret", "sub/../../outside/secret", "dangling",
    "sub/deep/../../../outside/secret", "/etc/passwd", "//etc/passwd", "./../outside/secret", "loop", "..", "~/secret",
    "link-dir/../inside", "/proc/self/root/etc/passwd", "sub/link-in/../../../outside/secret",
)  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
async def test_no_tool_leaves_it(
    tools: Tools, place: Place, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(place.outside))
    for name, more in (
        ("read_file", {}),
        ("write_file", {"content": "taken"}),
        ("edit_file", {"edits": [{"old_text": "secret", "new_text": "taken"}]}),
        ("file_glob_search", {"type": "all"}),
        ("grep_search", {"pattern": ".*"}),
    ):
        body = await tools.call(name, path=path, **more)
        assert list(body) == ["error"], (name, body)
        assert SECRET not in str(body)
    assert place.untouched()


@pytest.mark.parametrize("cwd", ["..", "../outside", "link-dir", "/etc", "link-up"])
async def test_nor_does_its_working_directory(tools: Tools, place: Place, cwd: str) -> None:
    assert "error" in await tools.call("read_file", path="secret", cwd=cwd)
    assert "error" in await tools.call("write_file", path="taken", content="x", cwd=cwd)
    assert "error" in await tools.call("grep_search", path=".", pattern=".", cwd=cwd)
    assert "error" in await tools.call("get_info", cwd=cwd)
    assert place.untouched()


async def test_links_are_not_even_listed(tools: Tools, place: Place) -> None:
    text = await tools.text("file_glob_search", path=".", type="all")
    assert "link" not in text
    assert "inside" in text
    assert SECRET not in await tools.text("grep_search", path=".", pattern=".")


async def test_there_is_no_way_around(tools: Tools) -> None:
    with pytest.raises(NotFound):
        await tools.call("exec_shell_command", command="cat /etc/passwd")
    with pytest.raises(Forbidden, match="confined"):
        await tools.call("read_file", path="inside", runtime="ssh:localhost")


async def test_a_root_has_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--tools-root .*no cannot be used: No such file"):
        async with open_builtins(root=tmp_path / "no"):
            pass


PLACE_NAMES = (
    *("", ".", "..", "sub", "deep", "link-dir", "link-up", "link-in", "secret", "inside"),
    *("loop", "outside", "root", "dangling", "f"),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("jail").resolve())


@settings(max_examples=150)
@given(st.lists(st.sampled_from(PLACE_NAMES), max_size=9), st.booleans())
def test_no_path_leads_out(shared: Place, names: list[str], absolute: bool) -> None:
    root = real_root(str(shared.root))
    path = resolved(None, "/".join(names) if not absolute else f"{root}/{'/'.join(names)}", root)
    for write in (False, True):
        with suppress(OSError, BadPath), open_regular(path, root, write=write) as fd:
            assert os.path.realpath(f"/proc/self/fd/{fd}").startswith(f"{root}/") or sys.platform != "linux"
            assert SECRET.encode() not in (b"" if write else os.read(fd, 100))
    assert shared.untouched()


@given(st.text("/.ab", max_size=12))
def test_the_names_below_a_root(path: str) -> None:
    try:
        names = parts_below("/a", f"/{path}")
    except Outside:
        return
    assert not {"", "."} & set(names)
    assert [name for name in path.split("/") if name not in ("", ".")] == ["a", *names]


@pytest.fixture
def swapper(place: Place) -> Generator[None]:
    """Somebody who makes a folder a link to the outside and back, and a file, as fast as it goes."""
    stop = threading.Event()
    folder, file = place.root / "sub", place.root / "target"
    away, fresh = place.root / "away", place.root / "fresh"
    file.write_text("fine")

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):  # a tool was there first, and has made a folder of its own
                if away.exists():
                    folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
                    away.rename(folder)
                folder.rename(away)
                folder.symlink_to(place.outside)
                folder.unlink()
                away.rename(folder)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(place.outside / "secret")
            fresh.replace(file)
            fresh.write_text("fine")
            fresh.replace(file)

    thread = threading.Thread(target=swap)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("swapper")
def test_nobody_is_quick_enough(place: Place) -> None:
    root = real_root(str(place.root))
    until = time.monotonic() + RACE
    opened = 0
    while time.monotonic() < until:
        for name in ("sub/secret", "target", "sub/f", "sub/new/file"):
            for write in (False, True):
                with suppress(OSError, BadPath), open_regular(f"{root}/{name}", root, write=write) as fd:
                    opened += 1
                    if write:
                        os.write(fd, b"taken")
                    else:
                        assert SECRET.encode() not in os.read(fd, 100)
    assert opened
    assert place.untouched()


@pytest.mark.usefixtures("swapper")
async def test_searches_are_not_led_out_either(tools: Tools, place: Place) -> None:
    with trio.move_on_after(RACE):
        while True:
            assert SECRET not in str(await tools.call("grep_search", path=".", pattern="."))
            assert SECRET not in str(await tools.call("grep_search", path="sub", pattern="."))
            assert "secret" not in str(await tools.call("file_glob_search", path="sub"))
    assert place.untouched()


def test_paths_have_an_end(place: Place) -> None:
    root = real_root(str(place.root))
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(BadPath, match="names in it"), open_regular(f"{root}/{'sub/' * 300}f", root):
        pass
    (place.root / "grow").symlink_to("grow/grow")
    with pytest.raises((OSError, BadPath)), open_regular(f"{root}/grow", root):
        pass
    assert len(list(Path("/dev/fd").iterdir())) == before


NAMES = (
    *("it's", 'a "b"', "a\nb", "ends with line feeds\n\n", "\n", "$(touch owned)", "`touch owned`", "; touch owned;"),
    *("' touch owned '", "\\", "a\\' ; touch owned ; '\\", "\\\\'"),
    *("-", "-n", "--", "--help", "-exec", "~user", "a ~", "*"),
    *("[a-z]?", "${HOME}", "!!", "#x", "&1", "=", "(", "é\u2028\u202e", " ", "\t", "\r"),
)


LEADING = ("-", "-n", "--", "--help", "-exec", "~user", "*", "#x", "\n", " ")
"""Those among them that mean something at the beginning of a path."""
INNER = [name for name in NAMES if name not in LEADING]
NESTED = [(first, *INNER[at :: len(LEADING)]) for at, first in enumerate(LEADING)]
"""All of them in few paths, since every use in another place starts several processes."""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def all_names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where both runtimes are."""
    state = put_runtimes(tmp_path, monkeypatch)
    (state / "box1").symlink_to("ssh")
    return state / "ssh"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "paths"),
    [(None, [(name,) for name in NAMES]), ("docker-container:box1", NESTED), ("ssh:somewhere", NESTED)],
    ids=["here", "container", "ssh"],
)
async def test_a_name_is_a_name_whatever_is_in_it(
    there: Path, runtime: str | None, paths: list[tuple[str, ...]]
) -> None:
    async with open_builtins() as tools:
        for names in paths:
            name, folder = names[0], "/".join(names)
            path = f"{there}/{folder}/{name}"
            wrote = await tools.call("write_file", path=path, content=f"{name}|", runtime=runtime)
            assert "error" not in wrote, (names, wrote)
            assert (await trio.Path(path).read_bytes()) == f"{name}|".encode()
            read = await tools.call("read_file", path=name, cwd=f"{there}/{folder}", runtime=runtime)
            assert read["plain_text_response"].rstrip("\n") == f"{name}|".rstrip("\n"), names
            edits = [{"old_text": "|", "new_text": "!"}]
            edited = await tools.call("edit_file", path=path, edits=edits, runtime=runtime)
            assert edited.get("edits_applied") == 1, (names, edited)
            found = await tools.call("file_glob_search", path=folder, cwd=there, runtime=runtime)
            assert [entry["path"] for entry in found["entries"]] == [name], found
            assert found["base"] == f"{there}/{folder}"
            inside = await tools.call("grep_search", path=path, pattern=name, literal=True, runtime=runtime)
            assert "\n" in name or "Total matches: 1" in inside["plain_text_response"], (names, inside)
    assert names_in(there) == sorted(names[0] for names in paths)
    assert "owned" not in all_names(there), "something in a name was executed"


@pytest.fixture
def trap(there: Path) -> Path:
    """A repository whose list of files cannot be made without an object that is to be fetched, by a command."""
    folder, owned = there / "trap", there / "owned"
    folder.mkdir()

    def git(*words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(("git", *author, *words), cwd=folder, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    for name in ("in/a.txt", "out/deep/b.txt"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("needle\n")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    git("sparse-checkout", "init", "--cone", "--sparse-index")
    git("sparse-checkout", "set", "in")
    tree = git("rev-parse", "HEAD:out").strip()
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    for name, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "ssh://somewhere/x"),
        ("core.sshCommand", f"touch {owned}; false"),
    ):
        git("config", name, value)
    return folder


@pytest.mark.needs("git")
@pytest.mark.parametrize("runtime", [None, "docker-container:box1"])
async def test_a_search_runs_nothing_that_a_repository_names(trap: Path, there: Path, runtime: str | None) -> None:
    async with open_builtins() as tools:
        found = await tools.call("file_glob_search", path=trap, runtime=runtime)
        assert "in/a.txt" in [entry["path"] for entry in found["entries"]]
        told = await tools.call("grep_search", path=trap, pattern="needle", runtime=runtime)
        assert "in/a.txt" in told["plain_text_response"]
    assert "owned" not in names_in(there)
    await trio.run_process(("git", "ls-files"), cwd=trap, check=False, capture_stdout=True, capture_stderr=True)
    assert "owned" in names_in(there), "it is no trap"


@pytest.mark.slow
async def test_edits_that_take_long_hold_up_nobody(tmp_path: Path) -> None:
    file = trio.Path(tmp_path / "large.txt")
    await file.write_text("-" * 8_000_000 + "".join(f"<{n}>" for n in range(300)))
    edits = [{"old_text": f"<{n}>", "new_text": f"({n})"} for n in range(300)]
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = trio.current_time()
            await trio.sleep(0.01)
            longest = max(longest, trio.current_time() - before)

    async with open_builtins() as tools, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        began = trio.current_time()
        assert (await tools.call("edit_file", path=file, edits=edits))["edits_applied"] == 300
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert longest < took / 2
