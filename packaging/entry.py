"""The frozen program's first line of Python: the program itself, or one of the processes that it starts of itself.

Each of those modules says why it is apart, and starts it so. Under the name llama-server the program stands in for
llama-server, so that an application only has to swap the path of its executable. Under the name llama-appliance-desktop
it is the program of the desktop.
"""

import sys
from importlib import import_module
from pathlib import PurePath

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--own-process", module, *_] if module.startswith("appliance.") and module.endswith("_process"):
            main = import_module(module).main  # its other side imports it too, so that the freezer sees it
        case _:
            from appliance.__main__ import main, on_desktop, stand_in

            main = {"llama-server": stand_in, "llama-appliance-desktop": on_desktop}.get(
                PurePath(sys.argv[0]).stem.lower(), main
            )
    main()
