"""Names of files, shards, cache folders, and the model a client means; and what its process is started with."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hollow_models import dense, info_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.models.context import asked_context
from appliance.core.models.download import (
    ModelFiles,
    ModelReference,
    RemoteFile,
    all_choices,
    choose,
    parse_wanted,
    pick,
)
from appliance.core.models.embedding import USUAL_BATCH, embedding_batch, served_kind
from appliance.core.models.file_names import first_part, is_meant, listing_of, model_id, tags_of
from appliance.core.models.gguf import POOLING, GgufInfo
from appliance.core.models.model import Model, engine_flags, start_flags, started_with
from appliance.core.models.names import (
    ModelNames,
    Named,
    Shard,
    is_commit,
    is_companion,
    is_speakable,
    model_name,
    repo_of,
    shard_of,
    split_named_path,
    stem_of,
    tag_of,
)
from appliance.errors import BadRequest, NotFound

# ---- files -----------------------------------------------------------------------------------------------------------


READERS: list[tuple[Callable[[str], object], dict[str, object], tuple[str, ...]]] = [
    (stem_of, {"X.gguf": "X", "X.GGUF": "X"}, (".gguf", "._X.gguf", "X.gguf.part", "gguf")),
    (
        tag_of,
        {"Qwen3-8B-Q4_K_M": "Q4_K_M", "qwen-q8_0": "Q8_0", "model.F16": "F16", "UD-Q4_K_XL-00001-of-00003": "Q4_K_XL"},
        ("stories260K", "a-b c", "ends-", "a-Q8_0\n"),
    ),
    (
        repo_of,
        {"models--ggml-org--tinygemma3-GGUF": "ggml-org/tinygemma3-GGUF", "models--a--b.c_d": "a/b.c_d"},
        (
            *("models--a", "models--a--b--c", "datasets--a--b", "models--..--b", "models--a--b\n"),
            *("models--a--b/../c", "models--a--", "models----b"),
        ),
    ),
    (
        shard_of,
        {},
        (
            *("m-00000-of-00002", "m-1-of-2", "m-00001-of-99999", "-00001-of-00002", "m-٠٠٠٠١-of-00002"),
            "m-00001-of-0",
        ),
    ),
]


@pytest.mark.parametrize(("read", "meanings", "meaningless"), READERS)
def test_the_meaning_of_names(
    read: Callable[[str], object], meanings: dict[str, object], meaningless: tuple[str, ...]
) -> None:
    assert {text: read(text) for text in meanings} == meanings
    assert {text: read(text) for text in meaningless} == dict.fromkeys(meaningless)


@pytest.mark.parametrize(
    ("name", "path"),
    [("chat", "x.gguf"), ("org/repo:Q4", "x.gguf"), ("chat", "a=b.gguf"), ("chat", "C:\\m\\x.gguf")],
)
def test_a_path_may_have_a_name_in_front(name: str, path: str) -> None:
    assert split_named_path(f"{name}={path}") == (name, path)
    for plain in ("x.gguf", "/m/a=b.gguf", "~/a=b.gguf", "C:\\m\\a=b.gguf", "=x.gguf", "x="):
        assert split_named_path(plain) == (None, plain)


def test_a_commit_is_forty_small_hex_digits_and_a_name_can_be_written_down():
    assert is_commit("0123456789abcdef0123456789abcdef01234567")
    for text in ("", "main", "a" * 39, "a" * 41, "A" * 40, "../" + "a" * 37, "a" * 40 + "\n", "٠" * 40):
        assert not is_commit(text)
    for name in ("", "a\nb", "a\x1bb", "a\udcffb", "a" * 256, "\u202eabc"):
        assert not is_speakable(name)


@given(stem=st.text(min_size=1), number=st.integers(1, 1000), total=st.integers(1, 1000))
def test_a_shard_names_its_siblings(stem, number, total):
    name = f"{stem}-{number:05}-of-{total:05}"
    if number > total:
        assert shard_of(name) is None
        assert model_name(name) == name
    else:
        shard = shard_of(name)
        assert shard == Shard(stem, number, total)
        assert shard.name(number) == f"{name}.gguf"
        assert model_name(name) == stem


@pytest.mark.parametrize(
    ("stem", "in_folder", "in_cache"),
    [
        *[(f"{mark}-x", True, True) for mark in ("mmproj", "Qwen-MMPROJ", "mtp", "eagle3", "dspark", "dflash")],
        ("gemma-mtp-Q8_0", False, True),
        *[(stem, False, False) for stem in ("Qwen3-MTP-Q8_0", "plain", "X-imatrix-Q4_K_M", "Q4_K_M-imat")],
        ("alpaca-lora-7b-Q4_K_M", False, False),
    ],
)
def test_companions(stem, in_folder, in_cache):
    assert is_companion(stem, anywhere=False) is in_folder
    assert is_companion(stem, anywhere=True) is in_cache


@given(st.sampled_from(["", "X", "Qwen3-8B", "a.b-c"]), st.sampled_from("-._"), st.booleans(), st.data())
def test_files_that_are_not_models_are_not_offered(base: str, mark: str, upper: bool, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["", f"{mark}f16", f"{mark}bf16", f"{mark}F32"]))
    stem = data.draw(
        st.sampled_from([f"{base}{mark}imatrix", "imatrix_unsloth", f"{base}{mark}lora{end}", f"{base}{mark}vocab"])
        if base
        else st.sampled_from(
            ["imatrix", f"imatrix{mark}x", "lora", f"ggml-adapter{mark}model{end}", "ggml-vocab-llama"]
        )
    )
    stem = stem.upper() if upper else stem
    assert is_companion(stem, anywhere=True)
    assert tags_of([f"{stem}.gguf", "deep/m-Q8_0.gguf"]) == {"deep/m-Q8_0.gguf": "Q8_0"}
    with pytest.raises(BadRequest, match="and not a model"):
        parse_wanted(f"https://hf.co/o/r/blob/main/{stem}.gguf")


@given(st.text())
def test_whatever_a_folder_is_called_a_repository_has_two_plain_parts(text):
    for folder in (text, f"models--{text}", f"models--{text}--{text}"):
        repo = repo_of(folder)
        assert repo is None or re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo, re.ASCII)


# ---- lookup ----------------------------------------------------------------------------------------------------------

NAMES = ModelNames(
    [
        Named("Qwen3-8B", ("big", "starter")),
        Named("qwen3-8b-Q8_0"),
        Named("starter"),
        Named("org/repo:F16", (), "org/repo", "F16"),
        Named("org/repo:Q8_0", (), "org/repo", "Q8_0"),
        Named("org/other:IQ2_M", (), "org/other", "IQ2_M"),
        Named("org/other:Q5_0", (), "org/other", "Q5_0"),
        Named("Org/Repo"),
    ]
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen3-8B", "Qwen3-8B"),
        ("qwen3-8B", "Qwen3-8B"),
        ("BIG", "Qwen3-8B"),
        ("starter", "starter"),
        ("org/repo:q8_0", "org/repo:Q8_0"),
        ("org/other", "org/other:IQ2_M"),
        ("Org/Repo", "Org/Repo"),
        ("org/repo", "Org/Repo"),
        ("", None),
        ("unknown", None),
        ("org/repo:Q4_K_M", None),
    ],
)
def test_lookup(name, found):
    assert NAMES.find(name) == found


def test_a_repository_without_a_tag_means_its_best_file():
    tags = ["BF16", "Q8_0", "Q4_K_M"]
    for count, expected in ((1, "BF16"), (2, "Q8_0"), (3, "Q4_K_M")):
        names = ModelNames(Named(f"a/b:{tag}", (), "a/b", tag) for tag in tags[:count])
        assert names.find("A/b") == f"a/b:{expected}"


def test_suggestions():
    assert NAMES.near("Qwen3-8") == ("Qwen3-8B", "qwen3-8b-Q8_0")
    assert NAMES.near("statrer") == ("starter",)
    assert "org/repo:F16" in NAMES.near("repo:F16")
    assert NAMES.near("zzzzzzz") == ()
    assert NAMES.near("") == ()


names = st.text("abAB-:/", min_size=1, max_size=4)


@given(ids=st.dictionaries(names, st.lists(names, max_size=2)), asked=names)
def test_an_exact_name_always_wins(ids, asked):
    index = ModelNames(Named(model_id, tuple(aliases)) for model_id, aliases in ids.items())
    found = index.find(asked)
    if asked in ids:
        assert found == asked
    elif any(asked in aliases for aliases in ids.values()):
        assert found is not None
        assert asked in ids[found]
    elif found is not None:
        assert asked.casefold() in {name.casefold() for name in (found, *ids[found])}
    assert set(index.near(asked)) <= set(ids)


# ---- engine flags ----------------------------------------------------------------------------------------------------


def described(kind: str, **more: str) -> Model:
    absent = {name: None for name in GgufInfo.__struct_fields__}
    known = {"version": 3, "kind": kind, "architecture": "x", "parameters": 0, "tensor_count": 1, "tensor_bytes": 0}
    info = GgufInfo(**{**absent, **known, "vision": False, "audio": False})
    return Model(id="m", source="path", path="/m.gguf", info=info, **more)


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (described("generation"), ()),
        (described("generation", mmproj="/p", draft="/d"), ("--mmproj", "/p", "--model-draft", "/d")),
        (described("embedding"), ("--embedding",)),
        (described("rerank"), ("--reranking", "--pooling", "rank")),
        (Model(id="m", source="path", path="/m.gguf", error="broken"), ()),
    ],
)
def test_engine_flags(model, flags):
    assert engine_flags(model) == flags


# ---- what makes a process out of date --------------------------------------------------------------------------------

MODEL = Model(id="m", source="preset", path="/m.gguf", size=5, created=6, args=("--ctx-size", "7"), mmproj="/p")


def changed_by(change: dict[str, object]) -> bool:
    return started_with(structs.replace(MODEL, **change)) != started_with(MODEL)


def test_what_a_process_is_started_with_and_what_is_merely_told() -> None:
    started = {"path": "/n.gguf", "size": 6, "created": 7, "args": ("--ctx-size", "8"), "mmproj": None, "draft": "/d"}
    assert all(changed_by({name: value}) for name, value in started.items())
    told = {"aliases": ("a",), "tags": ("t",), "hidden": True, "load_on_startup": True, "stop_timeout": 3.0}
    assert not changed_by({**told, "preset": "[m]", "origins": (("--ctx-size", "p.ini:3"),), "source": "path"})


WORDS = [
    *("m", "M", "Qwen3", "0.6B", "1.7B", "UD", "i1", "imat", "latest", "v1", "é", "a b"),
    *("Q4_K_M", "q4_k_m", "Q8_0", "F16"),
]
stems = st.builds(
    lambda words, marks: "".join(word + mark for word, mark in zip(words, [*marks, ""], strict=False)),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.lists(st.sampled_from("-.__"), min_size=4, max_size=4),
).map(lambda stem: stem.strip("-."))
file_names = st.builds(lambda stem, end: stem + end, stems, st.sampled_from([".gguf", ".gguf", ".GGUF"]))
shards = st.builds(
    lambda stem, total: [f"{stem}-{number:05}-of-{total:05}.gguf" for number in range(1, total + 1)],
    stems,
    st.integers(1, 3),
)
models = st.builds(
    lambda folder, files: tuple(folder + file for file in files),
    st.sampled_from(["", "", "", "a/", "Q4_K_M/", "a/b/"]),
    file_names.map(lambda name: [name]) | shards,
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


BERT = info_of(dense("llama", layers=1, keys={"pooling_type": 1}))


@given(
    st.sampled_from(POOLING),
    st.sampled_from(["embedding", "rerank", "generation"]),
    st.integers(16, 131072),
    st.sampled_from(["", "-c", "--ctx-size"]),
    st.integers(0, 65536),
    st.sampled_from([(), ("--embeddings",), ("--pooling", "last"), ("-ub", "7"), ("--batch-size", "9")]),
)
def test_a_text_that_fits_the_context_fits_the_batch(
    pooling: str, kind: str, trained: int, flag: str, asked: int, said: tuple[str, ...]
):
    info = structs.replace(BERT, pooling=pooling, kind=kind, context_length=trained)
    args = (*said, *((flag, str(asked)) if flag else ()))
    found = embedding_batch(info, args)
    embeds = kind != "generation" or "--embeddings" in said
    splits = pooling == "last" or "last" in said
    if not embeds or splits or {"-ub", "--batch-size"}.intersection(said):
        assert found == ()
        return
    context = min(trained, asked if flag and asked else 8192)
    size = int(found[1]) if found else USUAL_BATCH
    assert size == max(context, USUAL_BATCH)
    assert found in ((), ("--batch-size", str(size), "--ubatch-size", str(size)))
    model = Model(id="m", source="path", path="/m.gguf", info=info, args=args)
    assert start_flags(model, ("-b", "5"))[-2:] == ("-b", "5")
    assert "--ubatch-size" not in start_flags(model, ("-b", "5")), "its own batch counts"


def test_the_context_that_a_list_tells_of_a_model_that_is_not_loaded():
    assert asked_context(BERT, ["llama-server", "-m", "x"]) == asked_context(BERT, ["-c", "0"]) == BERT.context_length
    assert asked_context(BERT, ["-c", "100", "--ctx-size", "512", "-c", "odd"]) == 512
    assert asked_context(BERT, ["--ctx_size", " 256 "]) == 256
    assert asked_context(BERT, ["-c", "9999999"]) == BERT.context_length
    assert asked_context(None, ["-c", "512"]) == 0


def test_words_that_make_embeddings():
    assert served_kind(["llama-server", "--embeddings", "-m", "x"]) == served_kind(["--embedding"]) == "embedding"
    assert served_kind(["--embedding", "--rerank"]) == served_kind(["--reranking"]) == "rerank"
    assert served_kind([], ["A=1", "LLAMA_ARG_EMBEDDINGS=1"]) == "embedding"
    assert served_kind([], ["LLAMA_ARG_RERANKING=true"]) == "rerank"
    assert served_kind(["-m", "x"], ["LLAMA_ARG_EMBEDDINGS=0", "b"]) == ""
