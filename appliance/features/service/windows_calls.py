"""The calls of Windows for services, with their types, and the structures that they take (winsvc.h, winreg.h,
aclapi.h, sddl.h). The tests run them on Linux, against a service manager of their own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from appliance.features.service.core.windows import ADVICE
from appliance.platform.win32 import BOOL, DWORD, HANDLE, LONG, POINTER, TEXT, Signatures, Win32, win32

SERVICE_MAIN = ctypes.CFUNCTYPE(None, DWORD, POINTER)
CONTROL_HANDLER = ctypes.CFUNCTYPE(DWORD, DWORD, DWORD, POINTER, POINTER)
"""64-bit Windows has one calling convention, so these are the same as WINFUNCTYPE."""
SIGNATURES: Signatures = {
    "advapi32": {
        "OpenSCManagerW": (HANDLE, (TEXT, TEXT, DWORD)),
        "CreateServiceW": (
            HANDLE,
            (HANDLE, TEXT, TEXT, DWORD, DWORD, DWORD, DWORD, TEXT, TEXT, POINTER, TEXT, TEXT, TEXT),
        ),
        "OpenServiceW": (HANDLE, (HANDLE, TEXT, DWORD)),
        "ChangeServiceConfigW": (BOOL, (HANDLE, DWORD, DWORD, DWORD, TEXT, TEXT, POINTER, TEXT, TEXT, TEXT, TEXT)),
        "ChangeServiceConfig2W": (BOOL, (HANDLE, DWORD, POINTER)),
        "QueryServiceConfigW": (BOOL, (HANDLE, POINTER, DWORD, POINTER)),
        "QueryServiceStatusEx": (BOOL, (HANDLE, LONG, POINTER, DWORD, POINTER)),
        "StartServiceW": (BOOL, (HANDLE, DWORD, POINTER)),
        "ControlService": (BOOL, (HANDLE, DWORD, POINTER)),
        "DeleteService": (BOOL, (HANDLE,)),
        "CloseServiceHandle": (BOOL, (HANDLE,)),
        "StartServiceCtrlDispatcherW": (BOOL, (POINTER,)),
        "RegisterServiceCtrlHandlerExW": (HANDLE, (TEXT, CONTROL_HANDLER, POINTER)),
        "SetServiceStatus": (BOOL, (HANDLE, POINTER)),
        "RegisterEventSourceW": (HANDLE, (TEXT, TEXT)),
        "ReportEventW": (
            BOOL,
            (HANDLE, ctypes.c_uint16, ctypes.c_uint16, DWORD, POINTER, ctypes.c_uint16, DWORD, POINTER, POINTER),
        ),
        "DeregisterEventSource": (BOOL, (HANDLE,)),
        "RegSetKeyValueW": (LONG, (HANDLE, TEXT, TEXT, DWORD, POINTER, DWORD)),
        "RegDeleteTreeW": (LONG, (HANDLE, TEXT)),
        "ConvertStringSecurityDescriptorToSecurityDescriptorW": (BOOL, (TEXT, DWORD, POINTER, POINTER)),
        "GetNamedSecurityInfoW": (DWORD, (TEXT, LONG, DWORD, POINTER, POINTER, POINTER, POINTER, POINTER)),
        "ConvertSidToStringSidW": (BOOL, (POINTER, POINTER)),
    },
    "kernel32": {
        "CreateDirectoryW": (BOOL, (TEXT, POINTER)),
        "LocalFree": (HANDLE, (HANDLE,)),
        "SetErrorMode": (DWORD, (DWORD,)),
    },
}
"""Every call of Windows for services, by library: what it returns, and what it takes."""
FILE, OWNER = 1, 1  # GetNamedSecurityInfo: the path is a file's, and its owner is asked for
MACHINE_VARIABLES = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment"
USER_VARIABLES = "Environment"


class ScmStatus(ctypes.Structure):
    """SERVICE_STATUS."""

    _fields_ = [(name, DWORD) for name in ("kind", "state", "accepts", "error", "own", "checkpoint", "hint")]


class ProcessStatus(ctypes.Structure):
    """SERVICE_STATUS_PROCESS."""

    _fields_ = [*ScmStatus._fields_, ("pid", DWORD), ("flags", DWORD)]


class ServiceConfig(ctypes.Structure):
    """QUERY_SERVICE_CONFIGW."""

    _fields_ = [
        ("kind", DWORD), ("start", DWORD), ("errors", DWORD), ("command", TEXT), ("group", TEXT), ("tag", DWORD),
        ("needs", POINTER), ("account", TEXT), ("display", TEXT),
    ]  # fmt: skip


class ServiceTableEntry(ctypes.Structure):
    """SERVICE_TABLE_ENTRYW."""

    _fields_ = [("name", TEXT), ("main", POINTER)]


class Action(ctypes.Structure):
    """SC_ACTION: 1 is a restart. ``delay`` in milliseconds."""

    _fields_ = [("kind", DWORD), ("delay", DWORD)]


class ServiceFailureActions(ctypes.Structure):
    """SERVICE_FAILURE_ACTIONSW. ``reset`` in seconds."""

    _fields_ = [
        ("reset", DWORD), ("message", TEXT), ("command", TEXT), ("count", DWORD), ("actions", ctypes.POINTER(Action)),
    ]  # fmt: skip


class ServiceText(ctypes.Structure):
    """SERVICE_DESCRIPTIONW."""

    _fields_ = [("text", TEXT)]


class ServiceNumber(ctypes.Structure):
    """SERVICE_PRESHUTDOWN_INFO, and SERVICE_FAILURE_ACTIONS_FLAG."""

    _fields_ = [("number", DWORD)]


class Security(ctypes.Structure):
    """SECURITY_ATTRIBUTES."""

    _fields_ = [("size", DWORD), ("descriptor", POINTER), ("inherit", BOOL)]


def load() -> Win32:
    """Load the calls. Only Windows has them."""
    return win32(SIGNATURES, ADVICE)


def owner_of(api: Win32, path: str) -> str:
    """Return the security identifier of a file's owner. Raises WindowsRefused."""
    owner, descriptor, text = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    wanted = (None, None, None, ctypes.byref(descriptor))
    # This call returns its error, and 0 for success: the other way round than those that go through `Win32`.
    if code := api.calls["GetNamedSecurityInfoW"](path, FILE, OWNER, ctypes.byref(owner), *wanted):
        raise api.refused("GetNamedSecurityInfoW", code)
    try:
        api("ConvertSidToStringSidW", owner, ctypes.byref(text))
        return ctypes.wstring_at(text.value or 0)
    finally:
        api.calls["LocalFree"](text)
        api.calls["LocalFree"](descriptor)


def change_path(change: Callable[[str], str], *, user: bool) -> None:
    """Change the text of PATH in the registry, the user's or the machine's. Raises OSError. New programs see it."""
    assert sys.platform == "win32"
    import winreg

    root, key = (winreg.HKEY_CURRENT_USER, USER_VARIABLES) if user else (winreg.HKEY_LOCAL_MACHINE, MACHINE_VARIABLES)
    with winreg.CreateKeyEx(root, key, access=winreg.KEY_READ | winreg.KEY_WRITE | winreg.KEY_WOW64_64KEY) as opened:
        try:
            before = str(winreg.QueryValueEx(opened, "Path")[0])
        except FileNotFoundError:
            before = ""
        after = change(before)
        if after != before and after:
            # PATH may hold names like %SystemRoot%, which plain text (REG_SZ) would not have replaced.
            winreg.SetValueEx(opened, "Path", 0, winreg.REG_EXPAND_SZ, after)
        elif after != before:
            winreg.DeleteValue(opened, "Path")
