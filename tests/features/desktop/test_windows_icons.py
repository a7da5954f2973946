"""The calls of Windows for an icon, as its headers have them."""

from __future__ import annotations

import ctypes

from windows_headers import ICON_PROTOTYPES, ICON_STRUCTURES, check_calls

from appliance.features.desktop import windows_calls


def test_every_call_has_the_types_of_windows() -> None:
    check_calls(windows_calls.SIGNATURES, ICON_PROTOTYPES)


def test_every_structure_has_the_size_of_windows() -> None:
    ours = {
        "WNDCLASSW": windows_calls.WindowClass,
        "MSG": windows_calls.Message,
        "NOTIFYICONDATAW": windows_calls.NotifyIcon,
    }
    assert {name: ctypes.sizeof(each) for name, each in ours.items()} == ICON_STRUCTURES
