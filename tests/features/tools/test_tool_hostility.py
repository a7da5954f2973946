"""Names and repositories made by somebody who wants a tool to do something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from tool_harness import open_builtins, put_runtimes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")

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
