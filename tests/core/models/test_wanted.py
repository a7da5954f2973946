"""Which files of a repository options mean, and what names outside the hub are read as."""

from __future__ import annotations

import pytest

from appliance.core.models.download import (
    SIDECARS,
    Location,
    ModelReference,
    RegistryImage,
    RemoteFile,
    WantedModel,
    parse_image,
    parse_location,
    parse_reference,
    pick,
    sidecars_of,
)
from appliance.errors import NotFound, UsageError

FILES = (
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-F16.gguf",
    "deep/plain.gguf",
    "deep/big-Q2_K-00001-of-00002.gguf",
    "deep/big-Q2_K-00002-of-00002.gguf",
    "torn/t-Q3_K-00001-of-00002.gguf",
)


def picked(name: str, *more: str, **wanted: object) -> list[str]:
    files = [RemoteFile(path, "") for path in (*FILES, *more)]
    choice = pick(WantedModel(reference=parse_reference(name), **wanted), files)  # type: ignore[arg-type]
    return [file.path for file in choice.files]


def test_by_tag_or_by_file() -> None:
    assert picked("o/r") == ["m-Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert picked("o/r:q8_0", projector=False) == ["m-Q8_0.gguf"]
    assert picked("o/r:Q8_0", file="deep/plain.gguf") == ["deep/plain.gguf", "mmproj-F16.gguf"]
    shards = ["deep/big-Q2_K-00001-of-00002.gguf", "deep/big-Q2_K-00002-of-00002.gguf"]
    assert picked("o/r", file=shards[0], projector=False) == shards
    assert picked("o/r:Q2_K", projector=False) == shards


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"file": "plain.gguf"}, "o/r has no file plain.gguf; it has deep/big-Q2_K-00001-of-00002.gguf"),
        ({"file": "torn/t-Q3_K-00001-of-00002.gguf"}, "o/r lacks torn/t-Q3_K-00002-of-00002.gguf"),
    ],
)
def test_what_is_not_there(wanted: dict[str, str], message: str) -> None:
    with pytest.raises(NotFound, match=message):
        picked("o/r", **wanted)


def test_presets_come_first_where_they_are_looked_for() -> None:
    assert picked("o/r", "preset.ini", presets=True) == ["preset.ini"]
    assert picked("o/r", "deep/preset.ini", presets=True)[0] == "m-Q4_K_M.gguf"
    assert picked("o/r", "preset.ini")[0] == "m-Q4_K_M.gguf"


def test_companions_in_place_of_a_model() -> None:
    more = ("dflash-m-Q8_0.gguf", "mtp-m-F16.gguf", "mtp-m-Q8_0.gguf")
    every = sidecars_of("")
    assert every == tuple(SIDECARS.values())
    assert picked("o/r", *more, sidecars=every) == ["mtp-m-F16.gguf"]
    assert picked("o/r:Q8_0", *more, sidecars=every) == ["mtp-m-Q8_0.gguf"]
    assert picked("o/r", *more, sidecars=sidecars_of("draft-dflash")) == ["dflash-m-Q8_0.gguf"]
    assert picked("o/r", *more, sidecars=sidecars_of("ngram-mod"), projector=False) == ["m-Q4_K_M.gguf"]
    assert picked("o/r", sidecars=every, projector=False) == ["m-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("text", "image", "endpoint", "folder"),
    [
        ("smollm2:", RegistryImage(repo="ai/smollm2"), "https://registry-1.docker.io", "docker--ai--smollm2"),
        ("ai/smollm2:135M-Q4_0", RegistryImage(repo="ai/smollm2", tag="135M-Q4_0"), None, "docker--ai--smollm2"),
        ("docker.io/me/x:1", RegistryImage(repo="me/x", tag="1"), None, "docker--me--x"),
        (
            "ghcr.io/a/b/c:1",
            RegistryImage(host="ghcr.io", repo="a/b/c", tag="1"),
            "https://ghcr.io",
            "docker--ghcr.io--a--b--c",
        ),
        ("localhost:5000/a/b", RegistryImage(host="localhost:5000", repo="a/b"), "http://localhost:5000", None),
    ],
)
def test_images(text: str, image: RegistryImage, endpoint: str | None, folder: str | None) -> None:
    found = parse_image(text)
    assert found == image
    assert found.endpoint == (endpoint or found.endpoint)
    assert found.folder == (folder or found.folder)
    assert parse_image(str(found)) == found


@pytest.mark.parametrize("text", ["", "Bad", "a/../b", "ghcr.io/", "a b", "x:.tag", "a//b", "-x"])
def test_what_is_no_image(text: str) -> None:
    with pytest.raises(UsageError, match="does not name a model in a registry"):
        parse_image(text)


def test_addresses() -> None:
    url = "https://example.org/a/m-00001-of-00002.gguf?download=true"
    found = parse_location(url, None)
    assert found == Location(url=url)
    assert found.name == "m-00001-of-00002.gguf"
    assert found.parts() == (url, url.replace("00001-of", "00002-of"))
    on_hub = "https://huggingface.co/o/r/resolve/main/deep/m.gguf?download=true"
    assert parse_location(on_hub, None) == WantedModel(reference=ModelReference("o/r"), file="deep/m.gguf")
    assert parse_location(on_hub, "mine.gguf") == Location(url=on_hub, path="mine.gguf")
    assert parse_location("https://huggingface.co/o/r/resolve/0123/m.gguf", None) == Location(
        url="https://huggingface.co/o/r/resolve/0123/m.gguf"
    )


@pytest.mark.parametrize(
    "url", ["x.gguf", "ftp://a/b", "http://a/", "http://u:p@a/b.gguf", "http://a/..", "http://a/b%5Cc"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError):
        parse_location(url, None)
