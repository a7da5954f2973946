"""The command line of one model process."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.platform.ports import LOOPBACK

OWNED = (
    "--model", "--alias", "--host", "--port", "--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file",
    "--api-prefix", "--path", "--models-dir", "--models-preset", "--models-max", "--models-autoload", "--cors-origins",
    "--cors-methods", "--cors-headers", "--cors-credentials", "--tools", "--agent", "--mcp-servers-config",
    "--mcp-servers-json", "--ui-mcp-proxy", "--reuse-port",
)  # fmt: skip
"""llama-server options that this program decides for its children, or that belong to a front; never passed through."""


BATCH = "512"
BATCH_FLAGS = frozenset(("-b", "--batch-size", "-ub", "--ubatch-size"))
"""llama-server looks between logical batches whether a request was cancelled. At its default of 2048 tokens an
abandoned prompt held its slot for up to 1.9 s on a busy machine; it computes in steps of 512 anyway."""

TELLS_BUFFERS = "4"
VERBOSITY_FLAGS = frozenset(("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose"))
"""llama-server (b11434) says from verbosity 4 on which buffers it has allocated on which device."""


def model_command(
    engine: Sequence[str],
    *,
    on_cpu: bool,
    tells_buffers: bool = False,
    model_id: str,
    path: str,
    port: int,
    threads: int,
    metrics: bool,
    defaults: Sequence[str],
    overrides: Sequence[str],
) -> tuple[str, ...]:
    """argv of the process that serves one model on loopback. Without ``path`` the other flags say where the model is.

    Later options win in llama-server, so the order is: the program's defaults, the model's own (``defaults``), what the
    user asked for (``overrides``). The API key travels in the environment, where other users cannot read it.
    """
    said = {*defaults, *overrides}
    batch = ("--batch-size", BATCH) if on_cpu and not BATCH_FLAGS & said else ()
    buffers = ("--log-verbosity", TELLS_BUFFERS) if tells_buffers and not VERBOSITY_FLAGS & said else ()
    return (
        *engine,
        *(("--model", path) if path else ()),
        "--alias", model_id,
        "--host", LOOPBACK,
        "--port", str(port),
        *(("--metrics",) if metrics else ()),
        "--threads", str(threads),
        *batch,
        *buffers,
        *defaults,
        *overrides,
    )  # fmt: skip
