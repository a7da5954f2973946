"""Builds llama.cpp's own page and drives it in a browser against `llama-appliance llama-server`.

    python3 bootstrap.py test --llama-page [ARGS]

The page comes out of the source package that llama-builds/ builds the engine from. It is built once, with the packages
that its own lock file pins and without running their scripts, beside llama.cpp's tests. Needs Node 20.19 or newer,
Chromium, and `python3 bootstrap.py web`. ARGS go to pytest, which runs tests/e2e/test_llama_page.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from run import ROOT, SOURCE, SetupError, cache_folder, exclusive, say, source_tree

TEST = "tests/e2e/test_llama_page.py"


def build(folder: Path) -> Path:
    """The folder of the page, built if it is not there. Raises SetupError."""
    page = folder / f"page-{SOURCE.version}"
    npm = shutil.which("npm")
    with exclusive(folder / ".lock", "llama.cpp's tests"):
        if (page / "index.html").is_file():
            return page
        if npm is None:
            raise SetupError(
                "llama.cpp's page is built with Node 20.19 or newer; on Debian 'apt-get install nodejs npm'"
            )
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
        page = build(cache_folder() / "upstream-suite")
    except SetupError as error:
        sys.exit(f"error: {error}")
    return subprocess.call([sys.executable, "-m", "pytest", TEST, "--llama-page", str(page), *args], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
