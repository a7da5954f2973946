"""Builds llama.cpp's own page and drives it in a browser against `llama-appliance llama-server`.

    python3 bootstrap.py test --llama-page [ARGS]

The page comes out of the source package that llama-builds/ builds the engine from. It is built once, with the packages
that its own lock file pins and without running their scripts, beside llama.cpp's tests. The packages of this program's
page, which hold the driver of the browser, and llama-server are made here as well, if they are not there. Needs Node
20.19 or newer, Chromium, and a C++ compiler. ARGS go to pytest, which runs tests/e2e/test_llama_page.py. None of its
tests is skipped: the exit status is 0 only when all that were asked for have run and passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from run import ROOT, SOURCE, SetupError, cache_folder, engine, exclusive, say, source_tree

from bootstrap import page_packages

sys.path.insert(0, str(ROOT / "tests"))
from needs import advice, is_here

TEST = "tests/e2e/test_llama_page.py"


def build(folder: Path, npm: str) -> Path:
    """The folder of the page, built if it is not there. Raises SetupError."""
    page = folder / f"page-{SOURCE.version}"
    with exclusive(folder / ".lock", "llama.cpp's tests"):
        if (page / "index.html").is_file():
            return page
        sources, partial = source_tree(folder) / "tools" / "ui", folder / f"{page.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        say(f"building llama.cpp's page into {page}")
        for command in ([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], [npm, "run", "build"]):
            environment = {**os.environ, "LLAMA_UI_OUT_DIR": str(partial)}
            if subprocess.run(command, cwd=sources, env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
                raise SetupError(f"'npm {' '.join(command[1:])}' failed in {sources}")
        partial.rename(page)
        shutil.rmtree(sources / "node_modules")  # 700 MB that nothing else needs
    return page


def main(args: list[str]) -> int:
    try:
        if missing := [advice(need) for need in ("chromium", "node", "npm") if not is_here(need)]:
            raise SetupError(f"llama.cpp's page is built and driven with {', '.join(missing)}")
        npm, _node = page_packages()
        engine()
        page = build(cache_folder() / "upstream-suite", npm)
    except SetupError as error:
        sys.exit(f"error: {error}")
    command = [sys.executable, "-m", "pytest", TEST, "--llama-page", str(page), "--all-needs", *args]
    return subprocess.call(command, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
