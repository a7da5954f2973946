"""Ask a running server a hundred strange things, cold and warm: every answer must end by itself.

Usage: python stress.py --base-url http://127.0.0.1:8080/v1

Random strings, other scripts, long texts, chats of many turns, system messages and plain completions. Standard library
only. Exit status 1 when an answer was cut off at MAX_TOKENS or is empty.
"""

import argparse
import json
import random
import sys
import urllib.error
import urllib.request
from typing import TypedDict

import noise
from corpus import Conversation, Writer

MAX_TOKENS = 200
TIMEOUT = 300.0
SEED = 4711
TEMPERATURES = (0.0, 0.8)


class Message(TypedDict):
    role: str
    content: str


def messages(conversation: Conversation) -> list[Message]:
    """The conversation up to and with its last question."""
    result: list[Message] = []
    if conversation.system is not None:
        result.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        result.append({"role": "user", "content": turn.question})
        result.append({"role": "assistant", "content": turn.answer})
    return result[:-1]


def alone(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def chats() -> list[list[Message]]:
    """A hundred chats, the same each time."""
    rng, writer = random.Random(SEED), Writer(SEED)
    foreign = [i for i in writer.grammar.unknown if i.name == "foreign"]
    found = [alone(noise.gibberish(rng)) for _ in range(35)]
    found += [alone("".join(chr(rng.randrange(32, 0x2FFF)) for _ in range(rng.randint(1, 300)))) for _ in range(10)]
    found += [alone(writer.grammar.sample(rng.choice(foreign), rng)) for _ in range(20)]
    found += [alone(writer.clutter(size).question) for size in (300, 800, 1500, 3000, 5000, 6000, 8000, 9000)]
    found += [alone(writer.turn().question * rng.randint(5, 60)) for _ in range(5)]
    found += [messages(writer.long_conversation()) for _ in range(6)]
    found += [messages(writer.conversation()) for _ in range(14)]
    found += [alone(""), alone(" ")]
    return found


def prompts() -> list[str]:
    """Texts without any chat marker, as a completion client sends them."""
    rng, writer = random.Random(SEED), Writer(SEED)
    whole = [writer.turn() for _ in range(30)]
    cut = [turn.answer[: rng.randrange(3, len(turn.answer))] for turn in whole[:10]]
    return [turn.question for turn in whole] + cut + [noise.gibberish(rng) for _ in range(10)]


def finish(base_url: str, route: str, body: dict[str, object]) -> tuple[str, str]:
    """The text of the answer and why it ended."""
    request = urllib.request.Request(
        f"{base_url}/{route}",
        data=json.dumps({"model": "starter", "max_tokens": MAX_TOKENS, "seed": SEED, **body}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            choice = json.load(response)["choices"][0]
    except urllib.error.HTTPError as refusal:
        if "exceed_context_size" in refusal.read().decode():
            return "(longer than the context)", "stop"
        raise
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1")
    options = parser.parse_args()
    bad = asked = 0
    bodies: list[tuple[str, dict[str, object]]] = [("chat/completions", {"messages": m}) for m in chats()]
    for prompt in prompts():
        bodies.append(("completions", {"prompt": prompt}))
    for temperature in TEMPERATURES:
        for route, body in bodies:
            text, reason = finish(options.base_url, route, {**body, "temperature": temperature})
            asked += 1
            if reason != "stop" or (route.startswith("chat") and not text.strip()):
                bad += 1
                print(f"{reason} at {temperature}: {json.dumps(body)[-200:]} -> {text[-300:]!r}")
    print(f"{asked - bad} of {asked} answers ended by themselves within {MAX_TOKENS} tokens")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
