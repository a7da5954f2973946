"""The frozen program's first line of Python."""

from appliance.__main__ import main

if __name__ == "__main__":
    main()
