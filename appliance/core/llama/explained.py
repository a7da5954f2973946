"""The words of ``--help`` about llama-server's options: one line for each, in the order of their table.

Kept apart from `flags`, which a model's process imports before it can load anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.core.llama.flags import FLAGS, Flag, Kind

_TABLE = """
--usage                      print this list and end
--version                    print the version of the engine and end
--cache-list                 print the models in the cache and end
--completion-bash            print a script of completions for bash and end
--threads                    processor threads that generate; -1 chooses
--threads-batch              processor threads that read prompts; as --threads unless given
--cpu-mask                   processors to run on, as a hexadecimal mask
--cpu-range                  processors to run on, as LOW-HIGH
--cpu-strict                 1 binds each thread to one processor
--prio                       priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime
--poll                       how eagerly threads look for work, 0 (they sleep) to 100
--cpu-mask-batch             the same mask for reading prompts
--cpu-range-batch            the same range for reading prompts
--cpu-strict-batch           the same binding for reading prompts
--prio-batch                 the same priority for reading prompts
--poll-batch                 the same eagerness for reading prompts
--ctx-size                   tokens of context for all slots together; 0 takes the model's own
--n-predict                  tokens that an answer may have; -1: no limit
--batch-size                 tokens of prompts that are taken up at once (2048)
--ubatch-size                tokens of them that are computed at once (512)
--keep                       tokens at the beginning that a context shift keeps; -1 is all
--swa-full                   keep the whole cache of sliding-window attention
--flash-attn                 flash attention: on, off or auto
--perf                       measure the time of each step
--escape                     understand \\n, \\t and the like in reverse prompts
--rope-scaling               how RoPE frequencies are scaled: none, linear or yarn
--rope-scale                 factor by which RoPE lengthens the context
--rope-freq-base             base of RoPE's frequencies; the model's own unless given
--rope-freq-scale            factor on RoPE's frequencies; 1/N lengthens the context N times
--yarn-orig-ctx              YaRN: context that the model was trained with; 0 asks the model
--yarn-ext-factor            YaRN: how extrapolation and interpolation are mixed
--yarn-attn-factor           YaRN: factor on the attention
--yarn-beta-slow             YaRN: upper dimension of the correction
--yarn-beta-fast             YaRN: lower dimension of the correction
--kv-offload                 keep the cache of keys and values on the device
--repack                     arrange weights anew for this processor
--no-host                    bypass the host buffer, so that other buffers can be used
--cache-type-k               type of the cache's keys: f16, q8_0 and so on
--cache-type-v               type of the cache's values
--defrag-thold               accepted without effect; llama.cpp no longer defragments
--rpc                        workers on other machines, as HOST:PORT
--load-mode                  how the file is read: auto, none, mmap, mlock, mmap+mlock or dio
--lazy-mode                  read some tensors only when they are needed: on, auto or off
--numa                       placement on machines with several nodes: distribute, isolate or numactl
--device                     devices to use, from --list-devices; none is the processor alone
--list-devices               print the devices and end
--override-tensor            tensors by name and the buffer that holds them, as PATTERN=BUFFER
--cpu-moe                    keep the weights of all experts on the processor
--n-cpu-moe                  keep the experts of the first N layers on the processor
--moe-cache-mib              MiB on the device for experts that are often used
--n-cpu-ffn                  keep the dense weights of the first N layers on the processor
--n-gpu-layers               layers on the device: a number, auto or all
--split-mode                 how several devices share the model: none, layer, row or tensor
--tensor-split               share of each device, as in 3,1
--main-gpu                   the device that is used alone, or holds intermediate results
--fit                        choose what is not given so that it fits into memory: on or off
--fit-target                 MiB that --fit leaves free on each device
--fit-ctx                    smallest context that --fit may choose
--check-tensors              look for damaged numbers in the weights
--override-kv                replace a value of the model's metadata, as KEY=TYPE:VALUE
--op-offload                 compute large steps on the device even where weights are not there
--lora                       adapter to apply; several by commas
--lora-scaled                adapter with its strength, as FILE:SCALE or FILE SCALE
--control-vector             control vector to apply; several by commas
--control-vector-scaled      control vector with its strength, as FILE:SCALE or FILE SCALE
--control-vector-layer-range first and last layer that control vectors apply to
--model                      the model's file
--model-url                  address to download the model from
--docker-repo                model in a registry of images, as [HOST/]NAME[:TAG]
--hf-repo                    model on Hugging Face, as ORG/REPO[:TAG]
--hf-file                    file of that repository, instead of the choice by its tag
--hf-token                   Hugging Face access token
--log-disable                write no log
--log-file                   also write the log into this file
--log-jsonl                  write the log as JSON, one object in a line
--log-colors                 colours in the log: on, off or auto
--log-verbose                log everything
--offline                    download nothing
--log-verbosity              log what is at most so detailed, a number
--log-prefix                 begin each line of the log with its level
--log-timestamps             begin each line of the log with the time
--cache-type-k-draft         type of the keys in the draft model's cache
--cache-type-v-draft         type of the values in the draft model's cache
--samplers                   samplers in their order, separated by semicolons
--seed                       seed of the random numbers; -1 is another one each time
--sampling-seq               samplers in their order, one letter each
--ignore-eos                 go on after the model's end of text
--temperature                how freely tokens are chosen; 0 takes the likeliest
--top-k                      choose among the K likeliest; 0 is all
--top-p                      choose among the likeliest that together have this probability
--min-p                      leave out what is less likely than this part of the likeliest
--top-n-sigma                leave out what is further than N deviations from the likeliest; -1 is off
--xtc-probability            probability with which the likeliest are left out
--xtc-threshold              probability from which a token counts as likely for that
--typical-p                  locally typical sampling; 1 is off
--repeat-last-n              tokens that penalties look back on; 0 is none, -1 the context
--repeat-penalty             penalty of tokens that were there before; 1 is none
--presence-penalty           penalty of tokens that were there at all; 0 is none
--frequency-penalty          penalty by how often a token was there; 0 is none
--dry-multiplier             strength of the penalty for repeated passages; 0 is none
--dry-base                   base of that penalty
--dry-allowed-length         length of a repetition that costs nothing
--dry-penalty-last-n         tokens that this penalty looks back on
--dry-sequence-breaker       text at which a repetition ends; none: no such text
--adaptive-target            probability that chosen tokens should have; negative is off
--adaptive-decay             how fast that target follows
--dynatemp-range             how far the temperature may vary; 0 is not at all
--dynatemp-exp               how the temperature follows the uncertainty
--mirostat                   Mirostat sampling: 0 off, 1, or 2 for its second version
--mirostat-lr                Mirostat's learning rate
--mirostat-ent               Mirostat's target
--logit-bias                 make a token likelier or less likely, as ID+BIAS or ID-BIAS
--grammar                    grammar that answers must follow
--grammar-file               file with that grammar
--json-schema                JSON schema that answers must follow
--json-schema-file           file with that schema
--backend-sampling           choose tokens on the device
--hf-repo-draft              draft model on Hugging Face, as ORG/REPO[:TAG]
--threads-draft              processor threads of the draft model
--threads-batch-draft        processor threads that read prompts for the draft model
--cpu-mask-draft             processors of the draft model, as a mask
--cpu-range-draft            processors of the draft model, as LOW-HIGH
--cpu-strict-draft           binding of the draft model's threads
--prio-draft                 priority of the draft model's threads
--poll-draft                 eagerness of the draft model's threads
--cpu-mask-batch-draft       mask of processors that read prompts for the draft model
--cpu-strict-batch-draft     binding of the threads that read prompts for the draft model
--prio-batch-draft           priority of the threads that read prompts for the draft model
--poll-batch-draft           eagerness of the threads that read prompts for the draft model
--override-tensor-draft      the draft model's tensors and their buffers, as PATTERN=BUFFER
--cpu-moe-draft              keep the draft model's experts on the processor
--n-cpu-moe-draft            keep the experts of the draft model's first N layers on the processor
--spec-draft-n-max           most tokens that a draft guesses ahead
--spec-draft-n-min           fewest tokens of a draft that is used
--spec-synth-len             for measurements: mean length of made-up accepted drafts
--spec-synth-rates           for measurements: rates at which made-up drafts are accepted
--draft-p-split              probability at which a draft branches
--draft-p-min                least probability of a guessed token
--spec-draft-backend-sampling choose the draft's tokens on the device
--spec-draft-sampling        how the draft chooses: greedy or probabilistic
--device-draft               devices of the draft model
--n-gpu-layers-draft         layers of the draft model on the device
--model-draft                file of the draft model, which guesses ahead
--spec-type                  kinds of speculative decoding, by commas
--spec-ngram-mod-n-min       ngram-mod: fewest tokens that it guesses
--spec-ngram-mod-n-max       ngram-mod: most tokens that it guesses
--spec-ngram-mod-n-match     ngram-mod: tokens that must match
--spec-ngram-simple-size-n   ngram-simple: tokens that it looks up
--spec-ngram-simple-size-m   ngram-simple: tokens that it guesses
--spec-ngram-simple-min-hits ngram-simple: times that the tokens must have come before
--spec-ngram-map-k-size-n    ngram-map-k: tokens that it looks up
--spec-ngram-map-k-size-m    ngram-map-k: tokens that it guesses
--spec-ngram-map-k-min-hits  ngram-map-k: times that the tokens must have come before
--spec-ngram-map-k4v-size-n  ngram-map-k4v: tokens that it looks up
--spec-ngram-map-k4v-size-m  ngram-map-k4v: tokens that it guesses
--spec-ngram-map-k4v-min-hits ngram-map-k4v: times that the tokens must have come before
--lookup-cache-static        file of guesses that is only read
--lookup-cache-dynamic       file of guesses that generation adds to
--kv-unified-per-slot        tokens of a unified cache that are set aside for each slot
--swa-checkpoints            most checkpoints of the context for each slot
--checkpoint-min-step        fewest tokens between two checkpoints
--cache-ram                  MiB of memory for prompts that may come again; -1: no limit, 0 is none
--kv-unified                 one cache for all slots
--cache-idle-slots           put the cache of idle slots aside
--context-shift              drop old tokens when the context is full
--reverse-prompt             text at which generation stops
--special                    put special tokens into answers
--warmup                     run the model once, empty, before it serves
--spm-infill                 /infill puts the suffix before the prefix
--pooling                    how embeddings of tokens become one: none, mean, cls, last or rank
--parallel                   slots: requests that are answered at once; -1 chooses
--cont-batching              compute the requests of all slots together
--mmproj                     file of the projector for images and sound
--mmproj-url                 address to download the projector from
--mmproj-auto                use a projector that lies beside the model
--mmproj-offload             put the projector on the device
--mmproj-device              the device of the projector
--image-min-tokens           fewest tokens of an image
--image-max-tokens           most tokens of an image
--mtmd-batch-max-tokens      tokens of media that are computed at once
--video-fps                  pictures of a second of video that are looked at
--video-timestamp-interval   milliseconds between two time marks in a video
--video-ffmpeg-dir           folder of ffmpeg, which reads videos
--alias                      names of the model for clients, by commas
--tags                       words about the model, for people
--embd-normalize             how embeddings are normalised; 2 is Euclidean
--host                       address to listen on, a list of them, or a file that ends in .sock
--port                       port to listen on; 0 takes a free one
--reuse-port                 let other processes listen on the same port
--path                       folder that is served instead of the page
--cors-origins               web pages that may use the server
--cors-methods               methods that web pages may use
--cors-headers               headers that web pages may send
--cors-credentials           web pages may send credentials
--api-prefix                 path that stands before every route
--webui-config               settings for the page, as JSON
--webui-config-file          file with these settings
--webui-mcp-proxy            let the page reach MCP servers through this one
--tools                      tools of this machine for models: names, or all
--tools-runtime              where they run: docker, podman or ssh
--tools-root                 folder that they cannot leave
--allow-unauthenticated      let in other machines without a key
--mcp-servers-config         file that names MCP servers
--mcp-servers-json           the same as JSON
--agent                      all tools, and the proxy for MCP
--webui                      serve a page at /
--embeddings                 serve embeddings
--reranking                  serve reranking
--api-key                    keys of clients, by commas
--api-key-file               file with keys, one in a line
--ssl-key-file               private key for HTTPS, in PEM form
--ssl-cert-file              certificate for HTTPS, in PEM form
--chat-template-kwargs       variables of the chat template, as JSON
--timeout                    seconds after which a silent or slow client is cut off
--sse-ping-interval          seconds of silence before a stream gets a comment; -1 is never
--threads-http               accepted without effect; the front needs no threads
--cache-prompt               use the part of a prompt that is in the cache already
--cache-reuse                fewest tokens that are taken from the cache by a shift; 0 is off
--metrics                    serve /metrics
--props                      let clients change settings by POST /props
--slots                      serve /slots
--slot-save-path             folder for saved slots
--media-path                 folder of media that requests may name
--models-dir                 router: folder with models
--models-preset              router: file of presets
--models-max                 router: models loaded at once; 0: no limit
--models-autoload            router: a request loads the model that it names
--jinja                      use the model's own chat template
--reasoning-format           where thoughts go: none, auto, deepseek or deepseek-legacy
--reasoning                  whether the model thinks: on, off or auto
--reasoning-effort           how much it thinks, in the template's words
--reasoning-budget           tokens that it may think; -1: no limit, 0 ends it at once
--reasoning-budget-message   text at which thinking ends when its tokens are used up
--reasoning-preserve         keep earlier thoughts in the conversation
--chat-template              chat template, or the name of a built-in one
--chat-template-file         file with that template
--skip-chat-parsing          take an answer as text, without looking for calls and thoughts
--prefill-assistant          go on with the last message if it is the assistant's
--slot-prompt-similarity     how alike prompts must be to take the same slot; 0 is off
--lora-init-without-apply    load adapters, and apply them only when a client asks for it
--sleep-idle-seconds         seconds without a request after which the model sleeps; -1 is never
--log-prompts-dir            folder that gets every prompt
--embd-gemma-default         EmbeddingGemma from Hugging Face
--fim-qwen-1.5b-default      Qwen 2.5 Coder 1.5B from Hugging Face, for completion in editors
--fim-qwen-3b-default        Qwen 2.5 Coder 3B, likewise
--fim-qwen-7b-default        Qwen 2.5 Coder 7B, likewise
--fim-qwen-7b-spec           Qwen 2.5 Coder 7B with a draft model
--fim-qwen-14b-spec          Qwen 2.5 Coder 14B with a draft model
--fim-qwen-30b-default       Qwen 3 Coder 30B, likewise
--gpt-oss-20b-default        gpt-oss 20B from Hugging Face
--gpt-oss-120b-default       gpt-oss 120B from Hugging Face
--vision-gemma-4b-default    Gemma 3 4B with images, from Hugging Face
--vision-gemma-12b-default   Gemma 3 12B with images, from Hugging Face
--spec-default               guess ahead by the usual means
"""

EXPLAINED: Mapping[str, str] = MappingProxyType(
    {name: words for name, words in (line.split(maxsplit=1) for line in _TABLE.strip().splitlines())}
)
"""By `Flag.name`."""

_VALUE = {Kind.INTEGER: " N", Kind.NUMBER: " X", Kind.PATH: " PATH", Kind.LIST: " A,B,...", Kind.JSON: " JSON"}
_COLUMN = 44


def explained(flag: Flag) -> str:
    """Return the option's lines in ``--help``: its spellings, what it does, and its variable."""
    value = " FIRST LAST" if flag.arity == 2 else _VALUE.get(flag.kind, " VALUE") if flag.arity else ""
    spelled = ", ".join((*flag.spellings, *flag.negatives)) + value
    words = EXPLAINED[flag.name] + (f" (env: {flag.env})" if flag.env else "")
    gap = f"\n{'':{_COLUMN}}" if len(spelled) > _COLUMN - 2 else " " * (_COLUMN - len(spelled))
    return f"{spelled}{gap}{words}"


def usage(program: str) -> str:
    """Return what ``--help`` prints of the program that stands in for llama-server."""
    lines = [f"usage: {program} [options]", "", "With a model it serves this one; without, it is the router.", ""]
    lines += [explained(flag) for flag in FLAGS if flag.kind is not Kind.REMOVED]
    return "\n".join(lines)
