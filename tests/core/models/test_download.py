"""Which files of which repository are meant: by references, names, addresses and options; and what an answer means."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models import transfer
from appliance.core.models.download import (
    SIDECARS,
    Location,
    ModelReference,
    RegistryImage,
    RemoteFile,
    WantedModel,
    choose,
    parse_image,
    parse_location,
    parse_reference,
    parse_wanted,
    pick,
    sidecars_of,
)
from appliance.errors import BadRequest, NotFound, UsageError


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, "a" * 64, 1) for path in paths]


SHARDS = ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"]
PROJECTED = ["m-Q8_0.gguf", "mmproj-m-F16.gguf"]
NEAREST = ["a/m-Q8_0.gguf", "a/mmproj-BF16.gguf"]


def chosen(tag: str | None, *paths: str) -> tuple[str, list[str]]:
    choice = choose(ModelReference("o/r", tag), files(*paths))
    return choice.tag, [file.path for file in choice.files]


@pytest.mark.parametrize(
    ("text", "repo", "tag"),
    [
        ("ggml-org/gemma-3-4b-it-GGUF", "ggml-org/gemma-3-4b-it-GGUF", None),
        (" o/r:q4_k_m ", "o/r", "Q4_K_M"),
        ("o/r:UD-Q4_K_XL", "o/r", "UD-Q4_K_XL"),
        ("o/r:latest", "o/r", None),
        ("hf.co/o/r:Q8_0", "o/r", "Q8_0"),
        ("https://huggingface.co/o/r", "o/r", None),
        ("https://huggingface.co/o/r/tree/main", "o/r", None),
    ],
)
def test_references(text: str, repo: str, tag: str | None) -> None:
    assert parse_reference(text) == ModelReference(repo, tag)


@pytest.mark.parametrize(
    "text", ["", "r", "o/r/x", "../r", "o/r:", "o/r:a b", "o--x/r", "https://example.com/o/r", "o\n/r"]
)
def test_what_names_no_repository_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match=r"org/repo|Q4_K_M") as raised:
        parse_reference(text)
    assert raised.value.param == "model"


@given(st.text(max_size=40))
def test_no_text_gets_out_of_the_cache(text: str) -> None:
    try:
        repo = parse_reference(text).repo
    except BadRequest:
        return
    organisation, name = repo.split("/")
    for part in (organisation, name):
        assert part not in ("", ".", "..")
        assert part.replace("-", "").replace("_", "").replace(".", "").isascii()
    assert "--" not in repo


@pytest.mark.parametrize(
    ("tag", "paths", "expected"),
    [
        (None, ["m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"], ("Q4_K_M", ["m-Q4_K_M.gguf"])),
        (None, ["m-F16.gguf", "m-Q8_0.gguf"], ("Q8_0", ["m-Q8_0.gguf"])),
        (None, ["README.md", "m-Q2_K.gguf", "m-F16.gguf"], ("F16", ["m-F16.gguf"])),
        ("Q8_0", ["m-Q4_K_M.gguf", "m.Q8_0.gguf"], ("Q8_0", ["m.Q8_0.gguf"])),
        ("UD-Q4_K_XL", ["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"])),
        ("Q4_K_XL", ["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], ("Q4_K_XL", ["m-Q4_K_XL.gguf"])),
        (None, [*SHARDS[::-1], "other-F16.gguf"], ("Q8_0", SHARDS)),
        ("Q8_0", ["m-Q8_0.gguf", "mmproj-Q8_0.gguf", *PROJECTED[1:], "mtp-m-Q8_0.gguf"], ("Q8_0", PROJECTED)),
        ("Q8_0", ["a/m-Q8_0.gguf", "a/mmproj-BF16.gguf", "mmproj-F16.gguf"], ("Q8_0", NEAREST)),
        ("Q8_0", ["a/m-Q8_0.gguf", "b/mmproj-F16.gguf"], ("Q8_0", ["a/m-Q8_0.gguf"])),
        ("Q8_0", ["a/b/m-Q8_0.gguf", "mmproj-F16.gguf"], ("Q8_0", ["a/b/m-Q8_0.gguf", "mmproj-F16.gguf"])),
    ],
)
def test_the_choice(tag: str | None, paths: list[str], expected: tuple[str, list[str]]) -> None:
    assert chosen(tag, *paths) == expected


@pytest.mark.parametrize(
    ("tag", "paths", "why"),
    [
        ("Q5_K_M", ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "no Q5_K_M; it has Q4_K_M, Q8_0"),
        (None, ["model.safetensors", "README.md"], "no GGUF model"),
        (None, ["mmproj-F16.gguf"], "no GGUF model"),
        (None, ["m-Q8_0-00002-of-00002.gguf"], "lacks m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_what_is_not_there_is_named(tag: str | None, paths: list[str], why: str) -> None:
    with pytest.raises(NotFound, match=why):
        chosen(tag, *paths)


@pytest.mark.parametrize(
    ("status", "headers", "have", "expected"),
    [
        (200, {}, 0, transfer.Continue(stop=100)),
        (200, {b"content-length": b"100"}, 0, transfer.Continue(stop=100)),
        (200, {b"content-length": b"100"}, 40, transfer.Continue(stop=100, skip=40)),
        (206, {b"content-range": b"bytes 40-99/100"}, 40, transfer.Continue(stop=100)),
        (206, {b"content-range": b"bytes 40-99/*"}, 40, transfer.Continue(stop=100)),
        (206, {b"content-range": b"bytes 40-59/100"}, 40, transfer.Continue(stop=60)),
        (206, {b"content-range": b"bytes 40-39/100"}, 40, None),
        (206, {b"content-range": b"bytes 40-100/100"}, 40, None),
        (200, {b"content-length": b"99"}, 0, None),
        (200, {b"content-encoding": b"gzip"}, 0, None),
        (206, {b"content-range": b"bytes 39-99/100"}, 40, None),
        (206, {b"content-range": b"bytes 40-98/99"}, 40, None),
        (206, {b"content-range": b"lines 1-2/3"}, 40, None),
        (206, {}, 40, None),
        (416, {b"content-range": b"bytes */30"}, 40, None),
    ],
)
def test_an_answer_goes_on_or_belongs_to_something_else(
    status: int, headers: dict[bytes, bytes], have: int, expected: transfer.Continue | None
) -> None:
    found = transfer.judge(status, headers, have, 100)
    assert found == expected or (expected is None and isinstance(found, transfer.StartOver))


def test_attempts_come_slower_and_when_the_server_wants_them() -> None:
    assert [transfer.retry_delay(number, None) for number in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert transfer.retry_delay(1, 12.0) == 12
    assert transfer.Throttle(None).take(10**12, 0.0) == 0


@given(st.integers(0, 10**30), st.integers(0, 4 * 10**9), st.sampled_from(range(4)))
def test_a_wait_is_asked_for_in_seconds_or_as_a_date(wait: int, now: int, form: int) -> None:
    if form == 0:
        assert transfer.retry_after(b" %d " % wait, now) == min(wait, transfer.MAX_RETRY_AFTER)
        return
    wait %= 10**8
    date = datetime.fromtimestamp(now + wait, UTC)
    forms = ("%a, %d %b %Y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S +0000")
    found = transfer.retry_after(date.strftime(forms[form - 1]).encode(), now)
    assert found == wait
    assert transfer.retry_after(date.strftime(forms[0]).encode(), now + wait + 5) == 0
    assert f"until {date:%Y-%m-%d %H:%M:%S} UTC" in transfer.asked_to_wait(found, now)


@given(st.none() | st.binary(max_size=40) | st.sampled_from([b"-1", b"1.5", b"soon", b"Wed, 99 Oct 2026 07:28:00 GMT"]))
def test_any_other_wait_is_none_or_bounded(value: bytes | None) -> None:
    found = transfer.retry_after(value, 0.0)
    assert found is None or 0 <= found <= transfer.MAX_RETRY_AFTER


@given(
    rate=st.integers(1, 10**9),
    steps=st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 5)), min_size=1, max_size=30),
)
def test_the_rate_is_never_exceeded_over_the_whole(rate: int, steps: list[tuple[int, float]]) -> None:
    throttle, now, taken = transfer.Throttle(rate), 100.0, 0
    for count, idle in steps:
        now += idle
        now += throttle.take(count, now)
        taken += count
    assert taken <= rate * (now - 100.0) * 1.000001 + 1


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


MIRROR = "http://10.0.0.7:8081/hub"
HOSTS = ["huggingface.co", "www.huggingface.co", "hf.co", "HuggingFace.co", "huggingface.co:443", "10.0.0.7:8081/hub"]
parts = st.text("abcXYZ019._- +%#?é", min_size=1, max_size=9).filter(lambda part: part.strip(" .") == part)
revisions = st.sampled_from(["main", "v1.0", "a" * 40, "refs/pr/7", "feature/x y", "0a1b2c3"])
folders = st.lists(parts, max_size=2)
asked = st.sampled_from(["", "?download=true", "?a=b&c", "#L1", "?not-for-all-audiences=true#x"])


@given(
    st.sampled_from(["", "https://", "http://"]), st.sampled_from(HOSTS), revisions, folders, parts, asked, st.data()
)
def test_an_address_names_its_file_and_revision(
    scheme: str, host: str, revision: str, folder: list[str], name: str, more: str, data: st.DataObject
) -> None:
    path = "/".join([*folder, f"m{name}.gguf"])
    at = quote(revision, safe="/" if revision.startswith("refs/") and data.draw(st.booleans()) else "")
    view = data.draw(st.sampled_from(["blob", "resolve", "raw", "tree", ""]))
    shown = f"?show_file_info={quote(path, safe='')}"
    behind = {"tree": f"/tree/{at}{shown}", "": shown}.get(view, f"/{view}/{at}/{quote(path)}{more}")
    found = parse_wanted(f" {scheme}{host}/o/r{behind} ", MIRROR)
    expected = WantedModel(reference=ModelReference("o/r"), file=path, revision=revision if view else "main")
    assert found == expected
    assert parse_wanted(str(found)) == found


@given(revisions, folders)
def test_a_folders_page_is_that_folder(revision: str, folder: list[str]) -> None:
    found = parse_wanted(f"https://hf.co/o/r/tree/{quote(revision, safe='')}/{quote('/'.join(folder))}")
    assert (found.reference, found.revision, found.folder, found.file) == (
        ModelReference("o/r"),
        revision,
        "/".join(folder),
        "",
    )
    assert parse_wanted(str(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://modelscope.cn/models/o/r/resolve/master/x.gguf", "is at modelscope.cn"),
        ("modelscope.cn/models/o/r", "is at modelscope.cn"),
        ("https://hf-mirror.com/o/r/blob/main/x.gguf", "HF_ENDPOINT"),
        ("github.com/o/r/releases/download/v1/x.gguf", "is at github.com"),
        ("https://huggingface.co.evil.example/o/r", "is at huggingface.co.evil.example"),
        ("https://me:secret@huggingface.co/o/r", "user name"),
        ("https://huggingface.co/datasets/o/r/blob/main/x.gguf", "datasets"),
        ("https://huggingface.co/spaces/o/r", "spaces"),
        ("https://huggingface.co/o/r/discussions/3", "/discussions"),
        ("https://huggingface.co/o/r/commits/main", "/commits"),
        ("https://huggingface.co/o/r/blob/main", "names no file"),
        ("https://huggingface.co/o/r/blob", "names no revision"),
        ("https://huggingface.co/o/r/blob/main/README.md", "not a GGUF file"),
        ("https://huggingface.co/o/r/blob/main/../x.gguf", "names no revision"),
        ("https://huggingface.co/o/r/blob/main/a%2f..%2fx.gguf", "not a GGUF file"),
        ("https://huggingface.co/o/r/blob/main/mmproj-F16.gguf", "is a projector"),
        ("https://huggingface.co/o/r/blob/main/%ff.gguf", "not text"),
        ("https://huggingface.co/o/r:Q8_0/blob/main/x.gguf", "both a tag"),
        ("https://huggingface.co/o", "does not name a repository"),
        ("https://huggingface.co:8443/o/r", "is at huggingface.co:8443"),
        ("ftp://huggingface.co/o/r", "begins with ftp"),
        ("o/r/README.md", "not a GGUF file"),
        ("o/r/../x.gguf", "does not name a repository"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as raised:
        parse_wanted(text)
    assert "secret" not in str(raised.value)


def test_a_page_as_a_models_address_is_its_file() -> None:
    page = "https://huggingface.co/o/r/blob/v1/deep/m.gguf"
    assert parse_location(page, None) == Location(url="https://huggingface.co/o/r/resolve/v1/deep/m.gguf")
    assert parse_location(page, "mine.gguf") == Location(url=page.replace("blob", "resolve"), path="mine.gguf")
