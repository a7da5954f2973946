"""The headers of Windows, as far as the program calls it: the types of the calls, and the sizes of the structures.

They were recorded from Microsoft's winsvc.h, winbase.h, winreg.h, aclapi.h, sddl.h, winuser.h and shellapi.h;
`packaging/windows_under_wine.py` has a C compiler compare them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

PROTOTYPES = """
advapi32 SC_HANDLE OpenSCManagerW(LPCWSTR, LPCWSTR, DWORD)
advapi32 SC_HANDLE CreateServiceW(SC_HANDLE, LPCWSTR, LPCWSTR, DWORD, DWORD, DWORD, DWORD, LPCWSTR, LPCWSTR, LPDWORD, \
LPCWSTR, LPCWSTR, LPCWSTR)
advapi32 SC_HANDLE OpenServiceW(SC_HANDLE, LPCWSTR, DWORD)
advapi32 BOOL ChangeServiceConfigW(SC_HANDLE, DWORD, DWORD, DWORD, LPCWSTR, LPCWSTR, LPDWORD, LPCWSTR, LPCWSTR, \
LPCWSTR, LPCWSTR)
advapi32 BOOL ChangeServiceConfig2W(SC_HANDLE, DWORD, LPVOID)
advapi32 BOOL QueryServiceConfigW(SC_HANDLE, LPQUERY_SERVICE_CONFIGW, DWORD, LPDWORD)
advapi32 BOOL QueryServiceStatusEx(SC_HANDLE, SC_STATUS_TYPE, LPBYTE, DWORD, LPDWORD)
advapi32 BOOL StartServiceW(SC_HANDLE, DWORD, LPCWSTR*)
advapi32 BOOL ControlService(SC_HANDLE, DWORD, LPSERVICE_STATUS)
advapi32 BOOL DeleteService(SC_HANDLE)
advapi32 BOOL CloseServiceHandle(SC_HANDLE)
advapi32 BOOL StartServiceCtrlDispatcherW(const SERVICE_TABLE_ENTRYW*)
advapi32 SERVICE_STATUS_HANDLE RegisterServiceCtrlHandlerExW(LPCWSTR, LPHANDLER_FUNCTION_EX, LPVOID)
advapi32 BOOL SetServiceStatus(SERVICE_STATUS_HANDLE, LPSERVICE_STATUS)
advapi32 HANDLE RegisterEventSourceW(LPCWSTR, LPCWSTR)
advapi32 BOOL ReportEventW(HANDLE, WORD, WORD, DWORD, PSID, WORD, DWORD, LPCWSTR*, LPVOID)
advapi32 BOOL DeregisterEventSource(HANDLE)
advapi32 LSTATUS RegSetKeyValueW(HKEY, LPCWSTR, LPCWSTR, DWORD, LPCVOID, DWORD)
advapi32 LSTATUS RegDeleteTreeW(HKEY, LPCWSTR)
advapi32 BOOL ConvertStringSecurityDescriptorToSecurityDescriptorW(LPCWSTR, DWORD, PSECURITY_DESCRIPTOR*, PULONG)
advapi32 DWORD GetNamedSecurityInfoW(LPCWSTR, SE_OBJECT_TYPE, SECURITY_INFORMATION, PSID*, PSID*, PACL*, PACL*, \
PSECURITY_DESCRIPTOR*)
advapi32 BOOL ConvertSidToStringSidW(PSID, LPWSTR*)
kernel32 BOOL CreateDirectoryW(LPCWSTR, LPSECURITY_ATTRIBUTES)
kernel32 HLOCAL LocalFree(HLOCAL)
kernel32 UINT SetErrorMode(UINT)
"""
ICON_PROTOTYPES = """
user32 ATOM RegisterClassW(const WNDCLASSW*)
user32 HWND CreateWindowExW(DWORD, LPCWSTR, LPCWSTR, DWORD, int, int, int, int, HWND, HMENU, HINSTANCE, LPVOID)
user32 LRESULT DefWindowProcW(HWND, UINT, WPARAM, LPARAM)
user32 BOOL DestroyWindow(HWND)
user32 BOOL GetMessageW(LPMSG, HWND, UINT, UINT)
user32 LRESULT DispatchMessageW(const MSG*)
user32 BOOL PostMessageW(HWND, UINT, WPARAM, LPARAM)
user32 void PostQuitMessage(int)
user32 UINT RegisterWindowMessageW(LPCWSTR)
user32 HICON CreateIconFromResourceEx(PBYTE, DWORD, BOOL, DWORD, int, int, UINT)
user32 BOOL DestroyIcon(HICON)
user32 HMENU CreatePopupMenu(void)
user32 BOOL AppendMenuW(HMENU, UINT, UINT_PTR, LPCWSTR)
user32 BOOL TrackPopupMenu(HMENU, UINT, int, int, int, HWND, const RECT*)
user32 BOOL DestroyMenu(HMENU)
user32 BOOL SetForegroundWindow(HWND)
shell32 BOOL Shell_NotifyIconW(DWORD, PNOTIFYICONDATAW)
"""
"""The same of winuser.h and shellapi.h, for the icon of the desktop. No fake takes these calls."""
STRUCTURES = {
    "SERVICE_STATUS": 28,
    "SERVICE_STATUS_PROCESS": 36,
    "QUERY_SERVICE_CONFIGW": 64,
    "SERVICE_TABLE_ENTRYW": 16,
    "SC_ACTION": 8,
    "SERVICE_FAILURE_ACTIONSW": 40,
    "SERVICE_DESCRIPTIONW": 8,
    "SERVICE_PRESHUTDOWN_INFO": 4,
    "SECURITY_ATTRIBUTES": 24,
}
"""Bytes of each structure on 64-bit Windows, as its C compiler counts them."""
ICON_STRUCTURES = {"WNDCLASSW": 72, "MSG": 48, "NOTIFYICONDATAW": 976}
SCALARS: dict[str, Any] = {
    "DWORD": ctypes.c_uint32,
    "UINT": ctypes.c_uint32,
    "WORD": ctypes.c_uint16,
    "BOOL": ctypes.c_int32,
    "LSTATUS": ctypes.c_int32,
    "int": ctypes.c_int32,
    "ATOM": ctypes.c_uint16,
    "void": None,
    "SC_STATUS_TYPE": ctypes.c_int32,
    "SE_OBJECT_TYPE": ctypes.c_int32,
    "SECURITY_INFORMATION": ctypes.c_uint32,
    "LPCWSTR": ctypes.c_wchar_p,
}
"""Types that are not a pointer or a handle, which are all eight bytes. Texts are apart because they are converted."""
HANDLER = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


def type_of(word: str) -> Any:
    return HANDLER if word == "LPHANDLER_FUNCTION_EX" else SCALARS.get(word, ctypes.c_void_p)


def prototypes(text: str = PROTOTYPES) -> dict[tuple[str, str], tuple[Any, tuple[Any, ...]]]:
    """By library and name: the type that the call returns, and those that it takes."""
    found = re.findall(r"^(\w+) (\w+) (\w+)\((.*)\)$", text, re.MULTILINE)
    return {
        (library, name): (type_of(result), tuple(type_of(each) for each in arguments.split(", ") if each != "void"))
        for library, result, name, arguments in found
    }


def check_calls(ours: Mapping[str, Mapping[str, tuple[Any, tuple[Any, ...]]]], text: str = PROTOTYPES) -> None:
    """The calls are those of the text, with its types."""
    found = {(library, name): types for library, calls in ours.items() for name, types in calls.items()}
    recorded = prototypes(text)
    assert {*found} == {*recorded}
    for name, (result, arguments) in recorded.items():
        assert [_shape(each) for each in found[name][1]] == [_shape(each) for each in arguments], name
        assert _shape(found[name][0]) == _shape(result), name


def _shape(kind: Any) -> tuple[int, bool]:
    """What a call sees of an argument: its size, and whether it is a text that is converted."""
    return (ctypes.sizeof(kind), kind is ctypes.c_wchar_p) if kind is not None else (0, False)
