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

# One option per row: spellings / negative spellings | kind, and the variable if it has one | the words of ``--help``. A
# row that is too long goes on in an indented line.
_TABLE = """
-h --help --usage | switch | print this list and end
--version | switch | print the version of the engine and end
-cl --cache-list | switch | print the models in the cache and end
--completion-bash | switch | print a script of completions for bash and end
-t --threads | integer LLAMA_ARG_THREADS | processor threads that generate; -1 chooses
-tb --threads-batch | integer | processor threads that read prompts; as --threads unless given
-C --cpu-mask | text | processors to run on, as a hexadecimal mask
-Cr --cpu-range | text | processors to run on, as LOW-HIGH
--cpu-strict | choice | 1 binds each thread to one processor
--prio | integer | priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime
--poll | integer | how eagerly threads look for work, 0 (they sleep) to 100
-Cb --cpu-mask-batch | text | the same mask for reading prompts
-Crb --cpu-range-batch | text | the same range for reading prompts
--cpu-strict-batch | choice | the same binding for reading prompts
--prio-batch | integer | the same priority for reading prompts
--poll-batch | choice | the same eagerness for reading prompts
-c --ctx-size | integer LLAMA_ARG_CTX_SIZE | tokens of context for all slots together; 0 takes the model's own
-n --predict --n-predict | integer LLAMA_ARG_N_PREDICT | tokens that an answer may have; -1: no limit
-b --batch-size | integer LLAMA_ARG_BATCH | tokens of prompts that are taken up at once (2048)
-ub --ubatch-size | integer LLAMA_ARG_UBATCH | tokens of them that are computed at once (512)
--keep | integer | tokens at the beginning that a context shift keeps; -1 is all
--swa-full | switch LLAMA_ARG_SWA_FULL | keep the whole cache of sliding-window attention
-fa --flash-attn | choice LLAMA_ARG_FLASH_ATTN | flash attention: on, off or auto
--perf / --no-perf | toggle LLAMA_ARG_PERF | measure the time of each step
-e --escape / --no-escape | toggle | understand \\n, \\t and the like in reverse prompts
--rope-scaling | choice LLAMA_ARG_ROPE_SCALING_TYPE | how RoPE frequencies are scaled: none, linear or yarn
--rope-scale | number LLAMA_ARG_ROPE_SCALE | factor by which RoPE lengthens the context
--rope-freq-base | number LLAMA_ARG_ROPE_FREQ_BASE | base of RoPE's frequencies; the model's own unless given
--rope-freq-scale | number LLAMA_ARG_ROPE_FREQ_SCALE | factor on RoPE's frequencies; 1/N lengthens the context N times
--yarn-orig-ctx | integer LLAMA_ARG_YARN_ORIG_CTX | YaRN: context that the model was trained with; 0 asks the model
--yarn-ext-factor | number LLAMA_ARG_YARN_EXT_FACTOR | YaRN: how extrapolation and interpolation are mixed
--yarn-attn-factor | number LLAMA_ARG_YARN_ATTN_FACTOR | YaRN: factor on the attention
--yarn-beta-slow | number LLAMA_ARG_YARN_BETA_SLOW | YaRN: upper dimension of the correction
--yarn-beta-fast | number LLAMA_ARG_YARN_BETA_FAST | YaRN: lower dimension of the correction
-kvo --kv-offload / -nkvo --no-kv-offload | toggle LLAMA_ARG_KV_OFFLOAD |
    keep the cache of keys and values on the device
--repack / -nr --no-repack | toggle LLAMA_ARG_REPACK | arrange weights anew for this processor
--no-host | switch LLAMA_ARG_NO_HOST | bypass the host buffer, so that other buffers can be used
-ctk --cache-type-k | choice LLAMA_ARG_CACHE_TYPE_K | type of the cache's keys: f16, q8_0 and so on
-ctv --cache-type-v | choice LLAMA_ARG_CACHE_TYPE_V | type of the cache's values
-dt --defrag-thold | number LLAMA_ARG_DEFRAG_THOLD | accepted without effect; llama.cpp no longer defragments
--rpc | list LLAMA_ARG_RPC | workers on other machines, as HOST:PORT
-lm --load-mode | choice LLAMA_ARG_LOAD_MODE | how the file is read: auto, none, mmap, mlock, mmap+mlock or dio
-lzm --lazy-mode | choice LLAMA_ARG_LAZY_MODE | read some tensors only when they are needed: on, auto or off
--numa | choice LLAMA_ARG_NUMA | placement on machines with several nodes: distribute, isolate or numactl
-dev --device | list LLAMA_ARG_DEVICE | devices to use, from --list-devices; none is the processor alone
--list-devices | switch | print the devices and end
-ot --override-tensor | list LLAMA_ARG_OVERRIDE_TENSOR |
    tensors by name and the buffer that holds them, as PATTERN=BUFFER
-cmoe --cpu-moe | switch LLAMA_ARG_CPU_MOE | keep the weights of all experts on the processor
-ncmoe --n-cpu-moe | integer LLAMA_ARG_N_CPU_MOE | keep the experts of the first N layers on the processor
--moe-cache-mib | integer LLAMA_ARG_MOE_CACHE_MIB | MiB on the device for experts that are often used
-ncffn --n-cpu-ffn | integer LLAMA_ARG_N_CPU_FFN | keep the dense weights of the first N layers on the processor
-ngl --gpu-layers --n-gpu-layers | text LLAMA_ARG_N_GPU_LAYERS | layers on the device: a number, auto or all
-sm --split-mode | choice LLAMA_ARG_SPLIT_MODE | how several devices share the model: none, layer, row or tensor
-ts --tensor-split | list LLAMA_ARG_TENSOR_SPLIT | share of each device, as in 3,1
-mg --main-gpu | integer LLAMA_ARG_MAIN_GPU | the device that is used alone, or holds intermediate results
-fit --fit | choice LLAMA_ARG_FIT | choose what is not given so that it fits into memory: on or off
-fitt --fit-target | list LLAMA_ARG_FIT_TARGET | MiB that --fit leaves free on each device
-fitc --fit-ctx | integer LLAMA_ARG_FIT_CTX | smallest context that --fit may choose
--check-tensors | switch | look for damaged numbers in the weights
--override-kv | list | replace a value of the model's metadata, as KEY=TYPE:VALUE
--op-offload / --no-op-offload | toggle | compute large steps on the device even where weights are not there
--lora | list | adapter to apply; several by commas
--lora-scaled | list | adapter with its strength, as FILE:SCALE or FILE SCALE
--control-vector | list | control vector to apply; several by commas
--control-vector-scaled | list | control vector with its strength, as FILE:SCALE or FILE SCALE
--control-vector-layer-range | pair | first and last layer that control vectors apply to
-m --model | path LLAMA_ARG_MODEL | the model's file
-mu --model-url | text LLAMA_ARG_MODEL_URL | address to download the model from
-dr --docker-repo | text LLAMA_ARG_DOCKER_REPO | model in a registry of images, as [HOST/]NAME[:TAG]
-hf -hfr --hf-repo | text LLAMA_ARG_HF_REPO | model on Hugging Face, as ORG/REPO[:TAG]
-hff --hf-file | path LLAMA_ARG_HF_FILE | file of that repository, instead of the choice by its tag
-hft --hf-token | text HF_TOKEN | Hugging Face access token
--log-disable | switch | write no log
--log-file | path LLAMA_ARG_LOG_FILE | also write the log into this file
--log-jsonl / --no-log-jsonl | toggle LLAMA_ARG_LOG_JSONL | write the log as JSON, one object in a line
--log-colors | choice LLAMA_ARG_LOG_COLORS | colours in the log: on, off or auto
-v --verbose --log-verbose | switch | log everything
--offline | switch LLAMA_ARG_OFFLINE | download nothing
-lv --verbosity --log-verbosity | integer LLAMA_ARG_LOG_VERBOSITY | log what is at most so detailed, a number
--log-prefix / --no-log-prefix | toggle LLAMA_ARG_LOG_PREFIX | begin each line of the log with its level
--log-timestamps / --no-log-timestamps | toggle LLAMA_ARG_LOG_TIMESTAMPS | begin each line of the log with the time
--spec-draft-type-k -ctkd --cache-type-k-draft | choice LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K |
    type of the keys in the draft model's cache
--spec-draft-type-v -ctvd --cache-type-v-draft | choice LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V |
    type of the values in the draft model's cache
--samplers | list | samplers in their order, separated by semicolons
-s --seed | integer | seed of the random numbers; -1 is another one each time
--sampler-seq --sampling-seq | text | samplers in their order, one letter each
--ignore-eos | switch | go on after the model's end of text
--temp --temperature | number LLAMA_ARG_TEMPERATURE | how freely tokens are chosen; 0 takes the likeliest
--top-k | integer LLAMA_ARG_TOP_K | choose among the K likeliest; 0 is all
--top-p | number LLAMA_ARG_TOP_P | choose among the likeliest that together have this probability
--min-p | number LLAMA_ARG_MIN_P | leave out what is less likely than this part of the likeliest
--top-nsigma --top-n-sigma | number | leave out what is further than N deviations from the likeliest; -1 is off
--xtc-probability | number | probability with which the likeliest are left out
--xtc-threshold | number | probability from which a token counts as likely for that
--typical --typical-p | number | locally typical sampling; 1 is off
--repeat-last-n | integer | tokens that penalties look back on; 0 is none, -1 the context
--repeat-penalty | number LLAMA_ARG_REPEAT_PENALTY | penalty of tokens that were there before; 1 is none
--presence-penalty | number LLAMA_ARG_PRESENCE_PENALTY | penalty of tokens that were there at all; 0 is none
--frequency-penalty | number LLAMA_ARG_FREQUENCY_PENALTY | penalty by how often a token was there; 0 is none
--dry-multiplier | number | strength of the penalty for repeated passages; 0 is none
--dry-base | number | base of that penalty
--dry-allowed-length | integer | length of a repetition that costs nothing
--dry-penalty-last-n | integer | tokens that this penalty looks back on
--dry-sequence-breaker | text | text at which a repetition ends; none: no such text
--adaptive-target | number | probability that chosen tokens should have; negative is off
--adaptive-decay | number | how fast that target follows
--dynatemp-range | number | how far the temperature may vary; 0 is not at all
--dynatemp-exp | number | how the temperature follows the uncertainty
--mirostat | integer | Mirostat sampling: 0 off, 1, or 2 for its second version
--mirostat-lr | number | Mirostat's learning rate
--mirostat-ent | number | Mirostat's target
-l --logit-bias | text | make a token likelier or less likely, as ID+BIAS or ID-BIAS
--grammar | text | grammar that answers must follow
--grammar-file | path | file with that grammar
-j --json-schema | json | JSON schema that answers must follow
-jf --json-schema-file | path | file with that schema
-bs --backend-sampling | switch LLAMA_ARG_BACKEND_SAMPLING | choose tokens on the device
--spec-draft-hf -hfd -hfrd --hf-repo-draft | text LLAMA_ARG_SPEC_DRAFT_HF_REPO |
    draft model on Hugging Face, as ORG/REPO[:TAG]
--spec-draft-threads -td --threads-draft | integer | processor threads of the draft model
--spec-draft-threads-batch -tbd --threads-batch-draft | integer |
    processor threads that read prompts for the draft model
--spec-draft-cpu-mask -Cd --cpu-mask-draft | text | processors of the draft model, as a mask
--spec-draft-cpu-range -Crd --cpu-range-draft | text | processors of the draft model, as LOW-HIGH
--spec-draft-cpu-strict --cpu-strict-draft | choice | binding of the draft model's threads
--spec-draft-prio --prio-draft | integer | priority of the draft model's threads
--spec-draft-poll --poll-draft | choice | eagerness of the draft model's threads
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft | text |
    mask of processors that read prompts for the draft model
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft | choice |
    binding of the threads that read prompts for the draft model
--spec-draft-prio-batch --prio-batch-draft | integer | priority of the threads that read prompts for the draft model
--spec-draft-poll-batch --poll-batch-draft | choice | eagerness of the threads that read prompts for the draft model
--spec-draft-override-tensor -otd --override-tensor-draft | list |
    the draft model's tensors and their buffers, as PATTERN=BUFFER
--spec-draft-cpu-moe -cmoed --cpu-moe-draft | switch LLAMA_ARG_SPEC_DRAFT_CPU_MOE |
    keep the draft model's experts on the processor
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft | integer LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE |
    keep the experts of the draft model's first N layers on the processor
--spec-draft-n-max | integer LLAMA_ARG_SPEC_DRAFT_N_MAX | most tokens that a draft guesses ahead
--spec-draft-n-min | integer LLAMA_ARG_SPEC_DRAFT_N_MIN | fewest tokens of a draft that is used
--spec-synth-len | number LLAMA_ARG_SPEC_SYNTH_LEN | for measurements: mean length of made-up accepted drafts
--spec-synth-rates | list LLAMA_ARG_SPEC_SYNTH_RATES | for measurements: rates at which made-up drafts are accepted
--spec-draft-p-split --draft-p-split | number LLAMA_ARG_SPEC_DRAFT_P_SPLIT | probability at which a draft branches
--spec-draft-p-min --draft-p-min | number LLAMA_ARG_SPEC_DRAFT_P_MIN | least probability of a guessed token
--spec-draft-backend-sampling / --no-spec-draft-backend-sampling | toggle LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING |
    choose the draft's tokens on the device
--spec-draft-sampling | choice LLAMA_ARG_SPEC_DRAFT_SAMPLING | how the draft chooses: greedy or probabilistic
--spec-draft-device -devd --device-draft | list | devices of the draft model
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft | text LLAMA_ARG_N_GPU_LAYERS_DRAFT |
    layers of the draft model on the device
--spec-draft-model -md --model-draft | path LLAMA_ARG_SPEC_DRAFT_MODEL | file of the draft model, which guesses ahead
--spec-type | list LLAMA_ARG_SPEC_TYPE | kinds of speculative decoding, by commas
--spec-ngram-mod-n-min | integer | ngram-mod: fewest tokens that it guesses
--spec-ngram-mod-n-max | integer | ngram-mod: most tokens that it guesses
--spec-ngram-mod-n-match | integer | ngram-mod: tokens that must match
--spec-ngram-simple-size-n | integer | ngram-simple: tokens that it looks up
--spec-ngram-simple-size-m | integer | ngram-simple: tokens that it guesses
--spec-ngram-simple-min-hits | integer | ngram-simple: times that the tokens must have come before
--spec-ngram-map-k-size-n | integer | ngram-map-k: tokens that it looks up
--spec-ngram-map-k-size-m | integer | ngram-map-k: tokens that it guesses
--spec-ngram-map-k-min-hits | integer | ngram-map-k: times that the tokens must have come before
--spec-ngram-map-k4v-size-n | integer | ngram-map-k4v: tokens that it looks up
--spec-ngram-map-k4v-size-m | integer | ngram-map-k4v: tokens that it guesses
--spec-ngram-map-k4v-min-hits | integer | ngram-map-k4v: times that the tokens must have come before
--draft --draft-n --draft-max | removed LLAMA_ARG_DRAFT_MAX
--draft-min --draft-n-min | removed LLAMA_ARG_DRAFT_MIN
--spec-ngram-size-n | removed
--spec-ngram-size-m | removed
--spec-ngram-min-hits | removed
-lcs --lookup-cache-static | path | file of guesses that is only read
-lcd --lookup-cache-dynamic | path | file of guesses that generation adds to
--kv-unified-per-slot | integer LLAMA_ARG_KV_UNIFIED_PER_SLOT |
    tokens of a unified cache that are set aside for each slot
-ctxcp --ctx-checkpoints --swa-checkpoints | integer LLAMA_ARG_CTX_CHECKPOINTS |
    most checkpoints of the context for each slot
-cms --checkpoint-min-step | integer LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT | fewest tokens between two checkpoints
-cram --cache-ram | integer LLAMA_ARG_CACHE_RAM | MiB of memory for prompts that may come again; -1: no limit, 0 is none
-kvu --kv-unified / -no-kvu --no-kv-unified | toggle LLAMA_ARG_KV_UNIFIED | one cache for all slots
--cache-idle-slots / --no-cache-idle-slots | toggle LLAMA_ARG_CACHE_IDLE_SLOTS | put the cache of idle slots aside
--context-shift / --no-context-shift | toggle LLAMA_ARG_CONTEXT_SHIFT | drop old tokens when the context is full
-r --reverse-prompt | text | text at which generation stops
-sp --special | switch | put special tokens into answers
--warmup / --no-warmup | toggle | run the model once, empty, before it serves
--spm-infill | switch | /infill puts the suffix before the prefix
--pooling | choice LLAMA_ARG_POOLING | how embeddings of tokens become one: none, mean, cls, last or rank
-np --parallel | integer LLAMA_ARG_N_PARALLEL | slots: requests that are answered at once; -1 chooses
-cb --cont-batching / -nocb --no-cont-batching | toggle LLAMA_ARG_CONT_BATCHING |
    compute the requests of all slots together
-mm --mmproj | path LLAMA_ARG_MMPROJ | file of the projector for images and sound
-mmu --mmproj-url | text LLAMA_ARG_MMPROJ_URL | address to download the projector from
--mmproj-auto / --no-mmproj --no-mmproj-auto | toggle LLAMA_ARG_MMPROJ_AUTO | use a projector that lies beside the model
--mmproj-offload / --no-mmproj-offload | toggle LLAMA_ARG_MMPROJ_OFFLOAD | put the projector on the device
-mmdev --mmproj-device | text MTMD_BACKEND_DEVICE | the device of the projector
--image-min-tokens | integer LLAMA_ARG_IMAGE_MIN_TOKENS | fewest tokens of an image
--image-max-tokens | integer LLAMA_ARG_IMAGE_MAX_TOKENS | most tokens of an image
--mtmd-batch-max-tokens | integer LLAMA_ARG_MTMD_BATCH_MAX_TOKENS | tokens of media that are computed at once
--video-fps | number LLAMA_ARG_VIDEO_FPS | pictures of a second of video that are looked at
--video-timestamp-interval | integer LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL | milliseconds between two time marks in a video
--video-ffmpeg-dir | path LLAMA_ARG_VIDEO_FFMPEG_DIR | folder of ffmpeg, which reads videos
-a --alias | list LLAMA_ARG_ALIAS | names of the model for clients, by commas
--tags | list LLAMA_ARG_TAGS | words about the model, for people
--embd-normalize | integer | how embeddings are normalised; 2 is Euclidean
--host | list LLAMA_ARG_HOST | address to listen on, a list of them, or a file that ends in .sock
--port | integer LLAMA_ARG_PORT | port to listen on; 0 takes a free one
--reuse-port | switch LLAMA_ARG_REUSE_PORT | let other processes listen on the same port
--path | path LLAMA_ARG_STATIC_PATH | folder that is served instead of the page
--cors-origins | list LLAMA_ARG_CORS_ORIGINS | web pages that may use the server
--cors-methods | list LLAMA_ARG_CORS_METHODS | methods that web pages may use
--cors-headers | list LLAMA_ARG_CORS_HEADERS | headers that web pages may send
--cors-credentials / --no-cors-credentials | toggle LLAMA_ARG_CORS_CREDENTIALS | web pages may send credentials
--api-prefix | text LLAMA_ARG_API_PREFIX | path that stands before every route
--ui-config --webui-config | json LLAMA_ARG_UI_CONFIG | settings for the page, as JSON
--ui-config-file --webui-config-file | path LLAMA_ARG_UI_CONFIG_FILE | file with these settings
--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy | toggle LLAMA_ARG_UI_MCP_PROXY |
    let the page reach MCP servers through this one
--tools | list LLAMA_ARG_TOOLS | tools of this machine for models: names, or all
--tools-runtime | text LLAMA_ARG_TOOLS_RUNTIME | where they run: docker, podman or ssh
--tools-root | path | folder that they cannot leave
--allow-unauthenticated | switch | let in other machines without a key
--mcp-servers-config | path LLAMA_ARG_MCP_SERVERS_CONFIG | file that names MCP servers
--mcp-servers-json | json LLAMA_ARG_MCP_SERVERS_JSON | the same as JSON
-ag --agent / -no-ag --no-agent | toggle LLAMA_ARG_AGENT | all tools, and the proxy for MCP
--ui --webui / --no-ui --no-webui | toggle LLAMA_ARG_UI | serve a page at /
--embedding --embeddings | switch LLAMA_ARG_EMBEDDINGS | serve embeddings
--rerank --reranking | switch LLAMA_ARG_RERANKING | serve reranking
--api-key | list LLAMA_API_KEY | keys of clients, by commas
--api-key-file | path LLAMA_ARG_API_KEY_FILE | file with keys, one in a line
--ssl-key-file | path LLAMA_ARG_SSL_KEY_FILE | private key for HTTPS, in PEM form
--ssl-cert-file | path LLAMA_ARG_SSL_CERT_FILE | certificate for HTTPS, in PEM form
--chat-template-kwargs | text LLAMA_ARG_CHAT_TEMPLATE_KWARGS | variables of the chat template, as JSON
-to --timeout | integer LLAMA_ARG_TIMEOUT | seconds after which a silent or slow client is cut off
--sse-ping-interval | integer LLAMA_ARG_SSE_PING_INTERVAL |
    seconds of silence before a stream gets a comment; -1 is never
--threads-http | integer LLAMA_ARG_THREADS_HTTP | accepted without effect; the front needs no threads
--cache-prompt / --no-cache-prompt | toggle LLAMA_ARG_CACHE_PROMPT |
    use the part of a prompt that is in the cache already
--cache-reuse | integer LLAMA_ARG_CACHE_REUSE | fewest tokens that are taken from the cache by a shift; 0 is off
--metrics | switch LLAMA_ARG_ENDPOINT_METRICS | serve /metrics
--props | switch LLAMA_ARG_ENDPOINT_PROPS | let clients change settings by POST /props
--slots / --no-slots | toggle LLAMA_ARG_ENDPOINT_SLOTS | serve /slots
--slot-save-path | path LLAMA_ARG_SLOT_SAVE_PATH | folder for saved slots
--media-path | path | folder of media that requests may name
--models-dir | path LLAMA_ARG_MODELS_DIR | router: folder with models
--models-preset | path LLAMA_ARG_MODELS_PRESET | router: file of presets
--models-max | integer LLAMA_ARG_MODELS_MAX | router: models loaded at once; 0: no limit
--models-autoload / --no-models-autoload | toggle LLAMA_ARG_MODELS_AUTOLOAD |
    router: a request loads the model that it names
--jinja / --no-jinja | toggle LLAMA_ARG_JINJA | use the model's own chat template
--reasoning-format | choice LLAMA_ARG_THINK | where thoughts go: none, auto, deepseek or deepseek-legacy
-rea --reasoning | choice LLAMA_ARG_REASONING | whether the model thinks: on, off or auto
--reasoning-effort | choice LLAMA_ARG_REASONING_EFFORT | how much it thinks, in the template's words
--reasoning-budget | integer LLAMA_ARG_THINK_BUDGET | tokens that it may think; -1: no limit, 0 ends it at once
--reasoning-budget-message | text LLAMA_ARG_THINK_BUDGET_MESSAGE |
    text at which thinking ends when its tokens are used up
--reasoning-preserve / --no-reasoning-preserve | toggle LLAMA_ARG_REASONING_PRESERVE |
    keep earlier thoughts in the conversation
--chat-template | text LLAMA_ARG_CHAT_TEMPLATE | chat template, or the name of a built-in one
--chat-template-file | path LLAMA_ARG_CHAT_TEMPLATE_FILE | file with that template
--skip-chat-parsing / --no-skip-chat-parsing | toggle LLAMA_ARG_SKIP_CHAT_PARSING |
    take an answer as text, without looking for calls and thoughts
--prefill-assistant / --no-prefill-assistant | toggle LLAMA_ARG_PREFILL_ASSISTANT |
    go on with the last message if it is the assistant's
-sps --slot-prompt-similarity | number | how alike prompts must be to take the same slot; 0 is off
--lora-init-without-apply | switch | load adapters, and apply them only when a client asks for it
--sleep-idle-seconds | integer | seconds without a request after which the model sleeps; -1 is never
--log-prompts-dir | path | folder that gets every prompt
--embd-gemma-default | switch | EmbeddingGemma from Hugging Face
--fim-qwen-1.5b-default | switch | Qwen 2.5 Coder 1.5B from Hugging Face, for completion in editors
--fim-qwen-3b-default | switch | Qwen 2.5 Coder 3B, likewise
--fim-qwen-7b-default | switch | Qwen 2.5 Coder 7B, likewise
--fim-qwen-7b-spec | switch | Qwen 2.5 Coder 7B with a draft model
--fim-qwen-14b-spec | switch | Qwen 2.5 Coder 14B with a draft model
--fim-qwen-30b-default | switch | Qwen 3 Coder 30B, likewise
--gpt-oss-20b-default | switch | gpt-oss 20B from Hugging Face
--gpt-oss-120b-default | switch | gpt-oss 120B from Hugging Face
--vision-gemma-4b-default | switch | Gemma 3 4B with images, from Hugging Face
--vision-gemma-12b-default | switch | Gemma 3 12B with images, from Hugging Face
--spec-default | switch | guess ahead by the usual means
"""
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
_HELP_COLUMN = 44


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
    words: str
    """Its explanation in ``--help``; empty for one that has been removed."""

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


def _flag(row: str) -> Flag:
    spelled, kind, *words = (part.strip() for part in row.split("|"))
    positive, _, negative = spelled.partition(" / ")
    kind, _, env = kind.partition(" ")
    return Flag(
        name=positive.split()[-1],
        spellings=tuple(positive.split()),
        negatives=tuple(negative.split()),
        kind=Kind(kind),
        env=env or None,
        words="".join(words),
    )


FLAGS: tuple[Flag, ...] = tuple(map(_flag, _TABLE.strip().replace("\n    ", " ").splitlines()))
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


def explained(flag: Flag) -> str:
    """Return the option's lines in ``--help``: its spellings, what it does, and its variable."""
    values = {Kind.INTEGER: " N", Kind.NUMBER: " X", Kind.PATH: " PATH", Kind.LIST: " A,B,...", Kind.JSON: " JSON"}
    value = " FIRST LAST" if flag.arity == 2 else values.get(flag.kind, " VALUE") if flag.arity else ""
    spelled = ", ".join((*flag.spellings, *flag.negatives)) + value
    words = flag.words + (f" (env: {flag.env})" if flag.env else "")
    gap = f"\n{'':{_HELP_COLUMN}}" if len(spelled) > _HELP_COLUMN - 2 else " " * (_HELP_COLUMN - len(spelled))
    return f"{spelled}{gap}{words}"


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
