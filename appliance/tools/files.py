"""Files of this machine, opened so that nothing hangs and nothing leads out of a root: the same on every system."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from appliance.tools.windows_files import home_folder, listed, open_folder, open_regular, real_root, resolved
else:
    from appliance.tools.posix_files import home_folder, listed, open_folder, open_regular, real_root, resolved

__all__ = ["home_folder", "listed", "open_folder", "open_regular", "real_root", "resolved"]
