"""Ask a running server the questions of a file and count the right answers. Standard library only.

Usage: python ask.py --base-url http://127.0.0.1:8080/v1 [--questions questions_blind.json] [--floor 22] [--verbose]

A question is right when its answer ends by itself, reads as a sentence, holds every `all_of`, at least one `any_of`
and no `none_of` (lower case). Exit status 1 below the floor, 2 when the server cannot be asked.
"""

import argparse
import json
import string
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

HERE = Path(__file__).parent
MAX_TOKENS = 200  # the longest answer has about 80
TIMEOUT = 120.0


class Question(TypedDict):
    question: str
    all_of: NotRequired[list[str]]
    any_of: NotRequired[list[str]]
    none_of: NotRequired[list[str]]


@dataclass(frozen=True)
class Answer:
    text: str
    finish: str


def ask(base_url: str, model: str, question: str, key: str, temperature: float = 0.0) -> Answer:
    """One chat completion. Raises urllib.error.URLError when the server cannot be reached or refuses."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": temperature,
        "max_tokens": MAX_TOKENS,
    }
    request = urllib.request.Request(
        f"{base_url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        choice = json.load(response)["choices"][0]
    return Answer(choice["message"]["content"] or "", choice["finish_reason"])


def faults(question: Question, answer: Answer) -> list[str]:
    """What is wrong with this answer; empty when it is right."""
    text = answer.text.lower()
    found: list[str] = []
    if answer.finish != "stop":
        found.append(f"did not end by itself ({answer.finish})")
    if not answer.text.strip() or not set(answer.text) <= set(string.printable):
        found.append("is empty or not plain English text")
    elif not answer.text[0].isupper() or not (answer.text[-1] in ".!?" or answer.text.endswith(("/v1", "8080"))):
        found.append("is not a sentence")
    found += [f"lacks {part!r}" for part in question.get("all_of", []) if part not in text]
    choices = question.get("any_of", [])
    if choices and not any(part in text for part in choices):
        found.append(f"lacks any of {choices}")
    found += [f"must not say {part!r}" for part in question.get("none_of", []) if part in text]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="starter")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--questions", type=Path, default=HERE / "questions_blind.json")
    parser.add_argument("--floor", type=int, default=22)
    parser.add_argument("--verbose", action="store_true", help="print the right answers too")
    options = parser.parse_args()
    questions: list[Question] = json.loads(options.questions.read_text(encoding="utf-8"))
    right = 0
    for question in questions:
        try:
            answer = ask(options.base_url, options.model, question["question"], options.api_key)
        except (urllib.error.URLError, TimeoutError) as cause:
            print(f"cannot ask {options.base_url}: {cause}", file=sys.stderr)
            return 2
        wrong = faults(question, answer)
        right += not wrong
        if wrong or options.verbose:
            print(f"{'WRONG' if wrong else 'right'}  Q: {question['question']}\n       A: {answer.text}")
        for fault in wrong:
            print(f"       {fault}")
    print(f"{right} of {len(questions)} right, floor {options.floor}")
    return 0 if right >= options.floor else 1


if __name__ == "__main__":
    sys.exit(main())
