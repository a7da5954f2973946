"""A pasted text means that file, or is refused; nothing that it names is passed over."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.download import Location, ModelReference, WantedModel, parse_location, parse_wanted
from appliance.errors import BadRequest

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
