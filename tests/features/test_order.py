"""The order of the list of features is the order in which hooks are asked."""

from __future__ import annotations

from http_harness import OpenServer

from appliance.features.plugins.turn import PluginChains
from appliance.features.tools.turn import ToolChats
from appliance.http.way.dialect import DialectTurn


async def test_plugins_take_their_commands_before_tools_see_a_chat(open_server: OpenServer) -> None:
    async with open_server() as server:
        turns = [make(server.opened.kernel) for each in server.opened.parts for make in each.turns]
    assert [type(each) for each in turns[:2]] == [PluginChains, ToolChats]
    assert {type(each) for each in turns[2:]} == {DialectTurn}
