"""The batch of models for embeddings: any text that fits the context is taken."""

from __future__ import annotations

from hollow_models import dense, info_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.models.context import asked_context
from appliance.core.models.embedding import USUAL_BATCH, embedding_batch, served_kind
from appliance.core.models.gguf import POOLING
from appliance.core.models.model import Model, start_flags

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
