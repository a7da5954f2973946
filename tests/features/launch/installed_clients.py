"""Clients as their makers publish them: how each is installed and started, and which of its tools a model calls.

In the texts ``<home>`` is the client's home, with the file `NOTES` in it, and ``<url>`` the server's address. Libraries
run a program of a few lines, which asks in each dialect that they speak, with a tool that returns `SECRET`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

SECRET = "the secret word is quagga"
NOTES = "notes.txt"
ANSWER = "The llama has nothing to add."
QUESTION = f"What is in {NOTES}?"
KEY = "k-of-the-server"
OF_OPENAI = MappingProxyType({"OPENAI_BASE_URL": "<url>/v1", "OPENAI_API_BASE": "<url>/v1", "OPENAI_API_KEY": KEY})
OF_ANTHROPIC = MappingProxyType({"ANTHROPIC_BASE_URL": "<url>", "ANTHROPIC_API_URL": "<url>", "ANTHROPIC_API_KEY": KEY})


class InstalledClient(Struct, frozen=True, kw_only=True):
    """``packages`` are npm's, or with ``python`` PyPI's. ``words`` follow ``llama-appliance launch NAME --``.

    A library has a ``program`` instead, for Node or for Python. ``tool`` is what the model calls in the first turn,
    with ``arguments``; "": the client has no tools. ``example_turns``: those that its prompt begins with. ``expects``:
    words of the one error after which the client goes on.
    """

    packages: tuple[str, ...]
    python: bool = False
    words: tuple[str, ...] = ()
    program: str = ""
    environment: Mapping[str, str] = MappingProxyType({})
    tool: str = "look"
    arguments: str = f'{{"path": "{NOTES}"}}'
    example_turns: int = 0
    expects: str = ""


OPENAI = """
from openai import OpenAI
from pydantic import BaseModel

class Said(BaseModel):
    answer: str

client, asked = OpenAI(), {"role": "user", "content": "What is in the notes?"}
path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
path["additionalProperties"] = False
look = {"name": "look", "description": "Reads a file.", "parameters": path, "strict": True}
tools, messages = [{"type": "function", "function": look}], [{"role": "developer", "content": "Be brief."}, asked]
with client.chat.completions.stream(model="alpha", messages=messages, tools=tools) as stream:
    said = stream.get_final_completion().choices[0].message
results = [{"role": "tool", "tool_call_id": call.id, "content": "SECRET"} for call in said.tool_calls]
messages += [said, *results]
parsed = client.chat.completions.parse(model="alpha", messages=messages, tools=tools, response_format=Said)
print(parsed.choices[0].message.parsed.answer)
tools, items = [{"type": "function", **look}], [asked]
reasoning, hidden = {"effort": "low", "summary": "auto"}, ["reasoning.encrypted_content"]
with client.responses.stream(
    model="alpha", input=items, tools=tools, include=hidden, store=False, reasoning=reasoning
) as stream:
    output = stream.get_final_response().output
calls = [item for item in output if item.type == "function_call"]
items += [*output, *({"type": "function_call_output", "call_id": call.call_id, "output": "SECRET"} for call in calls)]
print(client.responses.parse(model="alpha", input=items, tools=tools, text_format=Said).output_parsed.answer)
"""
ANTHROPIC = '''
from anthropic import Anthropic, beta_tool

@beta_tool
def look(path: str) -> str:
    """Reads a file."""
    return "SECRET"

client, cached = Anthropic(), {"cache_control": {"type": "ephemeral"}}
messages = [{"role": "user", "content": [{"type": "text", "text": "What is in the notes?", **cached}]}]
path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
more = dict(model="alpha", tools=[{"name": "look", "description": "Reads a file.", "input_schema": path, **cached}])
assert client.messages.count_tokens(messages=messages, **more).input_tokens > 0
more |= dict(max_tokens=2000, system=[{"type": "text", "text": "Be brief."}])
with client.messages.stream(messages=messages, thinking={"type": "enabled", "budget_tokens": 1024}, **more) as stream:
    said = stream.get_final_message().content
calls = [block for block in said if block.type == "tool_use"]
results = [{"type": "tool_result", "tool_use_id": call.id, "content": "SECRET"} for call in calls]
messages += [{"role": "assistant", "content": said}, {"role": "user", "content": results}]
print(client.messages.create(messages=messages, **more).content[-1].text)
runner = client.beta.messages.tool_runner(
    model="alpha", max_tokens=2000, tools=[look], messages=[{"role": "user", "content": "Again?"}]
)
print(runner.until_done().content[-1].text)
'''
LANGCHAIN = '''
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def look(path: str) -> str:
    """Reads a file."""
    return "SECRET"

chat = ChatOpenAI(model="alpha")
for model in chat, ChatOpenAI(model="alpha", use_responses_api=True), ChatAnthropic(model="alpha"):
    model, messages = model.bind_tools([look]), [SystemMessage("Be brief."), HumanMessage("What is in the notes?")]
    said = model.invoke(messages)
    print(model.invoke([*messages, said, *map(look.invoke, said.tool_calls)]).text)
'''
PYDANTIC_AI = '''
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

class Said(BaseModel):
    answer: str

def look(path: str) -> str:
    """Reads a file."""
    return "SECRET"

for model in OpenAIChatModel("alpha"), OpenAIResponsesModel("alpha"), AnthropicModel("alpha"):
    agent = Agent(model, instructions="Be brief.", tools=[look])
    print(agent.run_sync("What is in the notes?").output)
    if not isinstance(model, AnthropicModel):
        print(agent.run_sync("And as an object?", output_type=NativeOutput(Said)).output.answer)
'''
AGENTS = '''
from agents import Agent, Runner, function_tool, set_tracing_disabled

@function_tool
def look(path: str) -> str:
    """Reads a file."""
    return "SECRET"

set_tracing_disabled(True)
agent = Agent(name="a", instructions="Be brief.", model="alpha", tools=[look])
print(Runner.run_sync(agent, "What is in the notes?").final_output)
'''
AI_SDK = """
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const to = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
const look = tool({
  description: "Reads a file.", inputSchema: z.object({ path: z.string() }), execute: async () => "SECRET",
});
const openai = createOpenAI(to), compatible = createOpenAICompatible({ name: "here", ...to });
for (const model of [openai("alpha"), openai.chat("alpha"), compatible("alpha"), createAnthropic(to)("alpha")]) {
  const more = { model, tools: { look }, stopWhen: stepCountIs(3) };
  const onError = ({ error }) => { throw error; };
  console.log(await streamText({ ...more, system: "Be brief.", prompt: "What is in the notes?", onError }).text);
  const output = Output.object({ schema: z.object({ answer: z.string() }) });
  console.log((await generateText({ ...more, prompt: "And as an object?", output })).output.answer);
}
"""
CLIENTS = {
    "claude": InstalledClient(
        packages=("@anthropic-ai/claude-code",),
        words=("-p", QUESTION),
        tool="Read",
        arguments=f'{{"file_path": "<home>/{NOTES}"}}',
    ),
    "codex": InstalledClient(
        packages=("@openai/codex",),
        words=("exec", "--skip-git-repo-check", QUESTION),
        tool="exec_command",
        arguments=f'{{"cmd": "cat {NOTES}"}}',
    ),
    "codex by websocket": InstalledClient(
        packages=("@openai/codex",),
        words=(
            *("exec", "-c", "model_providers.llama-appliance.supports_websockets=true"),
            *("--skip-git-repo-check", QUESTION),
        ),
        tool="exec_command",
        arguments=f'{{"cmd": "cat {NOTES}"}}',
    ),
    "opencode": InstalledClient(
        packages=("opencode-ai",),
        words=("run", QUESTION),
        tool="read",
        arguments=f'{{"filePath": "<home>/{NOTES}"}}',
    ),
    "qwen": InstalledClient(
        packages=("@qwen-code/qwen-code",),
        words=("-p", QUESTION),
        tool="read_file",
        arguments=f'{{"file_path": "<home>/{NOTES}"}}',
        example_turns=1,
    ),
    "continue": InstalledClient(
        packages=("@continuedev/cli",),
        words=("-p", QUESTION),
        tool="Read",
        arguments=f'{{"filepath": "<home>/{NOTES}"}}',
    ),
    "pi": InstalledClient(packages=("@earendil-works/pi-coding-agent",), words=("-p", QUESTION), tool="read"),
    "crush": InstalledClient(
        packages=("@charmland/crush",),
        words=("run", QUESTION),
        tool="view",
        arguments=f'{{"file_path": "<home>/{NOTES}"}}',
    ),
    "aider": InstalledClient(
        packages=("aider-chat",),
        python=True,
        words=("--yes-always", "--no-git", "--message", QUESTION, NOTES),
        tool="",
    ),
    "ai-sdk": InstalledClient(
        packages=("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod"),
        program=AI_SDK,
        environment=OF_OPENAI,
    ),
    "openai": InstalledClient(packages=("openai",), python=True, program=OPENAI, environment=OF_OPENAI),
    "anthropic": InstalledClient(
        packages=("anthropic",),
        python=True,
        program=ANTHROPIC,
        environment=OF_ANTHROPIC,
        expects="'thread' is not supported",
    ),
    "langchain": InstalledClient(
        packages=("langchain-openai", "langchain-anthropic"),
        python=True,
        program=LANGCHAIN,
        environment=MappingProxyType({**OF_OPENAI, **OF_ANTHROPIC}),
    ),
    "pydantic-ai": InstalledClient(
        packages=("pydantic-ai-slim[openai,anthropic]",),
        python=True,
        program=PYDANTIC_AI,
        environment=MappingProxyType({**OF_OPENAI, **OF_ANTHROPIC}),
    ),
    "openai-agents": InstalledClient(packages=("openai-agents",), python=True, program=AGENTS, environment=OF_OPENAI),
}
