"""The order of the list of features is the order in which hooks are asked, and the kernel's defaults without them."""

from __future__ import annotations

from http_harness import OpenServer

from appliance.feature import estimate_of
from appliance.features import FEATURES
from appliance.features.fit.estimating import HeaderEstimate
from appliance.features.plugins.turn import PluginChains
from appliance.features.tools.turn import ToolChats
from appliance.fleet.estimate import PlainEstimate
from appliance.http.way.dialect import DialectTurn


async def test_plugins_take_their_commands_before_tools_see_a_chat(open_server: OpenServer) -> None:
    async with open_server() as server:
        turns = [make(server.opened.kernel) for each in server.opened.parts for make in each.turns]
    assert [type(each) for each in turns[:2]] == [PluginChains, ToolChats]
    assert {type(each) for each in turns[2:]} == {DialectTurn}


def test_the_first_estimate_is_taken_and_without_one_the_size_of_a_file_counts() -> None:
    assert isinstance(estimate_of(FEATURES), HeaderEstimate)
    assert isinstance(estimate_of([each for each in FEATURES if each.name != "fit"]), PlainEstimate)
