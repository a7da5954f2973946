"""The frozen program's first line of Python: the program itself, or the process that searches files for it."""

import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["--search-process"]:  # `appliance.tools.search_process` says why, and starts it so
        from appliance.tools.search_process import main
    else:
        from appliance.__main__ import main
    main()
