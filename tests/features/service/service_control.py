"""A service control manager for Linux: enough of Windows' to install the program, to start it, tell it things, stop it.

Its calls are C functions with the types that `windows_headers` records from Microsoft's winsvc.h, winbase.h, winreg.h,
aclapi.h and sddl.h, so that what the program hands over is converted, and laid out in memory, as on Windows.

    python service_control.py HOME CONTROLS [SERVE OPTIONS]

is the process of a service: it runs the program, sends the controls (numbers, or 13:18 for an event of 13) once the
service runs, and prints what the program did, one JSON object in a line.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import re
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from windows_headers import STRUCTURES, prototypes

MAIN = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p)
MANAGER, EVENTS, STATUS_HANDLE, DESCRIPTOR, OWNER = 100, 200, 300, 400, 500

CALLER = "S-1-5-21-1-2-3-500"
"""The administrator who installs."""


class Refused(Exception):
    """The call fails with this error."""


class ServiceControl:
    """One machine's services, registry and event log. A service that is started ``runs`` until it is stopped."""

    def __init__(self, *, administrator: bool = True, exits: int | None = None) -> None:
        self.services: dict[str, dict[str, Any]] = {}
        self.registry: dict[str, dict[str, bytes]] = {}
        self.events: list[tuple[int, str]] = []
        self.reports: list[dict[str, int]] = []
        self.folders: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        """Security identifiers by path. The rest belongs to the one who calls."""
        self.controls: queue.Queue[tuple[int, int] | None] = queue.Queue()
        self.answers: list[int] = []
        self.open_handles = 0
        self.started_by_scm = True
        self.told: Callable[[dict[str, int]], None] = lambda report: None
        self._administrator, self._exits = administrator, exits
        self._handler: Any = None
        self._error = 0
        self._handles: dict[int, str] = {}
        self._descriptor = self._owner = ""
        self._allocated: dict[int, object] = {}
        self.calls = {name: self._callable(name, *types) for (_, name), types in prototypes().items()}

    def error(self) -> int:
        return self._error

    def _callable(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., int | None]:
        method = getattr(self, name)

        def called(*words: Any) -> int:
            try:
                return method(*words)
            except Refused as refused:
                self._error = refused.args[0]
                return 0

        return ctypes.CFUNCTYPE(result, *arguments)(called)

    def _opened(self, name: str) -> int:
        self.open_handles += 1
        handle = MANAGER + 1 + len(self._handles)
        self._handles[handle] = name
        return handle

    def _service(self, handle: int) -> dict[str, Any]:
        return self.services[self._handles[handle]]

    def OpenSCManagerW(self, machine: None, database: None, access: int) -> int:
        if access & 2 and not self._administrator:
            raise Refused(5)
        return self._opened("")

    def CreateServiceW(self, manager: int, name: str, display: str, access: int, *entry: Any) -> int:
        if name in self.services:
            raise Refused(1073)
        self.services[name] = {"display": display, "levels": {}, "state": 1, "error": 1077, "own": 0, "pid": 0}
        self._enter(self.services[name], *entry)
        return self._opened(name)

    def _enter(self, service: dict[str, Any], kind: int, start: int, errors: int, command: str, *words: Any) -> None:
        group, tag, needs, account, password = words
        assert (kind, errors, group, tag, needs, password) == (0x10, 1, None, None, None, None)
        service |= {"start": start, "command": command, "account": account}

    def OpenServiceW(self, manager: int, name: str, access: int) -> int:
        if name not in self.services:
            raise Refused(1060)
        if access & 0x10 and not self._administrator:
            raise Refused(5)
        return self._opened(name)

    def ChangeServiceConfigW(self, handle: int, *entry: Any) -> int:
        self._enter(self._service(handle), *entry[:-1])
        return 1

    def ChangeServiceConfig2W(self, handle: int, level: int, content: int) -> int:
        service = self._service(handle)
        if level == 1:
            service["levels"][1] = ctypes.c_wchar_p.from_address(content).value
        elif level == 2:
            count = ctypes.c_uint32.from_address(content + 24).value
            first = ctypes.c_void_p.from_address(content + 32).value or 0
            numbers = (ctypes.c_uint32 * (2 * count)).from_address(first)
            service["levels"][2] = (ctypes.c_uint32.from_address(content).value, list(numbers))
        else:
            service["levels"][level] = ctypes.c_uint32.from_address(content).value
        return 1

    def QueryServiceConfigW(self, handle: int, buffer: int, size: int, needed: int) -> int:
        service = self._service(handle)
        self._texts = ctypes.create_unicode_buffer(service["command"])
        ctypes.c_uint32.from_address(buffer + 4).value = service["start"]
        ctypes.c_void_p.from_address(buffer + 16).value = ctypes.addressof(self._texts)
        return 1

    def QueryServiceStatusEx(self, handle: int, level: int, buffer: int, size: int, needed: int) -> int:
        assert (level, size) == (0, 36)
        service = self._service(handle)
        words = (0x10, service["state"], 0, service["error"], service["own"], 0, 0, service["pid"], 0)
        ctypes.memmove(buffer, (ctypes.c_uint32 * 9)(*words), 36)
        return 1

    def StartServiceW(self, handle: int, count: int, words: None) -> int:
        service = self._service(handle)
        if service["state"] != 1:
            raise Refused(1056)
        if self._exits is None:
            service |= {"state": 4, "pid": 4242, "error": 0}
        else:
            service |= {"error": 1066, "own": self._exits}
        return 1

    def ControlService(self, handle: int, control: int, status: int) -> int:
        service = self._service(handle)
        if service["state"] == 1:
            raise Refused(1062)
        service |= {"state": 1, "pid": 0}
        return 1

    def DeleteService(self, handle: int) -> int:
        assert self._service(handle)["state"] == 1
        del self.services[self._handles[handle]]
        return 1

    def CloseServiceHandle(self, handle: int) -> int:
        assert handle in self._handles
        self.open_handles -= 1
        return 1

    def StartServiceCtrlDispatcherW(self, table: int) -> int:
        if not self.started_by_scm:
            raise Refused(1063)
        name, main = ctypes.c_wchar_p.from_address(table), ctypes.c_void_p.from_address(table + 8)
        assert name.value == "llama-appliance"
        assert ctypes.c_void_p.from_address(table + 16).value is None
        service = threading.Thread(target=MAIN(main.value or 0), args=(0, None))
        service.start()
        while (control := self.controls.get()) is not None:
            self.answers.append(self._handler(*control, None, None))
        service.join()
        return 1

    def RegisterServiceCtrlHandlerExW(self, name: str, handler: Any, context: None) -> int:
        self._handler = handler
        return STATUS_HANDLE

    def SetServiceStatus(self, handle: int, status: int) -> int:
        assert handle == STATUS_HANDLE
        words = list((ctypes.c_uint32 * 7).from_address(status))
        report = dict(zip(("kind", "state", "accepts", "error", "own", "checkpoint", "hint"), words, strict=True))
        self.reports.append(report)
        self.told(report)
        if report["state"] == 1:
            self.controls.put(None)
        return 1

    def RegisterEventSourceW(self, machine: None, name: str) -> int:
        return EVENTS

    def ReportEventW(self, handle: int, kind: int, *words: Any) -> int:
        category, number, user, count, size, texts, data = words
        assert (handle, category, user, count, size, data) == (EVENTS, 0, None, 1, 0, None)
        assert 1 <= number <= 1000
        self.events.append((kind, ctypes.c_wchar_p.from_address(texts).value or ""))
        return 1

    def DeregisterEventSource(self, handle: int) -> int:
        return 1

    def RegSetKeyValueW(self, root: int, key: str, name: str, kind: int, content: int, size: int) -> int:
        if not self._administrator:
            return 5
        assert root == 0xFFFFFFFF80000002
        self.registry.setdefault(key, {})[name] = ctypes.string_at(content, size)
        return 0

    def RegDeleteTreeW(self, root: int, key: str) -> int:
        return 0 if self.registry.pop(key, None) is not None else 2

    def ConvertStringSecurityDescriptorToSecurityDescriptorW(
        self, text: str, version: int, out: int, size: None
    ) -> int:
        assert version == 1
        self._descriptor = text
        ctypes.c_void_p.from_address(out).value = DESCRIPTOR
        return 1

    def CreateDirectoryW(self, path: str, attributes: int) -> int:
        assert ctypes.c_uint32.from_address(attributes).value == STRUCTURES["SECURITY_ATTRIBUTES"]
        assert ctypes.c_void_p.from_address(attributes + 8).value == DESCRIPTOR
        os.mkdir(path)  # noqa: PTH102  as the call has it
        self.folders[path] = self._descriptor
        return 1

    def GetNamedSecurityInfoW(self, path: str, kind: int, wanted: int, owner: int, *others: Any) -> int:
        *unwanted, descriptor = others
        assert (kind, wanted, unwanted) == (1, 1, [None, None, None])
        if not os.path.exists(path):  # noqa: PTH110  as the call has it
            return 2
        self._owner = self.owners.get(path, CALLER)
        ctypes.c_void_p.from_address(owner).value = OWNER
        ctypes.c_void_p.from_address(descriptor).value = DESCRIPTOR
        return 0

    def ConvertSidToStringSidW(self, sid: int, out: int) -> int:
        assert sid == OWNER
        text = ctypes.create_unicode_buffer(self._owner)
        ctypes.c_void_p.from_address(out).value = ctypes.addressof(text)
        self._allocated[ctypes.addressof(text)] = text
        return 1

    def LocalFree(self, handle: int) -> int:
        assert handle == DESCRIPTOR or self._allocated.pop(handle)
        return 0

    def SetErrorMode(self, mode: int) -> int:
        self.error_mode = mode
        return 0


def main() -> None:
    """Be the process that the service control manager starts."""
    from appliance.__main__ import start
    from appliance.cli.app import run
    from appliance.feature import verb_ground
    from appliance.features import FEATURES
    from appliance.features.embedded.feature import EMBEDDED
    from appliance.features.service.core.windows import ADVICE
    from appliance.features.service.windows import run_service
    from appliance.platform.inside import bring_engine
    from appliance.platform.win32 import Win32

    bring_engine(EMBEDDED.engine)
    home, controls, *words = sys.argv[1:]
    scm = ServiceControl()
    out = os.fdopen(os.dup(1), "w", buffering=1)  # the program takes standard output for its log

    def told(report: dict[str, int]) -> None:
        print(json.dumps({"report": report}), file=out)
        if report["state"] == 4:
            host, _, port = scm_address().rpartition(":")
            with socket.create_connection((host, int(port)), 10):
                print(json.dumps({"connected": True}), file=out)
            for control in controls.split(","):
                number, _, event = control.partition(":")
                scm.controls.put((int(number), int(event or 0)))

    def scm_address() -> str:
        return re.findall(r"listening on http://(\S+)", (Path(home) / "service.log").read_text("utf-8"))[-1]

    scm.told = told
    work = partial(run, ["serve", *words], start, verb_ground(FEATURES))
    status = run_service(Win32(scm.calls, scm.error, ADVICE), work, Path(home))
    end = {"status": status, "answers": scm.answers, "events": scm.events, "mode": scm.error_mode}
    print(json.dumps(end), file=out)
    sys.exit(status)


if __name__ == "__main__":
    main()
