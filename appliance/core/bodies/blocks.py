"""The beginning that the prompts of two requests have in common, without rendering or decoding either.

A request is a row of blocks: first the members that a chat template puts before the conversation, then one block for
each message. Each block has a digest of everything up to its end. So two prompts that agree at one block agree at all
blocks before it, and the last block in common is found by bisection. Digests are the same in every process, because
files of kept contexts carry them.

The bytes are compared as the client sent them. A client that writes the same message in another way on the next turn
loses the part from there on, and with it some time, but never correctness: the engine compares the tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from appliance.core.lenient_json import decoded

BLOCK = 4096
"""Bytes of each block of a long text."""
LONGEST_MESSAGE = 2 * BLOCK
"""A longer message is a long text."""
DIGEST_SIZE = 8
HEAD, TEXT = 0, -1
"""In the place of a message's number: the members before the conversation, and a prompt that has no messages."""

Block = bytes | Raw | memoryview


class Prefix(Struct, frozen=True):
    """A prompt as its blocks. One without blocks has nothing in common with any other."""

    digests: tuple[bytes, ...] = ()
    ends: tuple[int, ...] = ()
    """The bytes of the prompt up to the end of each block."""
    messages: tuple[int, ...] = ()
    """Each block's message, from 1; `HEAD` and `TEXT` for the others. A prompt that comes from a file has none."""
    owner: bytes = b""
    """The client that the prompt belongs to (`prefix_of`)."""

    @property
    def size(self) -> int:
        """Bytes of the whole prompt."""
        return self.ends[-1] if self.ends else 0

    def shared(self, other: Prefix) -> int:
        """Return the bytes of the beginning that both have in common."""
        blocks = self._alike(other)
        return self.ends[blocks - 1] if blocks else 0

    def edited_since(self, last: Prefix) -> int | None:
        """Return the message from which on this prompt is another one than the last; `HEAD`: what is before them.

        None: one begins with all of the other, or has no messages.
        """
        blocks = self._alike(last)
        if blocks >= min(len(last.digests), len(self.messages)) or self.messages[blocks] == TEXT:
            return None
        return self.messages[blocks]

    def _alike(self, other: Prefix) -> int:
        """Return the number of blocks that both begin with."""
        mine, others = self.digests, other.digests
        return bisect_left(range(min(len(mine), len(others))), True, key=lambda at: mine[at] != others[at])


class _PromptBody(Struct):
    """The members of a request that reach the prompt, of every API that llama-server has for text."""

    tools: Raw = Raw()
    system: Raw = Raw()
    instructions: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    reasoning_effort: Raw = Raw()
    lora: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    messages: tuple[Raw, ...] | None = None


_BODY = msgspec.json.Decoder(_PromptBody)
_ITEMS = msgspec.json.Decoder(tuple[Raw, ...])
_MARK = b'"cache_control"'
_MARKS = re.compile(rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)|"cache_control"\s*:\s*(?:\{[^{}]*\}|null)\s*,?\s*')
"""Anthropic's marks of what is to be cached: clients move them between messages, and the model never sees them."""
_CHECKSUM = re.compile(rb"(x-anthropic-billing-header:[^\"]*?\bcch=)\w*")
"""Claude Code's checksum of each request in its system prompt. llama-server masks it, because it changes every time:
https://github.com/ggml-org/llama.cpp/pull/21793
"""


def prefix_of(body: bytes, owner: bytes = b"") -> Prefix:
    """Return the blocks of a JSON body; none where it is not JSON, or has no prompt in it.

    ``owner``: at most 64 bytes that tell a client from others. Prompts of two owners have no beginning in common,
    whatever they say: else one could find out what another has asked.
    """
    chain, end = blake2b(digest_size=DIGEST_SIZE, key=owner), 0
    digests, ends, messages = list[bytes](), list[int](), list[int]()
    for message, block in blocks_of(body):
        chain.update(block)
        digests.append(chain.digest())
        end += len(block)
        ends.append(end)
        messages.append(message)
    return Prefix(tuple(digests), tuple(ends), tuple(messages), owner)


def blocks_of(body: bytes) -> list[tuple[int, Block]]:
    """Return the blocks of a JSON body themselves, each with its message's number: see `Prefix.messages`."""
    asked = decoded(_BODY, body)
    if asked is None:
        return []
    found, marked = list[tuple[int, Block]](), _MARK in body
    if head := b"".join(
        (asked.tools, asked.system, asked.instructions, asked.chat_template_kwargs, asked.reasoning_effort, asked.lora)
    ):
        found.append((HEAD, _CHECKSUM.sub(rb"\1", _unmarked(head) if marked else head)))
    if asked.prompt:
        found += _pieces(TEXT, asked.prompt)
    messages = asked.messages or ()
    if asked.input:
        items = decoded(_ITEMS, asked.input)
        messages = (asked.input,) if items is None else items
    for number, message in enumerate(messages, 1):
        plain = _unmarked(bytes(message)) if marked else message
        if len(plain) > LONGEST_MESSAGE:
            found += _pieces(number, plain)
        else:
            found.append((number, plain))
    return found


def _unmarked(text: bytes) -> bytes:
    return _MARKS.sub(b"", text) if _MARK in text else text


def _pieces(number: int, text: bytes | Raw) -> list[tuple[int, Block]]:
    view = memoryview(text)
    return [(number, view[at : at + BLOCK]) for at in range(0, len(view), BLOCK)]
