"""Say which Python this is, and whether it was built with profile-guided optimisation.

    python packaging/python_build.py [--require]

A program takes some 15 % more of the processor on a Python that was built without (docs/performance.md). With
``--require`` the exit status is 1 there: a payload that others get is frozen with an optimised one.
"""

from __future__ import annotations

import platform
import sys
import sysconfig

DISTRIBUTIONS = ("deb_system", "posix_local", "rpm_prefix")
"""Installation schemes that only Pythons of distributions have, which all are optimised and do not always say so."""


def is_optimised() -> bool:
    """Return whether the interpreter was built so; those for Windows on python.org are."""
    configured = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    schemes = sysconfig.get_scheme_names()
    return sys.platform == "win32" or "--enable-optimizations" in configured or any(s in schemes for s in DISTRIBUTIONS)


def in_words() -> str:
    built = "optimised" if is_optimised() else "built without --enable-optimizations"
    return f"{platform.python_implementation()} {platform.python_version()}, {built}"


if __name__ == "__main__":
    print(in_words())
    if "--require" in sys.argv[1:] and not is_optimised():
        sys.exit("error: freeze with an optimised Python, such as the distribution's or one of python.org")
