"""Windows' program of the desktop: the program without a console, and a box with its words if it fails."""

import os
import subprocess
import sys
from pathlib import Path

TITLE = "Llama Appliance"
STOP_SIGN = 0x10
"""MB_ICONERROR."""

if __name__ == "__main__":
    assert sys.platform == "win32"
    program = Path(sys.executable).with_name("llama-appliance.exe")
    # The other program unpacks its own environment: it is not a part of this one.
    environment = os.environ | {"PYINSTALLER_RESET_ENVIRONMENT": "1"}
    null = subprocess.DEVNULL
    with subprocess.Popen(
        [program, "desktop", *sys.argv[1:]], env=environment, stdin=null, stdout=null, stderr=subprocess.PIPE,
        creationflags=subprocess.CREATE_NO_WINDOW, encoding="utf-8", errors="replace",
    ) as running:  # fmt: skip
        said = ""
        for line in running.stderr or ():
            said = (said + line)[-1000:]
    if running.returncode and said.strip():  # something that ends the program from outside leaves no words
        import ctypes  # of use after a failure alone

        ctypes.WinDLL("user32").MessageBoxW(None, said.strip(), TITLE, STOP_SIGN)
    sys.exit(running.returncode)
