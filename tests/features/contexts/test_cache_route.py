"""The prompts' cache of the running program: figures, the reason of each miss, and who sits in which slot."""

from __future__ import annotations

from typing import Any

from http_harness import CHAT, Appliance, chat
from kept_files import kept_of, kept_one


async def told(server: Appliance, query: str = "") -> dict[str, Any]:
    return (await server.good("GET", f"/api/cache?{query}")).json


async def asks(server: Appliance, model: str, *, headers: tuple[tuple[str, str], ...] = (), **body: object) -> None:
    cached = body.pop("cached", 0)
    await server.good("POST", CHAT, {**chat(model, cached=cached), **body}, headers)


async def test_reasons_figures_and_seats(server: Appliance) -> None:
    """`tests/core/records/test_cache_misses.py` has the reasons, `test_cache_figures.py` beside this the figures."""
    nothing = await told(server)
    assert (nothing["total"]["requests"], nothing["by"], nothing["sessions"]) == (0, [], [])
    await asks(server, "alpha", prompt_cache_key="a")
    await asks(server, "alpha", session_id="a", cached=1000)
    await asks(server, "alpha", headers=(("X-Session-ID", "b"),))
    await asks(server, "alpha", headers=(("X-Conversation-Id", "a"),), messages=[{"role": "user", "content": "ho"}])
    await asks(server, "alpha", prompt_cache_key="a", cache_prompt=False)
    await asks(server, "alpha", user="a", stream=True)
    await asks(server, "alpha", prompt_cache_key=["a"], headers=(("User-Agent", "other/1.0"),))
    found = await told(server, "span=1h&by=model")
    rows = list(reversed(await server.rows()))
    assert [row["cache_miss"] for row in rows] == ["loaded", "", "new", "others", "off", "unknown", "unknown"]
    assert [row["conversation"] for row in rows] == ["a", "a", "b", "a", "a", "", ""]
    prompts = [row["tokens"]["input_tokens"] + row["tokens"]["cache_tokens"] for row in rows]
    assert rows[1]["metadata"]["prompt_cache"] == f"{prompts[1]} of {prompts[1]} prompt tokens came from the cache"
    assert [row["again_tokens"] for row in rows] == [0, 0, 0, *prompts[3:5], 0, 0]
    total = found["total"]
    assert (total["requests"], total["prompt"], total["cached"]) == (7, sum(prompts), prompts[1])
    assert found["by"] == [{**total, "name": "alpha"}]
    assert found["reasons"] == {"unknown": 2, "loaded": 1, "new": 1, "off": 1, "others": 1}
    told_of = [(row["id"], row["metadata"]["prompt_cache"]) for row in reversed(rows) if row["cache_miss"]]
    assert [(miss["id"], miss["why"]) for miss in found["misses"]] == told_of
    sessions = {(each["conversation"], each["client"]): each["requests"] for each in found["sessions"]}
    here, other = "127.0.0.1", "other/1.0, 127.0.0.1"
    assert sessions == {("a", here): 4, ("b", here): 1, ("", here): 1, ("", other): 1}


async def test_the_slot_of_a_conversation_is_told_where_it_is_sure(server: Appliance) -> None:
    await asks(server, "alpha", prompt_cache_key="first")
    await asks(server, "alpha", prompt_cache_key="longer", messages=[{"role": "user", "content": "hi " * 50}])
    found = await told(server)
    assert [(each["conversation"], each["slot"]) for each in found["sessions"]] == [("longer", 0), ("first", None)]
    await server.ask("POST", "/models/unload", {"model": "alpha", "wait": True})
    assert [each["slot"] for each in (await told(server))["sessions"]] == [None, None]


async def test_a_wrong_question_is_refused_with_its_parameter(server: Appliance) -> None:
    for query, name in (("by=day", "by"), ("span=long", "span")):
        assert (await server.refuses(400, None, "GET", f"/api/cache?{query}")).error["param"] == name


async def test_kept_contexts_are_listed_and_removed_by_model_or_alias(server: Appliance) -> None:
    contexts = kept_of(server.opened.owners.fleet)
    one, _ = [await kept_one(contexts, model=model) for model in ("alpha", "beta")]
    await contexts.used(one.name, 30)
    listed = (await told(server))["kept"]
    assert [each["model"] for each in listed] == ["alpha", "beta"]
    assert (listed[0]["tokens"], listed[0]["size"], listed[0]["saved_tokens"]) == (one.tokens, one.size, 30)
    assert listed[0]["token_seconds"] == one.token_seconds
    assert listed[0]["used"] >= listed[1]["used"] >= listed[1]["made"]
    folders = {each["kind"]: each for each in (await server.ask("GET", "/api/disk")).json["folders"]}
    assert folders["contexts"]["path"] == str(contexts.folder)
    assert folders["contexts"]["bytes"] >= 2 * one.size
    gone = {"contexts": 1, "size": one.size}
    for query, answer in (("?model=al", gone), ("?model=al", {"contexts": 0, "size": 0}), ("", gone)):
        assert (await server.good("DELETE", f"/api/cache/kept{query}")).json == answer
    assert (await told(server))["kept"] == []
