"""file_glob_search and grep_search."""

from __future__ import annotations

from appliance.core.tools.search import KINDS, entry_text, footer
from appliance.core.tools.specs import FileGlobSearch, GrepSearch
from appliance.core.tools.tool import ToolOutcome
from appliance.tools.outcomes import answer, failed, said
from appliance.tools.place import Place


async def file_glob_search(place: Place, asked: FileGlobSearch) -> ToolOutcome:
    if asked.limit < 1:
        return failed(f"invalid limit: {asked.limit} (expected 1 or more)")
    kind = KINDS.get(asked.type)
    if kind is None:
        return failed(f'invalid type: {asked.type} (expected "file", "dir" or "all")')
    found = await place.find(asked, kind)
    text = "".join(f"{entry_text(entry.path, entry.kind)}\n" for entry in found.entries)
    text += footer(found.total, len(found.entries), what="entries", full=False, cut=found.cut)
    entries = [{"path": entry.path, "type": entry.kind} for entry in found.entries]
    return answer({"plain_text_response": text, "entries": entries, "base": found.base}, text)


async def grep_search(place: Place, asked: GrepSearch) -> ToolOutcome:
    found = await place.grep(asked)
    return said(found.text + footer(found.count, found.count, what="matches", full=found.full, cut=found.cut))
