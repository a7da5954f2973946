"""Chat templates in our own words, each with the rules of a family of models, and models that have them.

A rule is what such a template refuses or leaves out; the words that it writes do not matter.
"""

from __future__ import annotations

from pathlib import Path

from gguf_files import Value
from hollow_models import dense
from random_models import VOCABULARY, write_random

_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    'Call one as <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|im_end|>\n{% endif %}'
)
_CALLS = (
    "{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>\n{% endfor %}"
)
_SAY = "<|im_start|>{{ m.role }}\n{{ m.content }}"
_END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_ALTERNATE = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"

ONE_SYSTEM_FIRST = (
    _TOOLS + "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    + _SAY
    + "{% if m.tool_calls %}"
    + _CALLS
    + "{% endif %}<|im_end|>\n{% endfor %}"
    + _END
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + _ALTERNATE
    + "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ALTERNATE = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + _ALTERNATE
    + "{% endif %}{% if m.role == 'user' %}[INST] {% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
ALTERNATE_TOOLS = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% set ns = namespace(at=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.at % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}"
    "{% endif %}{% set ns.at = ns.at + 1 %}{% endif %}{% endfor %}"
    "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}[SYSTEM]{{ m.content }}[/SYSTEM]"
    "{% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}{% for call in m.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    '[TOOL_CALLS] [{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, '
    '"id": "{{ call.id }}"}]</s>{% endfor %}'
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
ENDS_WITH_USER = (
    "{% if messages[-1].role != 'user' %}{{ raise_exception('The last message must be from the user') }}{% endif %}"
    "{% for m in messages %}" + _SAY + "<|im_end|>\n{% endfor %}" + _END
)
ARGUMENTS_PARSED = (
    _TOOLS
    + "{% for m in messages %}"
    + _SAY
    + "{% for call in m.tool_calls %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}" + _END
)
NO_TOOLS = "{% for m in messages %}" + _SAY + "<|im_end|>\n{% endfor %}" + _END
THINKING = (
    _TOOLS + "{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}"
    "{% if m.tool_calls %}" + _CALLS + "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
DEVELOPER_ONLY = (
    "{% for m in messages %}{% if m.role not in ['developer', 'user', 'assistant'] %}"
    "{{ raise_exception('Role ' + m.role + ' is not supported, use developer') }}{% endif %}"
    "<role>{{ m.role }}</role>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<role>assistant</role>{% endif %}"
)
CHANNELS = (
    "<|start|>system<|message|>You are a model. Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% if messages[0].role in ['system', 'developer'] %}<|start|>developer<|message|>{{ messages[0].content }}<|end|>"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% if tools %}<|start|>developer<|message|># Tools\n{% for tool in tools %}{{ tool.function.name }}: "
    "{{ tool.function.description }}\n{% endfor %}<|end|>{% endif %}"
    "{% set ns = namespace(called='') %}{% for m in rest %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking in an assistant "
    "message with tool calls!') }}{% endif %}"
    "{% set ns.called = m.tool_calls[0].function.name %}"
    "<|start|>assistant<|lane|>commentary to=functions.{{ ns.called }} <|constrain|>json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}{% if not ns.called %}"
    "{{ raise_exception('Message has tool role, but there was no previous assistant message with a tool call!') }}"
    "{% endif %}<|start|>functions.{{ ns.called }} to=assistant<|lane|>commentary<|message|>{{ m.content | tojson }}"
    "<|end|>{% elif m.role == 'assistant' %}<|start|>assistant<|lane|>final<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    + _SAY
    + "<|im_end|>\n{% else %}{{ raise_exception('Unknown role: ' + m.role) }}{% endif %}{% endfor %}"
    + _END
)
TEXT_CONTENT = (
    "{% for m in messages %}{% if m.content is not string or not m.content %}"
    "{{ raise_exception('Content must be a string that is not empty') }}{% endif %}"
    + _SAY
    + "<|im_end|>\n{% endfor %}"
    + _END
)
DATED = (
    "<|im_start|>system\nToday: {{ strftime_now('%d %b %Y') }}<|im_end|>\n{% for m in messages %}"
    + _SAY
    + "<|im_end|>\n{% endfor %}"
    + _END
)
UNREADABLE = (
    "{% for tool in tools %}{% if tool.function.name != 'known' %}{{ raise_exception('Unknown form of a tool') }}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}"
    + _SAY
    + "{% for call in m.tool_calls %}{{ call.function.name }}={{ A }}{% endfor %}<|im_end|>\n{% endfor %}"
    + _END
)

SPACED = "spaced"
"""Its vocabulary puts a space in front of every text, as those of the first models did."""
_ANGLES = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

TEMPLATES = {
    "one-system-first": ONE_SYSTEM_FIRST,
    "no-system": NO_SYSTEM,
    "alternate": ALTERNATE,
    "alternate-tools": ALTERNATE_TOOLS,
    "ends-with-user": ENDS_WITH_USER,
    "arguments-parsed": ARGUMENTS_PARSED,
    "no-tools": NO_TOOLS,
    "thinking": THINKING,
    "developer-only": DEVELOPER_ONLY,
    "channels": CHANNELS,
    "known-roles": KNOWN_ROLES,
    "text-content": TEXT_CONTENT,
    "dated": DATED,
    "unreadable": UNREADABLE,
    SPACED: _ANGLES,
}


def write_model(folder: Path, name: str) -> Path:
    """Write a model of one layer with this template."""
    keys: dict[str, Value] = {"tokenizer.chat_template": TEMPLATES[name]}
    if name == SPACED:
        letters = [chr(code) for code in range(33, 127)]
        known = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
        known += [f"\u2581{letter}" for letter in letters]
        keys["tokenizer.ggml.tokens"] = known + [f"t{number}" for number in range(VOCABULARY - len(known))]
        keys["tokenizer.ggml.scores"] = [-float(number) for number in range(VOCABULARY)]
    else:
        keys["tokenizer.ggml.add_space_prefix"] = False
    return write_random(folder / f"{name}.gguf", dense(
        layers=1, width=64, heads=2, kv_heads=1, head=32, forward=64, vocabulary=VOCABULARY, weights="F32",
        context=8192, keys=keys,
    ))  # fmt: skip
