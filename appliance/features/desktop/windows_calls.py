"""The calls of Windows for an icon beside the clock, with their types and structures (winuser.h, shellapi.h).

Types have fixed sizes, and the tests compare them with what Windows' headers say.
"""

from __future__ import annotations

import ctypes

from appliance.platform.win32 import BOOL, DWORD, HANDLE, LONG, POINTER, TEXT, WORD, Signatures

UINT, WORD_PARAMETER, LONG_PARAMETER = DWORD, ctypes.c_uint64, ctypes.c_int64
WINDOW_PROCEDURE = ctypes.CFUNCTYPE(LONG_PARAMETER, HANDLE, UINT, WORD_PARAMETER, LONG_PARAMETER)
SIGNATURES: Signatures = {
    "user32": {
        "RegisterClassW": (WORD, (POINTER,)),
        "CreateWindowExW": (
            HANDLE,
            (DWORD, TEXT, TEXT, DWORD, LONG, LONG, LONG, LONG, HANDLE, HANDLE, HANDLE, POINTER),
        ),
        "DefWindowProcW": (LONG_PARAMETER, (HANDLE, UINT, WORD_PARAMETER, LONG_PARAMETER)),
        "DestroyWindow": (BOOL, (HANDLE,)),
        "GetMessageW": (BOOL, (POINTER, HANDLE, UINT, UINT)),
        "DispatchMessageW": (LONG_PARAMETER, (POINTER,)),
        "PostMessageW": (BOOL, (HANDLE, UINT, WORD_PARAMETER, LONG_PARAMETER)),
        "PostQuitMessage": (None, (LONG,)),
        "RegisterWindowMessageW": (UINT, (TEXT,)),
        "CreateIconFromResourceEx": (HANDLE, (POINTER, DWORD, BOOL, DWORD, LONG, LONG, UINT)),
        "DestroyIcon": (BOOL, (HANDLE,)),
        "CreatePopupMenu": (HANDLE, ()),
        "AppendMenuW": (BOOL, (HANDLE, UINT, WORD_PARAMETER, TEXT)),
        "TrackPopupMenu": (BOOL, (HANDLE, UINT, LONG, LONG, LONG, HANDLE, POINTER)),
        "DestroyMenu": (BOOL, (HANDLE,)),
        "SetForegroundWindow": (BOOL, (HANDLE,)),
    },
    "shell32": {"Shell_NotifyIconW": (BOOL, (DWORD, POINTER))},
}


class WindowClass(ctypes.Structure):
    """WNDCLASSW."""

    _fields_ = [
        ("style", UINT), ("procedure", WINDOW_PROCEDURE), ("class_extra", LONG), ("window_extra", LONG),
        ("instance", HANDLE), ("icon", HANDLE), ("cursor", HANDLE), ("background", HANDLE), ("menu", TEXT),
        ("name", TEXT),
    ]  # fmt: skip


class Message(ctypes.Structure):
    """MSG."""

    _fields_ = [
        ("window", HANDLE), ("message", UINT), ("word", WORD_PARAMETER), ("value", LONG_PARAMETER), ("time", DWORD),
        ("x", LONG), ("y", LONG),
    ]  # fmt: skip


class NotifyIcon(ctypes.Structure):
    """NOTIFYICONDATAW. Texts are UTF-16 with a closing zero."""

    _fields_ = [
        ("size", DWORD), ("window", HANDLE), ("id", UINT), ("flags", UINT), ("message", UINT), ("icon", HANDLE),
        ("tip", ctypes.c_uint16 * 128), ("state", DWORD), ("state_mask", DWORD), ("info", ctypes.c_uint16 * 256),
        ("version", UINT), ("info_title", ctypes.c_uint16 * 64), ("info_flags", DWORD), ("guid", ctypes.c_uint8 * 16),
        ("balloon_icon", HANDLE),
    ]  # fmt: skip
