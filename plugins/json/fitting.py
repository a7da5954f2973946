"""An answer that fits its schema: checked, and requested again with its mistakes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass

from appliance.plugins import JSON, Context, JsonObject
from appliance.plugins.chat import answer_text, as_array, as_object
from appliance.plugins.schema import mistakes

from .schema import read_answer

CHAT = "/v1/chat/completions"
CORRECT = (
    "That answer does not fit:\n{mistakes}\nAnswer again with corrected JSON alone, fitting this JSON schema:\n{schema}"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    schema: object = None
    attempts: int = 2
    hold: bool = True
    tell: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError("'attempts' must be 0 or more")


class NeverFits(Exception):
    """No answer fitted the schema; the message has the last one's mistakes."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer's text. ``cut``: it ended because of its length."""

    text: str
    cut: bool

    @staticmethod
    def of(body: JsonObject) -> Said:
        choices = as_array(body.get("choices"))
        ended = as_object(choices[0]).get("finish_reason") if choices else None
        return Said(text=answer_text(body), cut=ended == "length")


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Text that fits, and how many corrections it took."""

    text: str
    corrections: int

    @property
    def told(self) -> JsonObject:
        """The ``json`` member of the answer."""
        return {"fits": True, "corrections": self.corrections}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The requirements on a request's answer: kept from `on_request`. ``body`` is the request as the model gets it."""

    schema: JsonObject
    settings: Settings
    body: JsonObject

    def mistakes(self, said: Said) -> list[str]:
        """Return the answer's mistakes; empty if it fits. Raises Refused for a schema with dangling references."""
        try:
            return mistakes(read_answer(said.text), self.schema)
        except ValueError as error:
            return [f"{error}; it was cut off at the limit of its length, so be brief" if said.cut else str(error)]

    async def fit(self, said: Said, context: Context) -> Fitting:
        """Return ``said`` if it fits, else the first correction that does. Raises NeverFits, AskFailed."""
        corrections, body = 0, deepcopy(self.body) | {"stream": False}
        body.pop("stream_options", None)
        while wrong := self.mistakes(said):
            if corrections == self.settings.attempts:
                raise NeverFits(self._never(wrong, said, corrections))
            corrections += 1
            context.logger.info("correction %d of %d: %s", corrections, self.settings.attempts, "; ".join(wrong))
            body["messages"] = [*as_array(body.get("messages")), *self._told(said, wrong)]
            said = Said.of(await context.appliance.post(CHAT, body))
        return Fitting(text=_bare(said.text), corrections=corrections)

    def _told(self, said: Said, wrong: list[str]) -> list[JSON]:
        """An answer, and its mistakes."""
        told = CORRECT.format(mistakes="\n".join(wrong), schema=json.dumps(self.schema, ensure_ascii=False))
        return [{"role": "assistant", "content": said.text or "(nothing)"}, {"role": "user", "content": told}]

    def _never(self, wrong: list[str], said: Said, corrections: int) -> str:
        tried = f" after {corrections} correction{'s' * (corrections != 1)}" if corrections else ""
        why = "; the answer was cut off at the limit of its length: raise 'max_tokens'" if said.cut else ""
        return f"the answer does not fit the schema{tried}: {'; '.join(wrong)}{why}"


def _bare(text: str) -> str:
    """Return only the JSON, if it stood in a fenced block."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(read_answer(text), ensure_ascii=False)
    return text
