"""The list of the features. Nothing else names one: a feature that is not here is not in the program.

Its order is the order in which hooks are asked: the turn of plugins takes the commands from a text before that of tools
sees it, and dialects come last, since those before them read a request as the client has sent it. Keys of the
configuration are shown in this order. Refuses to hold anything else: what two features need is the kernel's.
"""

from __future__ import annotations

from appliance.feature import Feature
from appliance.features.activity.feature import ACTIVITY
from appliance.features.anthropic.feature import ANTHROPIC
from appliance.features.bundles.feature import BUNDLES
from appliance.features.config_editing.feature import CONFIG_EDITING
from appliance.features.contexts.feature import CONTEXTS
from appliance.features.continuation.feature import CONTINUATION
from appliance.features.conversations.feature import CONVERSATIONS
from appliance.features.cors_proxy.feature import CORS_PROXY
from appliance.features.desktop.feature import DESKTOP
from appliance.features.disk.feature import DISK
from appliance.features.doctor.feature import DOCTOR
from appliance.features.downloads.feature import DOWNLOADS
from appliance.features.embedded.feature import EMBEDDED
from appliance.features.engines.feature import ENGINES
from appliance.features.explain.feature import EXPLAIN
from appliance.features.fit.feature import FIT
from appliance.features.launch.feature import LAUNCH
from appliance.features.llama_swap.feature import LLAMA_SWAP
from appliance.features.lm_studio.feature import LM_STUDIO
from appliance.features.load_test.feature import LOAD_TEST
from appliance.features.metrics.feature import METRICS
from appliance.features.names.feature import NAMES
from appliance.features.older.feature import OLDER
from appliance.features.ollama.feature import OLLAMA
from appliance.features.page.feature import PAGE
from appliance.features.plugins.feature import PLUGINS
from appliance.features.pool.feature import POOL
from appliance.features.predict.feature import PREDICT
from appliance.features.programs.feature import PROGRAMS
from appliance.features.repairs.feature import REPAIRS
from appliance.features.responses.feature import RESPONSES
from appliance.features.routers.feature import ROUTERS
from appliance.features.runs.feature import RUNS
from appliance.features.selftest.feature import SELFTEST
from appliance.features.service.feature import SERVICE
from appliance.features.sockets.feature import SOCKETS
from appliance.features.speed.feature import SPEED
from appliance.features.stand_in.feature import STAND_IN
from appliance.features.streams.feature import STREAMS
from appliance.features.terminal.feature import TERMINAL
from appliance.features.timeline.feature import TIMELINE
from appliance.features.tools.feature import TOOLS
from appliance.features.top.feature import TOP
from appliance.features.traces.feature import TRACES

FEATURES: tuple[Feature, ...] = (
    ACTIVITY,
    BUNDLES,
    CONFIG_EDITING,
    CONTEXTS,
    CONTINUATION,
    CONVERSATIONS,
    CORS_PROXY,
    DESKTOP,
    DISK,
    DOCTOR,
    DOWNLOADS,
    EMBEDDED,
    ENGINES,
    EXPLAIN,
    FIT,
    LAUNCH,
    LLAMA_SWAP,
    LM_STUDIO,
    LOAD_TEST,
    METRICS,
    NAMES,
    OLDER,
    OLLAMA,
    PAGE,
    PLUGINS,
    POOL,
    PREDICT,
    PROGRAMS,
    REPAIRS,
    ROUTERS,
    RUNS,
    SELFTEST,
    SERVICE,
    SOCKETS,
    SPEED,
    STAND_IN,
    TERMINAL,
    TIMELINE,
    TOOLS,
    TOP,
    TRACES,
    STREAMS,
    ANTHROPIC,
    RESPONSES,
)
