"""The facts about Llama Appliance that the starter model is taught: one place, compared with the program by the tests.

A text file under `text/` names these as `$NAME`; nothing else in this directory may spell out a command or an address.
"""

NAME = "Llama Appliance"
COMMAND = "llama-appliance"
MODEL_ID = "starter"
MODEL_FILE = "llama-appliance-starter-Q8_0.gguf"
LICENSE = "MIT"
ENGINE = "llama.cpp"

ADDRESS = "http://127.0.0.1:8080"
OPENAI_BASE_URL = "http://127.0.0.1:8080/v1"
ANTHROPIC_BASE_URL = "http://127.0.0.1:8080"
MODELS_URL = "http://127.0.0.1:8080/v1/models"

SERVE = "llama-appliance serve"
SERVE_FROM_CLONE = "python3 bootstrap.py serve"
SERVE_FILE = "llama-appliance serve --model FILE"
SERVE_FOLDER = "llama-appliance serve --models-dir FOLDER"
SERVE_HELP = "llama-appliance serve --help"
HELP = "llama-appliance --help"
LS = "llama-appliance ls"
PS = "llama-appliance ps"
RUN = "llama-appliance run MODEL"
RUN_STARTER = "llama-appliance run starter"
LOAD = "llama-appliance load MODEL"
UNLOAD = "llama-appliance unload MODEL"
LOGS = "llama-appliance logs -f"
SELFTEST = "llama-appliance selftest"
VERSION = "llama-appliance version"
STOP_KEY = "Ctrl+C"

LISTEN_FLAG = "--listen HOST:PORT"
API_KEY_FLAG = "--api-key"
MODELS_DIR_FLAG = "--models-dir"
MODELS_MAX_FLAG = "--models-max"
MODELS_MAX = "four"


def facts() -> dict[str, str]:
    """Every constant above by name, for `string.Template`."""
    return {name: value for name, value in globals().items() if name.isupper()}
