"""argv -> cli."""

from __future__ import annotations

import sys


def main() -> None:
    """The installed command. Exit status: 0 done, 1 our fault, 2 the user's mistake, 130 interrupted."""
    from appliance.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
