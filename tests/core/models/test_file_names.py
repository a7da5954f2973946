"""Each model of a repository has a name of its own, which leads back to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.download import (
    ModelFiles,
    ModelReference,
    RemoteFile,
    all_choices,
    choose,
    parse_wanted,
    pick,
)
from appliance.core.models.file_names import first_part, is_meant, listing_of, model_id, tags_of
from appliance.core.models.names import shard_of, stem_of, tag_of
from appliance.errors import NotFound

WORDS = [
    "m",
    "M",
    "Qwen3",
    "0.6B",
    "1.7B",
    "UD",
    "i1",
    "imat",
    "Q4_K_M",
    "q4_k_m",
    "Q8_0",
    "F16",
    "latest",
    "v1",
    "é",
    "a b",
]
stems = st.builds(
    lambda words, marks: "".join(word + mark for word, mark in zip(words, [*marks, ""], strict=False)),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.lists(st.sampled_from("-.__"), min_size=4, max_size=4),
).map(lambda stem: stem.strip("-."))
names = st.builds(lambda stem, end: stem + end, stems, st.sampled_from([".gguf", ".gguf", ".GGUF"]))
shards = st.builds(
    lambda stem, total: [f"{stem}-{number:05}-of-{total:05}.gguf" for number in range(1, total + 1)],
    stems,
    st.integers(1, 3),
)
models = st.builds(
    lambda folder, files: tuple(folder + file for file in files),
    st.sampled_from(["", "", "", "a/", "Q4_K_M/", "a/b/"]),
    names.map(lambda name: [name]) | shards,
)
repositories = st.lists(models, min_size=1, max_size=7, unique=True)


def files(*models: tuple[str, ...]) -> list[RemoteFile]:
    others = ("README.md", "mmproj-F16.gguf", "mtp-m-Q8_0.gguf", "m.imatrix.dat", "x-Q4_K_M.gguf.part1of2")
    return [
        RemoteFile(path, "a" * 64, 1) for path in dict.fromkeys((*(path for one in models for path in one), *others))
    ]


def asked(name: str, here: list[RemoteFile], listed: list[str] | None = None) -> ModelFiles:
    return pick(parse_wanted(name), here, listed or [])


@given(repositories)
def test_every_model_has_one_name_that_leads_to_exactly_it(repository: list[tuple[str, ...]]) -> None:
    every = files(*repository)
    choices = {choice.id("o/r"): tuple(file.path for file in choice.model) for choice in all_choices("o/r", every)}
    assert sorted(choices.values()) == sorted(set(repository))
    for name, paths in choices.items():
        assert tuple(file.path for file in asked(name, every).model) == paths
        assert tuple(file.path for file in asked(f"o/r/{paths[0]}", every).model) == paths
    assert choose(ModelReference("o/r"), every).id("o/r") in choices


@given(repositories, st.data())
def test_a_name_stays_whatever_else_is_pulled(repository: list[tuple[str, ...]], data: st.DataObject) -> None:
    every, tags = files(*repository), tags_of(path for one in repository for path in one)
    here = data.draw(st.lists(st.sampled_from(repository), min_size=1, unique=True))
    listed = listing_of(file.path for file in every)
    found = tags_of([*(path for one in here for path in one), *listed])
    for model in repository:
        name = model_id("o/r", tags[model[0]], model[0])
        if model in here:
            assert found[model[0]] == tags[model[0]]
            assert asked(name, files(*here), listed).model[0].path == model[0]
        else:
            with pytest.raises(NotFound):
                asked(name, files(*here), listed)


@given(repositories)
def test_a_tag_that_only_one_file_has_stays_that_files(repository: list[tuple[str, ...]]) -> None:
    tags = tags_of(path for one in repository for path in one)
    short = [tag_of(stem_of(first.rpartition("/")[2]) or "") for first in tags]
    for first, tag in zip(tags, short, strict=True):
        if (
            tag
            and tag != "LATEST"
            and short.count(tag) == 1
            and all(tag != known for one, known in tags.items() if one != first)
        ):
            assert tags[first] == tag


@given(models)
def test_alone_more_of_the_name_means_it_too(model: tuple[str, ...]) -> None:
    own = tags_of(model)[model[0]]
    shard = shard_of(stem_of(model[0].rpartition("/")[2]) or "")
    stem = shard.stem if shard else stem_of(model[0].rpartition("/")[2]) or ""
    assert is_meant(stem.upper(), own, model[0]) == bool(own)
    assert all(first_part(path) == model[0] for path in model)


@pytest.mark.parametrize(
    ("paths", "tags"),
    [
        (["X-Q4_K_M.gguf", "X-UD-Q4_K_M.gguf"], ["Q4_K_M", "UD-Q4_K_M"]),
        (["X.Q4_K_M.gguf", "X.i1-Q4_K_M.gguf"], ["Q4_K_M", "I1-Q4_K_M"]),
        (["X-UD-Q4_K_XL.gguf", "X-Q8_0.gguf"], ["Q4_K_XL", "Q8_0"]),
        (["model.gguf"], ["MODEL"]),
        (["Q4_K_M.gguf", "Q8_0.gguf"], ["Q4_K_M", "Q8_0"]),
        (["m-0.6B-Q8_0.gguf", "m-1.7B-Q8_0.gguf"], ["Q8_0", "1.7B-Q8_0"]),
        (["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"], ["Q8_0", ""]),
        (["m-latest.gguf"], ["M-LATEST"]),
    ],
)
def test_names(paths: list[str], tags: list[str]) -> None:
    assert [tags_of(paths)[path] for path in paths] == tags
