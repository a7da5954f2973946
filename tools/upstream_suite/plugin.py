"""A pytest plugin for llama.cpp's suites: no downloads beforehand, a limit for each test, and a line for each outcome.

It is loaded with ``-p plugin`` and steered by the environment: SUITE_OUTCOMES is the file that gets the lines,
SUITE_LIMIT the seconds, SUITE_HUB the folder that stands in for huggingface.co. SUITE_MODEL_FILES, if set, names models
by their files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
import utils  # of llama.cpp's suites

HUB_HOST = "huggingface.co"
PROJECTOR = "mmproj"


class FromFolder(requests.adapters.BaseAdapter):
    """Answers what the suites themselves fetch from the hub: pictures."""

    def send(self, request: requests.PreparedRequest, **_: object) -> requests.Response:
        parts = urlsplit(request.url or "").path.strip("/").split("/")  # org, repo, "resolve", revision, then the file
        path = Path(os.environ["SUITE_HUB"], *parts[:2], *parts[4:])
        response = requests.Response()
        response.request, response.url = request, request.url or ""
        response.status_code = 200 if path.is_file() else 404
        response._content = path.read_bytes() if path.is_file() else b""
        return response

    def close(self) -> None:
        """Holds nothing."""


def fetched(url: str, out: str) -> str:
    """In place of `wget.download`, which knows nothing of `requests`."""
    org, repo, _, _, *file = urlsplit(url).path.strip("/").split("/")
    shutil.copyfile(Path(os.environ["SUITE_HUB"], org, repo, *file), out)
    return out


class OfflineSession(requests.Session):
    """What `requests.get` makes for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.mount(f"https://{HUB_HOST}/", FromFolder())


def load_all() -> None:
    """In place of a start of every model to fill the cache: it is filled."""


def pytest_configure() -> None:
    utils.ServerPreset.load_all = staticmethod(load_all)
    requests.sessions.Session = OfflineSession
    utils.wget.download = fetched
    if os.environ.get("SUITE_MODEL_FILES"):
        start = utils.ServerProcess.start
        utils.ServerProcess.start = lambda server, *args, **named: start(by_file(server), *args, **named)


def by_file(server: utils.ServerProcess) -> utils.ServerProcess:
    """Name the model, and the projector beside it, as files, where it is one that was generated."""
    if server.model_hf_repo:
        folder = Path(os.environ["SUITE_HUB"], server.model_hf_repo.partition(":")[0])
        found = [folder / server.model_hf_file] if server.model_hf_file else sorted(folder.glob("*.gguf"))
        models = [path for path in found if path.exists() and not path.name.startswith(PROJECTOR)]
        if models:
            server.model_file, server.model_hf_repo, server.model_hf_file = str(models[0]), None, None
    os.environ.pop("LLAMA_ARG_MMPROJ", None)
    beside = sorted(Path(server.model_file or "").parent.glob(f"{PROJECTOR}*.gguf")) if server.model_file else []
    if beside and not server.no_mmproj:
        os.environ["LLAMA_ARG_MMPROJ"] = str(beside[0])
    return server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs is a failed test, and not the end of the run."""
    limit = int(os.environ["SUITE_LIMIT"])

    def late(*_: object) -> None:
        raise TimeoutError(f"{item.name} was not done after {limit} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    line = {
        "test": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
        "reason": "" if report.outcome == "passed" else _reason(report),
    }
    with Path(os.environ["SUITE_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a test that was skipped
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip().split("\n", 1)[0][:300]
