"""Calls of Windows by their own names: the types that they take, how they are loaded, and how they fail.

Types have fixed sizes, so that structures are the same on every 64-bit system.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping

from msgspec import Struct

from appliance.errors import ApplianceError

DWORD, WORD, BOOL, LONG = ctypes.c_uint32, ctypes.c_uint16, ctypes.c_int32, ctypes.c_int32
HANDLE, TEXT, POINTER = ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_void_p
Signatures = Mapping[str, Mapping[str, tuple[object, tuple[object, ...]]]]
"""Calls by library: what each returns, and what it takes."""


class WindowsRefused(ApplianceError):
    """Windows refused a call. ``code`` is its error; ``advice`` replaces what Windows says of it."""

    def __init__(self, call: str, code: int, advice: str = "") -> None:
        super().__init__(call, code, advice)
        self.call, self.code, self.advice = call, code, advice

    def __str__(self) -> str:
        words = self.advice
        if not words and sys.platform == "win32":
            words = ctypes.FormatError(self.code).strip()
        return f"Windows refused {self.call} with error {self.code}" + (f": {words}" if words else "")


class Win32(Struct, frozen=True):
    """Loaded calls, the error of the last one in this thread, and what the user can do about some errors."""

    calls: Mapping[str, Callable[..., int | None]]
    error: Callable[[], int]
    advice: Mapping[int, str] = {}

    def __call__(self, name: str, *arguments: object) -> int:
        """Make one call. Raises WindowsRefused if it returns nothing."""
        result = self.calls[name](*arguments)
        if not result:
            raise self.refused(name, self.error())
        return result

    def refused(self, name: str, code: int) -> WindowsRefused:
        """Return the error of a call that failed with this code."""
        return WindowsRefused(name, code, self.advice.get(code, ""))


def win32(signatures: Signatures, advice: Mapping[int, str]) -> Win32:
    """Load the calls. Only Windows has them."""
    assert sys.platform == "win32"
    found: dict[str, Callable[..., int | None]] = {}
    for library, calls in signatures.items():
        loaded = ctypes.WinDLL(library, use_last_error=True)
        for name, (result, arguments) in calls.items():
            call = getattr(loaded, name)
            call.restype, call.argtypes = result, arguments
            found[name] = call
    return Win32(found, ctypes.get_last_error, advice)
