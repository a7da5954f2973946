"""The model's help besides the final summary: the length of a text, the size of its context, and summaries of parts."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.plugins import JSON, AskFailed, Context, JsonObject, Refused
from appliance.plugins.chat import answer_text, as_array

from .text import context_told, cut, marked

CHAT = "/v1/chat/completions"
CHARS_PER_TOKEN = 3
"""A careful guess, for engines that do not count."""
SLACK = 0.95
"""Share of the room for a part: parts are cut by characters, and not every part has as many tokens."""
REFUSED = (400, 404, 405, 413, 500, 501)
KEPT = ("temperature", "top_p", "top_k", "min_p", "seed", "chat_template_kwargs")
"""Members of a request that also apply to its parts."""


class Reader:
    """One request's model."""

    def __init__(self, context: Context, body: JsonObject) -> None:
        self._context = context
        self._body = body
        self._counts = True

    async def tokens(self, text: str) -> int:
        """Return how many tokens the model makes of a text, a guess if its engine does not say."""
        if self._counts:
            try:
                counted = await self._post("/tokenize", {"content": text})
                return len(as_array(counted.get("tokens")))
            except AskFailed as error:
                if error.status not in REFUSED:
                    raise
                self._context.logger.info("%s does not count tokens; guessing", self._context.model)
                self._counts = False
        return len(text) // CHARS_PER_TOKEN + 1

    async def prompt_tokens(self, messages: Sequence[JSON]) -> int:
        """Return how many tokens a chat has, as the model's template writes it."""
        try:
            counted = await self._post(f"{CHAT}/input_tokens", {"messages": [*messages]})
        except AskFailed as error:
            if error.status not in REFUSED:
                raise
            return await self.tokens(str(messages))
        count = counted.get("input_tokens")
        return count if isinstance(count, int) else await self.tokens(str(messages))

    async def context_unless_fits(self, messages: Sequence[JSON]) -> int | None:
        """Return the length of the model's context; None when the chat fits.

        The plugin finds out by sending it: an engine refuses at once a prompt that is too long and says how much would
        fit, and one that fits is read now and need not be read again for the answer. Raises Refused if no number is
        given.
        """
        try:
            await self._post(CHAT, {**self._sampling, "messages": [*messages], "max_tokens": 1})
        except AskFailed as error:
            if (told := context_told(error.body)) is not None:
                return told
            if error.status not in REFUSED:
                raise
            raise Refused(
                f"model '{self._context.model}' does not say how many tokens it can read ({error}); set "
                "'context_tokens' in the plugin's settings"
            ) from error
        return None

    async def parts(self, text: str, room: int) -> list[str]:
        """Split ``text`` into parts of at most ``room`` tokens."""
        waiting, parts = [text], list[str]()
        while waiting:
            part = waiting.pop(0)
            count = await self.tokens(part)
            if count <= room or len(part) <= 1:
                parts.append(part)
            else:
                pieces = -(-count // max(1, int(room * SLACK)))
                waiting[:0] = cut(part, min(-(-len(part) // pieces), len(part) - 1))
        return [part for part in parts if part.strip()]

    async def summaries(self, parts: Sequence[str], instruction: str, tokens: int, at_once: int) -> list[str]:
        """Return a summary of each part, up to ``at_once`` written at the same time. Raises AskFailed naming the
        part.
        """
        made = [""] * len(parts)
        waiting = iter(range(len(parts)))

        async def work() -> None:
            for at in waiting:
                made[at] = await self._summary(parts[at], f"part {at + 1} of {len(parts)}", instruction, tokens)

        workers = [self._context.begin(work) for _ in range(min(at_once, len(parts)))]
        try:
            for worker in workers:
                await worker.wait()
        finally:
            for worker in workers:
                worker.cancel()
        return made

    async def _summary(self, part: str, name: str, instruction: str, tokens: int) -> str:
        messages: list[JSON] = [{"role": "user", "content": marked(instruction, part)}]
        try:
            answer = await self._post(CHAT, {**self._sampling, "messages": messages, "max_tokens": tokens})
        except AskFailed as error:
            raise AskFailed(f"{name}: {error}", status=error.status, body=error.body) from error
        text = answer_text(answer).strip()
        if not text:
            raise AskFailed(f"{name}: the model wrote no summary within {tokens} tokens ('part_tokens')")
        self._context.logger.info("%s is summarized", name)
        return text

    @property
    def _sampling(self) -> JsonObject:
        return {name: self._body[name] for name in KEPT if name in self._body}

    async def _post(self, path: str, body: JsonObject) -> JsonObject:
        return await self._context.appliance.post(path, {"model": self._context.model, **body})
