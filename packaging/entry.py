"""The frozen program's first line of Python: the program itself, or one of the processes that it starts of itself.

Each of those modules says why it is apart, and starts it so. Under the name llama-server the program stands in for
llama-server, so that an application only has to swap the path of its executable. Under the name llama-appliance-desktop
it is the program of the desktop.
"""

import sys
from pathlib import PurePath

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--search-process"]:
            from appliance.tools.search_process import main
        case ["--file-process", _]:
            from appliance.features.conversations.file_process import main
        case ["--driver-process"]:
            from appliance.platform.driver_process import main
        case _:
            from appliance.__main__ import main, on_desktop, stand_in

            main = {"llama-server": stand_in, "llama-appliance-desktop": on_desktop}.get(
                PurePath(sys.argv[0]).stem.lower(), main
            )
    main()
