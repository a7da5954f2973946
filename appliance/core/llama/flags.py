"""llama-server's command line as data: every option of llama.cpp b11434, its spellings, arity and environment name.

Source: `llama-server --help` of that release and the parsing rules behind it; --moe-cache-mib and the variable of
--slot-save-path came later, with the release that the embedded engine is built from. --tools-root and
--allow-unauthenticated are this program's own. Users: the embedded engine, which carries these options itself, and the
front that stands in for `llama-server`, which keeps some and passes the rest on. Only the standard library is imported:
a request for a model on the embedded engine waits for its process to import this file, and msgspec takes 25
milliseconds. The file is long because the table is; the rules are the half below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from appliance.errors import UsageError

# One option per line: spellings / negative spellings, kind, and the environment name if it has one.
_TABLE = """
-h --help --usage                                                  switch
--version                                                          switch
-cl --cache-list                                                   switch
--completion-bash                                                  switch
-t --threads                                                       integer  LLAMA_ARG_THREADS
-tb --threads-batch                                                integer
-C --cpu-mask                                                      text
-Cr --cpu-range                                                    text
--cpu-strict                                                       choice
--prio                                                             integer
--poll                                                             integer
-Cb --cpu-mask-batch                                               text
-Crb --cpu-range-batch                                             text
--cpu-strict-batch                                                 choice
--prio-batch                                                       integer
--poll-batch                                                       choice
-c --ctx-size                                                      integer  LLAMA_ARG_CTX_SIZE
-n --predict --n-predict                                           integer  LLAMA_ARG_N_PREDICT
-b --batch-size                                                    integer  LLAMA_ARG_BATCH
-ub --ubatch-size                                                  integer  LLAMA_ARG_UBATCH
--keep                                                             integer
--swa-full                                                         switch   LLAMA_ARG_SWA_FULL
-fa --flash-attn                                                   choice   LLAMA_ARG_FLASH_ATTN
--perf / --no-perf                                                 toggle   LLAMA_ARG_PERF
-e --escape / --no-escape                                          toggle
--rope-scaling                                                     choice   LLAMA_ARG_ROPE_SCALING_TYPE
--rope-scale                                                       number   LLAMA_ARG_ROPE_SCALE
--rope-freq-base                                                   number   LLAMA_ARG_ROPE_FREQ_BASE
--rope-freq-scale                                                  number   LLAMA_ARG_ROPE_FREQ_SCALE
--yarn-orig-ctx                                                    integer  LLAMA_ARG_YARN_ORIG_CTX
--yarn-ext-factor                                                  number   LLAMA_ARG_YARN_EXT_FACTOR
--yarn-attn-factor                                                 number   LLAMA_ARG_YARN_ATTN_FACTOR
--yarn-beta-slow                                                   number   LLAMA_ARG_YARN_BETA_SLOW
--yarn-beta-fast                                                   number   LLAMA_ARG_YARN_BETA_FAST
-kvo --kv-offload / -nkvo --no-kv-offload                          toggle   LLAMA_ARG_KV_OFFLOAD
--repack / -nr --no-repack                                         toggle   LLAMA_ARG_REPACK
--no-host                                                          switch   LLAMA_ARG_NO_HOST
-ctk --cache-type-k                                                choice   LLAMA_ARG_CACHE_TYPE_K
-ctv --cache-type-v                                                choice   LLAMA_ARG_CACHE_TYPE_V
-dt --defrag-thold                                                 number   LLAMA_ARG_DEFRAG_THOLD
--rpc                                                              list     LLAMA_ARG_RPC
-lm --load-mode                                                    choice   LLAMA_ARG_LOAD_MODE
-lzm --lazy-mode                                                   choice   LLAMA_ARG_LAZY_MODE
--numa                                                             choice   LLAMA_ARG_NUMA
-dev --device                                                      list     LLAMA_ARG_DEVICE
--list-devices                                                     switch
-ot --override-tensor                                              list     LLAMA_ARG_OVERRIDE_TENSOR
-cmoe --cpu-moe                                                    switch   LLAMA_ARG_CPU_MOE
-ncmoe --n-cpu-moe                                                 integer  LLAMA_ARG_N_CPU_MOE
--moe-cache-mib                                                    integer  LLAMA_ARG_MOE_CACHE_MIB
-ncffn --n-cpu-ffn                                                 integer  LLAMA_ARG_N_CPU_FFN
-ngl --gpu-layers --n-gpu-layers                                   text     LLAMA_ARG_N_GPU_LAYERS
-sm --split-mode                                                   choice   LLAMA_ARG_SPLIT_MODE
-ts --tensor-split                                                 list     LLAMA_ARG_TENSOR_SPLIT
-mg --main-gpu                                                     integer  LLAMA_ARG_MAIN_GPU
-fit --fit                                                         choice   LLAMA_ARG_FIT
-fitt --fit-target                                                 list     LLAMA_ARG_FIT_TARGET
-fitc --fit-ctx                                                    integer  LLAMA_ARG_FIT_CTX
--check-tensors                                                    switch
--override-kv                                                      list
--op-offload / --no-op-offload                                     toggle
--lora                                                             list
--lora-scaled                                                      list
--control-vector                                                   list
--control-vector-scaled                                            list
--control-vector-layer-range                                       pair
-m --model                                                         path     LLAMA_ARG_MODEL
-mu --model-url                                                    text     LLAMA_ARG_MODEL_URL
-dr --docker-repo                                                  text     LLAMA_ARG_DOCKER_REPO
-hf -hfr --hf-repo                                                 text     LLAMA_ARG_HF_REPO
-hff --hf-file                                                     path     LLAMA_ARG_HF_FILE
-hft --hf-token                                                    text     HF_TOKEN
--log-disable                                                      switch
--log-file                                                         path     LLAMA_ARG_LOG_FILE
--log-jsonl / --no-log-jsonl                                       toggle   LLAMA_ARG_LOG_JSONL
--log-colors                                                       choice   LLAMA_ARG_LOG_COLORS
-v --verbose --log-verbose                                         switch
--offline                                                          switch   LLAMA_ARG_OFFLINE
-lv --verbosity --log-verbosity                                    integer  LLAMA_ARG_LOG_VERBOSITY
--log-prefix / --no-log-prefix                                     toggle   LLAMA_ARG_LOG_PREFIX
--log-timestamps / --no-log-timestamps                             toggle   LLAMA_ARG_LOG_TIMESTAMPS
--spec-draft-type-k -ctkd --cache-type-k-draft                     choice   LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K
--spec-draft-type-v -ctvd --cache-type-v-draft                     choice   LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V
--samplers                                                         list
-s --seed                                                          integer
--sampler-seq --sampling-seq                                       text
--ignore-eos                                                       switch
--temp --temperature                                               number   LLAMA_ARG_TEMPERATURE
--top-k                                                            integer  LLAMA_ARG_TOP_K
--top-p                                                            number   LLAMA_ARG_TOP_P
--min-p                                                            number   LLAMA_ARG_MIN_P
--top-nsigma --top-n-sigma                                         number
--xtc-probability                                                  number
--xtc-threshold                                                    number
--typical --typical-p                                              number
--repeat-last-n                                                    integer
--repeat-penalty                                                   number   LLAMA_ARG_REPEAT_PENALTY
--presence-penalty                                                 number   LLAMA_ARG_PRESENCE_PENALTY
--frequency-penalty                                                number   LLAMA_ARG_FREQUENCY_PENALTY
--dry-multiplier                                                   number
--dry-base                                                         number
--dry-allowed-length                                               integer
--dry-penalty-last-n                                               integer
--dry-sequence-breaker                                             text
--adaptive-target                                                  number
--adaptive-decay                                                   number
--dynatemp-range                                                   number
--dynatemp-exp                                                     number
--mirostat                                                         integer
--mirostat-lr                                                      number
--mirostat-ent                                                     number
-l --logit-bias                                                    text
--grammar                                                          text
--grammar-file                                                     path
-j --json-schema                                                   json
-jf --json-schema-file                                             path
-bs --backend-sampling                                             switch   LLAMA_ARG_BACKEND_SAMPLING
--spec-draft-hf -hfd -hfrd --hf-repo-draft                         text     LLAMA_ARG_SPEC_DRAFT_HF_REPO
--spec-draft-threads -td --threads-draft                           integer
--spec-draft-threads-batch -tbd --threads-batch-draft              integer
--spec-draft-cpu-mask -Cd --cpu-mask-draft                         text
--spec-draft-cpu-range -Crd --cpu-range-draft                      text
--spec-draft-cpu-strict --cpu-strict-draft                         choice
--spec-draft-prio --prio-draft                                     integer
--spec-draft-poll --poll-draft                                     choice
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft            text
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft             choice
--spec-draft-prio-batch --prio-batch-draft                         integer
--spec-draft-poll-batch --poll-batch-draft                         choice
--spec-draft-override-tensor -otd --override-tensor-draft          list
--spec-draft-cpu-moe -cmoed --cpu-moe-draft                        switch   LLAMA_ARG_SPEC_DRAFT_CPU_MOE
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft integer  LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE
--spec-draft-n-max                                                 integer  LLAMA_ARG_SPEC_DRAFT_N_MAX
--spec-draft-n-min                                                 integer  LLAMA_ARG_SPEC_DRAFT_N_MIN
--spec-synth-len                                                   number   LLAMA_ARG_SPEC_SYNTH_LEN
--spec-synth-rates                                                 list     LLAMA_ARG_SPEC_SYNTH_RATES
--spec-draft-p-split --draft-p-split                               number   LLAMA_ARG_SPEC_DRAFT_P_SPLIT
--spec-draft-p-min --draft-p-min                                   number   LLAMA_ARG_SPEC_DRAFT_P_MIN
--spec-draft-backend-sampling / --no-spec-draft-backend-sampling   toggle   LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
--spec-draft-sampling                                              choice   LLAMA_ARG_SPEC_DRAFT_SAMPLING
--spec-draft-device -devd --device-draft                           list
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft     text     LLAMA_ARG_N_GPU_LAYERS_DRAFT
--spec-draft-model -md --model-draft                               path     LLAMA_ARG_SPEC_DRAFT_MODEL
--spec-type                                                        list     LLAMA_ARG_SPEC_TYPE
--spec-ngram-mod-n-min                                             integer
--spec-ngram-mod-n-max                                             integer
--spec-ngram-mod-n-match                                           integer
--spec-ngram-simple-size-n                                         integer
--spec-ngram-simple-size-m                                         integer
--spec-ngram-simple-min-hits                                       integer
--spec-ngram-map-k-size-n                                          integer
--spec-ngram-map-k-size-m                                          integer
--spec-ngram-map-k-min-hits                                        integer
--spec-ngram-map-k4v-size-n                                        integer
--spec-ngram-map-k4v-size-m                                        integer
--spec-ngram-map-k4v-min-hits                                      integer
--draft --draft-n --draft-max                                      removed  LLAMA_ARG_DRAFT_MAX
--draft-min --draft-n-min                                          removed  LLAMA_ARG_DRAFT_MIN
--spec-ngram-size-n                                                removed
--spec-ngram-size-m                                                removed
--spec-ngram-min-hits                                              removed
-lcs --lookup-cache-static                                         path
-lcd --lookup-cache-dynamic                                        path
--kv-unified-per-slot                                              integer  LLAMA_ARG_KV_UNIFIED_PER_SLOT
-ctxcp --ctx-checkpoints --swa-checkpoints                         integer  LLAMA_ARG_CTX_CHECKPOINTS
-cms --checkpoint-min-step                                         integer  LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT
-cram --cache-ram                                                  integer  LLAMA_ARG_CACHE_RAM
-kvu --kv-unified / -no-kvu --no-kv-unified                        toggle   LLAMA_ARG_KV_UNIFIED
--cache-idle-slots / --no-cache-idle-slots                         toggle   LLAMA_ARG_CACHE_IDLE_SLOTS
--context-shift / --no-context-shift                               toggle   LLAMA_ARG_CONTEXT_SHIFT
-r --reverse-prompt                                                text
-sp --special                                                      switch
--warmup / --no-warmup                                             toggle
--spm-infill                                                       switch
--pooling                                                          choice   LLAMA_ARG_POOLING
-np --parallel                                                     integer  LLAMA_ARG_N_PARALLEL
-cb --cont-batching / -nocb --no-cont-batching                     toggle   LLAMA_ARG_CONT_BATCHING
-mm --mmproj                                                       path     LLAMA_ARG_MMPROJ
-mmu --mmproj-url                                                  text     LLAMA_ARG_MMPROJ_URL
--mmproj-auto / --no-mmproj --no-mmproj-auto                       toggle   LLAMA_ARG_MMPROJ_AUTO
--mmproj-offload / --no-mmproj-offload                             toggle   LLAMA_ARG_MMPROJ_OFFLOAD
-mmdev --mmproj-device                                             text     MTMD_BACKEND_DEVICE
--image-min-tokens                                                 integer  LLAMA_ARG_IMAGE_MIN_TOKENS
--image-max-tokens                                                 integer  LLAMA_ARG_IMAGE_MAX_TOKENS
--mtmd-batch-max-tokens                                            integer  LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
--video-fps                                                        number   LLAMA_ARG_VIDEO_FPS
--video-timestamp-interval                                         integer  LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
--video-ffmpeg-dir                                                 path     LLAMA_ARG_VIDEO_FFMPEG_DIR
-a --alias                                                         list     LLAMA_ARG_ALIAS
--tags                                                             list     LLAMA_ARG_TAGS
--embd-normalize                                                   integer
--host                                                             list     LLAMA_ARG_HOST
--port                                                             integer  LLAMA_ARG_PORT
--reuse-port                                                       switch   LLAMA_ARG_REUSE_PORT
--path                                                             path     LLAMA_ARG_STATIC_PATH
--cors-origins                                                     list     LLAMA_ARG_CORS_ORIGINS
--cors-methods                                                     list     LLAMA_ARG_CORS_METHODS
--cors-headers                                                     list     LLAMA_ARG_CORS_HEADERS
--cors-credentials / --no-cors-credentials                         toggle   LLAMA_ARG_CORS_CREDENTIALS
--api-prefix                                                       text     LLAMA_ARG_API_PREFIX
--ui-config --webui-config                                         json     LLAMA_ARG_UI_CONFIG
--ui-config-file --webui-config-file                               path     LLAMA_ARG_UI_CONFIG_FILE
--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy toggle   LLAMA_ARG_UI_MCP_PROXY
--tools                                                            list     LLAMA_ARG_TOOLS
--tools-runtime                                                    text     LLAMA_ARG_TOOLS_RUNTIME
--tools-root                                                       path
--allow-unauthenticated                                            switch
--mcp-servers-config                                               path     LLAMA_ARG_MCP_SERVERS_CONFIG
--mcp-servers-json                                                 json     LLAMA_ARG_MCP_SERVERS_JSON
-ag --agent / -no-ag --no-agent                                    toggle   LLAMA_ARG_AGENT
--ui --webui / --no-ui --no-webui                                  toggle   LLAMA_ARG_UI
--embedding --embeddings                                           switch   LLAMA_ARG_EMBEDDINGS
--rerank --reranking                                               switch   LLAMA_ARG_RERANKING
--api-key                                                          list     LLAMA_API_KEY
--api-key-file                                                     path     LLAMA_ARG_API_KEY_FILE
--ssl-key-file                                                     path     LLAMA_ARG_SSL_KEY_FILE
--ssl-cert-file                                                    path     LLAMA_ARG_SSL_CERT_FILE
--chat-template-kwargs                                             text     LLAMA_ARG_CHAT_TEMPLATE_KWARGS
-to --timeout                                                      integer  LLAMA_ARG_TIMEOUT
--sse-ping-interval                                                integer  LLAMA_ARG_SSE_PING_INTERVAL
--threads-http                                                     integer  LLAMA_ARG_THREADS_HTTP
--cache-prompt / --no-cache-prompt                                 toggle   LLAMA_ARG_CACHE_PROMPT
--cache-reuse                                                      integer  LLAMA_ARG_CACHE_REUSE
--metrics                                                          switch   LLAMA_ARG_ENDPOINT_METRICS
--props                                                            switch   LLAMA_ARG_ENDPOINT_PROPS
--slots / --no-slots                                               toggle   LLAMA_ARG_ENDPOINT_SLOTS
--slot-save-path                                                   path     LLAMA_ARG_SLOT_SAVE_PATH
--media-path                                                       path
--models-dir                                                       path     LLAMA_ARG_MODELS_DIR
--models-preset                                                    path     LLAMA_ARG_MODELS_PRESET
--models-max                                                       integer  LLAMA_ARG_MODELS_MAX
--models-autoload / --no-models-autoload                           toggle   LLAMA_ARG_MODELS_AUTOLOAD
--jinja / --no-jinja                                               toggle   LLAMA_ARG_JINJA
--reasoning-format                                                 choice   LLAMA_ARG_THINK
-rea --reasoning                                                   choice   LLAMA_ARG_REASONING
--reasoning-effort                                                 choice   LLAMA_ARG_REASONING_EFFORT
--reasoning-budget                                                 integer  LLAMA_ARG_THINK_BUDGET
--reasoning-budget-message                                         text     LLAMA_ARG_THINK_BUDGET_MESSAGE
--reasoning-preserve / --no-reasoning-preserve                     toggle   LLAMA_ARG_REASONING_PRESERVE
--chat-template                                                    text     LLAMA_ARG_CHAT_TEMPLATE
--chat-template-file                                               path     LLAMA_ARG_CHAT_TEMPLATE_FILE
--skip-chat-parsing / --no-skip-chat-parsing                       toggle   LLAMA_ARG_SKIP_CHAT_PARSING
--prefill-assistant / --no-prefill-assistant                       toggle   LLAMA_ARG_PREFILL_ASSISTANT
-sps --slot-prompt-similarity                                      number
--lora-init-without-apply                                          switch
--sleep-idle-seconds                                               integer
--log-prompts-dir                                                  path
--embd-gemma-default                                               switch
--fim-qwen-1.5b-default                                            switch
--fim-qwen-3b-default                                              switch
--fim-qwen-7b-default                                              switch
--fim-qwen-7b-spec                                                 switch
--fim-qwen-14b-spec                                                switch
--fim-qwen-30b-default                                             switch
--gpt-oss-20b-default                                              switch
--gpt-oss-120b-default                                             switch
--vision-gemma-4b-default                                          switch
--vision-gemma-12b-default                                         switch
--spec-default                                                     switch"""
REPLACEMENT = {
    "--draft-max": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-n-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "--spec-ngram-simple-size-n, --spec-ngram-map-k-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "--spec-ngram-simple-size-m or --spec-ngram-map-k-size-m",
    "--spec-ngram-min-hits": "--spec-ngram-simple-min-hits or --spec-ngram-map-k-min-hits",
}
# Spellings of earlier releases that configurations still carry, and what they are called now.
_FORMER = {
    "--mmap": ("--load-mode", "mmap"),
    "--no-mmap": ("--load-mode", "none"),
    "--mlock": ("--load-mode", "mlock"),
    "--direct-io": ("--load-mode", "dio"),
    "-dio": ("--load-mode", "dio"),
}
TRUE_WORDS = frozenset({"on", "enabled", "true", "1"})
FALSE_WORDS = frozenset({"off", "disabled", "false", "0"})


class Kind(StrEnum):
    """The kind of an option's value. Only SWITCH and TOGGLE take none; only PAIR takes two."""

    SWITCH = "switch"
    TOGGLE = "toggle"  # a switch with a negative spelling
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    PATH = "path"
    LIST = "list"  # comma-separated
    CHOICE = "choice"
    JSON = "json"
    PAIR = "pair"
    REMOVED = "removed"  # still recognised by llama.cpp, only to say what replaced it


class Flag(NamedTuple):
    """One option. ``name`` is its last positive spelling, which llama.cpp's own router also writes."""

    name: str
    spellings: tuple[str, ...]
    negatives: tuple[str, ...]
    kind: Kind
    env: str | None

    @property
    def arity(self) -> int:
        """Number of words that follow the flag."""
        return {Kind.SWITCH: 0, Kind.TOGGLE: 0, Kind.PAIR: 2}.get(self.kind, 1)

    @property
    def env_off(self) -> str | None:
        """The older variable that turns a toggle off whatever its value, such as LLAMA_ARG_NO_JINJA."""
        if self.env is None or self.kind is not Kind.TOGGLE:
            return None
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)


class Option(NamedTuple):
    """One option as given: ``words`` is what was written, ``canonical`` and ``values`` what it means.

    ``on`` is false for a negative spelling. ``flag`` is the first word, or the variable's name.
    """

    flag: str
    canonical: str
    values: tuple[str, ...]
    words: tuple[str, ...]
    on: bool = True


def _flag(line: str) -> Flag:
    *spelled, end = line.split()
    env = end if end.isupper() else None
    kind = spelled.pop() if env else end
    cut = spelled.index("/") if "/" in spelled else len(spelled)
    name = spelled[:cut][-1]
    return Flag(
        name=name,
        spellings=tuple(spelled[:cut]),
        negatives=tuple(spelled[cut + 1 :]),
        kind=Kind(kind),
        env=env,
    )


FLAGS: tuple[Flag, ...] = tuple(_flag(line) for line in _TABLE.strip().splitlines())
_BY_SPELLING = {word: flag for flag in FLAGS for word in (*flag.spellings, *flag.negatives)}


def normalise(word: str) -> str:
    """Treat ``--foo_bar`` as ``--foo-bar``; short forms stay as they are."""
    return word.replace("_", "-") if word.startswith("--") else word


def lookup(spelling: str) -> Flag | None:
    """Return the option with this spelling, former options included."""
    word = normalise(spelling)
    return _BY_SPELLING.get(_FORMER[word][0] if word in _FORMER else word)


def split(argv: Sequence[str]) -> list[Option]:
    """Read a llama-server command line (without the program's name), in order.

    Raises UsageError, naming the flag, for an unknown or removed one and for a missing value.
    """
    options: list[Option] = []
    at = 0
    while at < len(argv):
        options.append(option_at(argv, at))
        at += len(options[-1].words)
    return options


def option_at(argv: Sequence[str], at: int) -> Option:
    """Read the option that begins with this word. Raises UsageError as `split` does."""
    said = argv[at]
    word = normalise(said)
    if word in _FORMER:
        canonical, value = _FORMER[word]
        return Option(flag=said, canonical=canonical, values=(value,), words=(said,))
    flag = _BY_SPELLING.get(word)
    if flag is None:
        raise UsageError(_unknown(said))
    if flag.kind is Kind.REMOVED:
        raise UsageError(_removed(said, flag))
    words = tuple(argv[at : at + 1 + flag.arity])
    if len(words) <= flag.arity:
        raise UsageError(f"{said} needs {'two values' if flag.arity == 2 else 'a value'}")
    return Option(flag=said, canonical=flag.name, values=words[1:], on=word not in flag.negatives, words=words)


def from_env(environ: Mapping[str, str]) -> list[Option]:
    """The options that LLAMA_ARG_* and its few siblings set, in table order.

    A switch counts when its variable is on/enabled/true/1. Raises UsageError for a toggle that is neither on nor off,
    and for the variable of a removed option.
    """
    options: list[Option] = []
    for flag in FLAGS:
        if flag.env is None:
            continue
        if flag.kind is Kind.REMOVED and flag.env in environ:
            raise UsageError(_removed(flag.env, flag))
        if flag.env_off is not None and flag.env_off in environ:
            options.append(_switched(flag, flag.env_off, on=False))
        elif flag.env in environ:
            value = environ[flag.env]
            if flag.arity == 1:
                words = (flag.name, value)
                options.append(Option(flag=flag.env, canonical=flag.name, values=(value,), words=words))
            elif value in TRUE_WORDS:
                options.append(_switched(flag, flag.env, on=True))
            elif flag.kind is Kind.TOGGLE:
                if value not in FALSE_WORDS:
                    raise UsageError(f"{flag.env} must be on or off, not {value!r}")
                options.append(_switched(flag, flag.env, on=False))
    return options


def merge(from_argv: Sequence[Option], from_environ: Sequence[Option]) -> list[Option]:
    """Join both sources in the order to apply them; an option on the command line hides its variable."""
    said = {option.canonical for option in from_argv}
    return [*(option for option in from_environ if option.canonical not in said), *from_argv]


def partition(options: Iterable[Option], names: Collection[str]) -> tuple[list[Option], list[Option]]:
    """Split into the named options and the others, each in order; a name may be any spelling of an option."""
    wanted = {canonical(name) for name in names}
    mine: list[Option] = []
    rest: list[Option] = []
    for option in options:
        (mine if option.canonical in wanted else rest).append(option)
    return mine, rest


def last(options: Iterable[Option], name: str) -> Option | None:
    """Return the occurrence that counts: in llama-server a later one replaces an earlier one."""
    wanted = canonical(name)
    return next((option for option in reversed(list(options)) if option.canonical == wanted), None)


def render(options: Iterable[Option]) -> list[str]:
    """Return command line words for these options, as they were written, so that any release of the engine reads
    them. Only switches that the followed release refuses, such as ``--no-mmap``, become what they mean.
    """
    words: list[str] = []
    for option in options:
        former = normalise(option.flag) in _FORMER
        words += (option.canonical, *option.values) if former else option.words
    return words


def canonical(name: str) -> str:
    """Return `Option.canonical` for any spelling of an option."""
    flag = lookup(name)
    if flag is None:
        raise KeyError(name)
    return flag.name


def _switched(flag: Flag, variable: str, *, on: bool) -> Option:
    word = flag.name if on else flag.negatives[-1]
    return Option(flag=variable, canonical=flag.name, values=(), on=on, words=(word,))


def _removed(said: str, flag: Flag) -> str:
    return f"{said} has been removed from llama-server; use {REPLACEMENT[flag.name]}"


def _unknown(word: str) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; llama-server takes flags only"
    name, equals, _ = word.partition("=")
    if equals and lookup(name) is not None:
        return f"unknown flag {word}; write the value as a word of its own: {name} VALUE"
    from difflib import get_close_matches  # only on the way to an error

    near = get_close_matches(normalise(word), _BY_SPELLING, n=1, cutoff=0.8)
    return f"unknown flag {word}" + (f"; did you mean {near[0]}?" if near else "")
