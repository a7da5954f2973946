"""The first lines of the embedded engine's process; the others are in `start`."""

import gc
import sys
from importlib.util import find_spec, module_from_spec

if __name__ == "__main__":
    gc.disable()  # modules are not garbage; looking for some in them was a tenth of what a request waits for Python
    if package := find_spec("appliance.features"):
        # The package without what is in it: the list of all features, a tenth of a second.
        sys.modules[package.name] = module_from_spec(package)
    from appliance.features.embedded.start import main  # hence not before the lines above

    sys.exit(main(sys.argv[1:]))
