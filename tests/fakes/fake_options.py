"""What the fake was told to be: llama-server's own flags, and misbehaviour from flags, environment or request.

Every attribute of `Options` and `Misbehaviour` with a lower-case name is a flag (``--die-after-tokens 3``) and an
environment variable (``FAKE_DIE_AFTER_TOKENS=3``); those of `Misbehaviour` are also fields of a request's own
``"fake": {"die_after_tokens": 3}``, which counts for that request alone. Flags beat the environment.
"""

from __future__ import annotations

import os

from fake_json import as_object

NEVER = -1


class Misbehaviour:
    """What may go wrong with one answer. Counts are tokens, times seconds; `NEVER` (-1) switches a count off."""

    def __init__(self) -> None:
        self.tokens = 8
        self.token_delay = 0.0
        self.token_size = 0
        """Characters of every token; 0 gives words."""
        self.cached = 0
        """Tokens of the prompt that come from the cache."""
        self.slow_prompt = 0.0
        self.die_before_head = False
        self.die_after_tokens = NEVER
        self.die_mid_record = False
        """With die_after_tokens or close_after_tokens: half of the next record is written first."""
        self.exit_code = 1
        """Exit status of every way to die or to fail here; -9 is a death by signal 9."""
        self.stall_after_tokens = NEVER
        self.end_lines = 0
        """So many log lines on stderr, the last thing before the end of an answer."""
        self.slow_end = 0.0
        """Between a stream's last record and the end of its body."""
        self.error_record = NEVER
        """A ``data: {"error": ...}`` record after so many tokens; with 0 the answer is a plain error response."""
        self.malformed_sse = False
        self.close_without_answer = False
        self.close_after_tokens = NEVER
        """Cut the connection within the body of a stream; the process lives on."""
        self.until_close = False
        """A stream has no framing, as of HTTP/1.0: the end of the connection is its end."""
        self.not_http = False
        self.status = 0
        """Refuse with this status and an error envelope marked ``"fake": true``."""
        self.script = ""
        """What is said in a chat, turn by turn, in place of tokens: see fake_script.py."""
        self.echo = False
        """Answer with ``{"head", "body"}`` as received, decoded as Latin-1."""

    def with_request(self, given: object) -> Misbehaviour:
        """These settings under a request's ``fake`` field. Raises ValueError for a name that does not exist."""
        merged = Misbehaviour()
        merged.__dict__.update(self.__dict__)
        for name, value in as_object(given).items():
            set_option(merged, name, str(value))
        return merged


class Options:
    """One run of the fake: the llama-server flags it understands and the ways its process can misbehave."""

    def __init__(self) -> None:
        self.model = ""
        self.alias = ""
        self.host = "127.0.0.1"
        self.port = 8080
        self.api_key = ""
        self.api_prefix = ""
        self.parallel = 4
        self.ctx_size = 4096
        self.mmproj = ""
        self.output = "text"
        """What it says that its answers are: ``decisions``, for a model that decides."""
        self.slot_save_path = ""
        self.metrics = False
        self.slots = True
        self.props = False
        self.embeddings = False
        self.reranking = False
        self.load_delay = 0.0
        self.fail_to_load = False
        self.never_ready = False
        self.late_words = 0.0
        """It answers so many seconds before it says that it is ready."""
        self.list_delay = 0.0
        """Seconds until /v1/models is answered."""
        self.port_taken_once = ""
        """A path: the first run that finds nothing there creates it and claims that its port is taken."""
        self.deaf = False
        """It answers no question while an answer is under way, as a server does that does one thing at a time."""
        self.ignore_sigterm = False
        self.ignore_exit_line = False
        self.huge_log_lines = False
        """One 2 MiB line on stdout and on stderr at the start."""
        self.log_lines = 0
        """So many log lines on stderr, the last thing before it is ready."""
        self.log_flood = False
        """Log lines on stderr without end, as fast as the pipe takes them."""
        self.misbehaviour = Misbehaviour()


ALIASES = {
    "m": "model",
    "a": "alias",
    "c": "ctx_size",
    "np": "parallel",
    "mm": "mmproj",
    "embedding": "embeddings",
    "rerank": "reranking",
    "webui": "ui",
}
VALUELESS = frozenset(("ui", "jinja", "warmup", "mmap", "cont_batching", "verbose", "v", "offline"))
"""llama-server flags without a value that the fake has no use for; for any other it does not know, it guesses."""


def set_option(target: object, name: str, text: str) -> None:
    """Set attribute ``name`` from text, in the type of its default. ValueError: no such name, or not such a value."""
    name = name.replace("-", "_")
    old = target.__dict__.get(name)
    if isinstance(old, bool):
        target.__dict__[name] = text.lower() in ("1", "true", "on", "yes", "enabled")
    elif isinstance(old, (str, int, float)):
        target.__dict__[name] = type(old)(text)
    else:
        raise ValueError(f"the fake has no option {name!r}")


def parse(argv: list[str]) -> Options:
    """Read the environment, then the command line. Raises ValueError for a value of the wrong type."""
    options = Options()
    options.api_key = os.environ.get("LLAMA_API_KEY", "")
    for variable, text in os.environ.items():
        if variable.startswith("FAKE_"):
            _apply(options, variable[len("FAKE_") :].lower(), text)
    at = 0
    while at < len(argv):
        at += _take(options, argv[at], argv[at + 1 : at + 2])
    return options


def _take(options: Options, flag: str, following: list[str]) -> int:
    """Apply one flag; how many words of the command line it was."""
    name = flag.lstrip("-").replace("-", "_")
    name = ALIASES.get(name, name)
    if name.startswith("no_") and name[3:] in (*options.__dict__, *VALUELESS, "webui"):
        _apply(options, name[3:], "off")
        return 1
    known = options.__dict__.get(name, options.misbehaviour.__dict__.get(name))
    if isinstance(known, bool):
        _apply(options, name, "on")
        return 1
    if name in VALUELESS:
        return 1
    has_value = bool(following) and (not following[0].startswith("-") or _is_number(following[0]))
    if known is not None:
        if not has_value:
            raise ValueError(f'error: while handling argument "{flag}": expected value for argument')
        _apply(options, name, following[0])
    return 2 if has_value else 1


def _apply(options: Options, name: str, text: str) -> None:
    if name in options.__dict__:
        set_option(options, name, text)
    elif name in options.misbehaviour.__dict__:
        set_option(options.misbehaviour, name, text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
