"""The first lines of the embedded engine's process; the others are in `start`."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # modules are not garbage; looking for some in them was a tenth of what a request waits for Python
    from appliance.features.embedded.start import main  # hence not before the line above

    sys.exit(main(sys.argv[1:]))
