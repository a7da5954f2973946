"""What two appliances show of each other: two whole servers, one of which has the other for a peer."""

from __future__ import annotations

from pathlib import Path

from http_harness import CHAT, Appliance, OpenServer, chat
from swap_harness import configure
from waiting import until


async def shown(server: Appliance, path: str, *, has: str) -> dict[str, object]:
    """The answer as soon as it has that in it."""
    return (await until(lambda: server.ask("GET", path), lambda answer: has in answer.body.decode())).json


async def test_each_shows_what_the_other_has_loaded(
    open_server: OpenServer, fake_llama_server: tuple[str, ...], fake_model: Path, tmp_path: Path
):
    async with open_server() as there:
        peers = {"box": {"proxy": f"http://127.0.0.1:{there.port}"}}
        file = configure(tmp_path / "config.yaml", fake_llama_server, fake_model, {"gamma": {}}, peers=peers)
        async with open_server(config=file) as here:
            await here.ask("POST", CHAT, chat("gamma"))
            await shown(here, "/api/peers", has='"id":"alpha"')
            assert (await here.ask("POST", CHAT, chat("box/alpha"))).status == 200
            [peer] = (await shown(here, "/api/peers", has='"state":"loaded"'))["peers"]
            assert (peer["id"], peer["up"], peer["linked"], peer["error"]) == ("box", True, True, None)
            assert {model["id"]: model["state"] for model in peer["models"]}["alpha"] == "loaded"
            [guest] = (await shown(there, "/api/peers", has='"id":"gamma","state":"loaded"'))["guests"]
            assert guest["address"] == "127.0.0.1"
        await until(lambda: there.ask("GET", "/api/peers"), lambda answer: not answer.json["guests"])
