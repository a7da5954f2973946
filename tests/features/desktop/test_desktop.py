"""The program of the desktop: icon, menu and page, with a real browser command, a real D-Bus and a real panel."""

from __future__ import annotations

import ctypes
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import get_args
from urllib.request import urlopen

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jeepney import DBusAddress, new_method_call
from jeepney.io.blocking import open_dbus_connection
from jeepney.low_level import Endianness, parse_signature
from program import COMMAND, fresh_environment, wait_gone
from screen import Screen, x_server
from waiting import wait
from windows_headers import ICON_PROTOTYPES, ICON_STRUCTURES, check_calls

from appliance.features.desktop import rules as tray
from appliance.features.desktop import windows_calls

if sys.platform != "linux":
    pytest.skip("elsewhere it opens the page alone", allow_module_level=True)

TIME = 60.0
GREEN, GREY = 0x59C392, 0x9AA5AC
PANEL = """<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-panel" version="1.0">
  <property name="configver" type="int" value="2"/>
  <property name="panels" type="array">
    <value type="int" value="1"/>
    <property name="panel-1" type="empty">
      <property name="position" type="string" value="p=6;x=0;y=0"/>
      <property name="size" type="uint" value="48"/>
      <property name="length" type="uint" value="100"/>
      <property name="plugin-ids" type="array"><value type="int" value="1"/></property>
    </property>
  </property>
  <property name="plugins" type="empty">
    <property name="plugin-1" type="string" value="systray"/>
  </property>
</channel>
"""


class Desk:
    """A user's session: its environment, the pages that were opened, and the desktop programs of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.opened = home / "opened"
        self.opened.touch()
        browser = home / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" >> {self.opened}\n')
        browser.chmod(0o755)
        self.env = fresh_environment(home) | {"BROWSER": str(browser), "XDG_CONFIG_HOME": str(home / "config")}
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS"):
            self.env.pop(name, None)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [str(COMMAND), "desktop", "--", "--port", "0", "--no-stores", *words]
        return subprocess.Popen(command, cwd=self.home, env=self.env, stdin=subprocess.DEVNULL)

    def pages(self) -> list[str]:
        return self.opened.read_text().splitlines()

    def wait_page(self, number: int = 1) -> str:
        """The page that was opened as the ``number``th."""
        return wait(self.pages, lambda pages: len(pages) >= number, within=TIME, told=self.log)[number - 1]

    def log(self) -> str:
        file = self.home / "xdg_data_home" / "llama-appliance" / "desktop.log"
        return file.read_text() if file.exists() else ""


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait(TIME)


def health(url: str) -> str:
    with urlopen(f"{url}/health", timeout=TIME) as answer:
        return str(json.loads(answer.read())["status"])


def test_without_a_tray_it_serves_and_opens_the_page_and_a_second_start_opens_the_same(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    first = desk.start()
    try:
        url = desk.wait_page()
        assert health(url) == "ok"
        [server] = [each for each in psutil.Process(first.pid).children() if "serve" in each.cmdline()]
        second = desk.start()
        assert second.wait(TIME) == 0
        assert desk.wait_page(2) == url
        first.send_signal(signal.SIGTERM)
        assert first.wait(TIME) == 0
        wait_gone([server])
    finally:
        end(first)


def test_a_server_that_does_not_start_has_its_log_opened(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    missing = str(tmp_path / "missing")
    first = desk.start("--engine", missing)
    try:
        wait(lambda: missing in desk.log(), within=TIME)
        assert desk.wait_page().endswith("/desktop.log")
        assert first.poll() is None
    finally:
        end(first)


NEIGHBOUR = """
import encodings.idna, http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        refused = sys.argv[2] == "key" and self.path != "/health"
        self.send_response(401 if refused else 200)
        body = b'{"status": "ok", "data": []}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Answer).serve_forever()
"""
"""A server of somebody at the usual address. It has read all that it needs before it is theirs: a Python in the home of
root is closed to them, and started one of the system in its stead, or none."""
SERVICE, NOBODY = 64999, 65534


@pytest.mark.needs("root")  # makes users and a network of its own
@pytest.mark.parametrize(
    ("user", "key", "taken"),
    [(0, "", True), (0, "key", True), (NOBODY, "", False), (SERVICE, "", True), (SERVICE, "key", False)],
    ids=["own", "own with a key", "another user's", "the service's", "the service's with a key"],
)
def test_a_server_at_the_usual_address_is_taken_only_from_this_user_and_the_service(
    tmp_path: Path, user: int, key: str, taken: bool
) -> None:
    """Another user's page would get what is written into it. The service's with a key would ask for that."""
    desk = Desk(tmp_path)
    passwd = Path("/etc/passwd").read_text("utf-8") + f"llama-appliance:x:{SERVICE}:{SERVICE}::/:/bin/false\n"
    (tmp_path / "passwd").write_text(passwd)
    script = f"""
        ip link set lo up; mount --bind {tmp_path}/passwd /etc/passwd
        {sys.executable} -S -E -c "$2" {user} "$3" & trap "kill $!" EXIT
        until curl -s -o {tmp_path}/health http://127.0.0.1:8080/health; do kill -0 $! || exit; sleep 0.1; done
        "$1" desktop -- --no-stores & trap "kill $!; wait $!; kill %1" TERM; wait
    """
    words = ["unshare", "--net", "--mount", "sh", "-c", script, "sh", str(COMMAND), NEIGHBOUR, key]
    desktop = subprocess.Popen(words, cwd=tmp_path, env=desk.env, stdin=subprocess.DEVNULL)
    try:
        assert (desk.wait_page().rstrip("/") == "http://127.0.0.1:8080") is taken
        log = tmp_path / "xdg_data_home" / "llama-appliance" / "desktop.log"
        assert taken or log.stat().st_mode & 0o077 == 0
    finally:
        end(desktop)


@pytest.fixture
def desk(tmp_path: Path) -> Generator[Desk]:
    """A session with a bus, a screen and a panel."""
    desk = Desk(tmp_path)
    settings = tmp_path / "config" / "xfce4" / "xfconf" / "xfce-perchannel-xml"
    settings.mkdir(parents=True)
    (settings / "xfce4-panel.xml").write_text(PANEL)
    bus = f"unix:path={tmp_path / 'bus'}"
    with ExitStack() as stack:

        def run(*command: str) -> None:
            log = stack.enter_context((tmp_path / f"{command[0]}.log").open("wb"))
            process = subprocess.Popen(command, env=desk.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(process.wait, TIME)
            stack.callback(process.terminate)

        run("dbus-daemon", "--session", "--nofork", "--nosyslog", f"--address={bus}")
        display = stack.enter_context(x_server(tmp_path))
        desk.env |= {"DISPLAY": display, "DBUS_SESSION_BUS_ADDRESS": bus}
        wait((tmp_path / "bus").exists)
        run("xfce4-panel", "--disable-wm-check")
        yield desk


@pytest.mark.needs("dbus-daemon", "Xvfb", "xfce4-panel")
def test_the_icon_shows_the_server_and_its_menu_steers_it(desk: Desk, tmp_path: Path) -> None:
    program = desk.start()
    try:
        desk.wait_page()
        screen = Screen(tmp_path)
        wait(lambda: screen.pixels(GREEN), lambda found: found > 20, within=TIME)
        with open_dbus_connection(desk.env["DBUS_SESSION_BUS_ADDRESS"]) as bus:
            name = f"org.kde.StatusNotifierItem-{program.pid}-1"
            menu = DBusAddress("/MenuBar", name, "com.canonical.dbusmenu")
            asked = new_method_call(menu, "GetLayout", "iias", (0, -1, []))
            _, (_, _, lines) = bus.send_and_get_reply(asked).body
            labels = {line[1][1]["label"][1]: line[1][0] for line in lines if "label" in line[1][1]}

            def click(label: str) -> None:
                event = (labels[label], "clicked", ("i", 0), 0)
                bus.send_and_get_reply(new_method_call(menu, "Event", "isvu", event))

            click("Open the page")
            assert desk.wait_page(2) == desk.pages()[0]
            click("Stop")
            wait(lambda: screen.pixels(GREY), lambda found: found > 20, within=TIME)
            assert [each for each in psutil.Process(program.pid).children() if "serve" in each.cmdline()] == []
            click("Start")
            wait(lambda: screen.pixels(GREEN), lambda found: found > 20, within=TIME)
            entry = tmp_path / "config" / "autostart" / "llama-appliance.desktop"
            click("Start at login")
            wait(entry.exists)
            click("Start at login")
            wait(lambda: not entry.exists())
            click("Show the log")
            assert desk.wait_page(3).endswith("desktop.log")
            click("Quit and stop the server")
        assert program.wait(TIME) == 0
    finally:
        end(program)


CONDITIONS: tuple[tray.Condition, ...] = get_args(tray.Condition)
facts = st.builds(tray.TrayState, condition=st.sampled_from(CONDITIONS), url=st.text(max_size=20), login=st.booleans())


def encodes(signature: str, values: tuple[object, ...]) -> None:
    """Fails unless D-Bus can carry the values under this signature."""
    parse_signature(list(f"({signature})")).serialise(values, 0, Endianness.little, [])


@given(
    facts,
    st.sampled_from((tray.ITEM, tray.MENU, tray.PROPERTIES, "org.freedesktop.DBus.Peer", "x")),
    st.sampled_from(
        ("Get", "GetAll", "GetLayout", "GetGroupProperties", "GetProperty", "Event", "EventGroup", "Ping", "")
    ),
    st.lists(
        st.one_of(
            st.integers(-2, 12), st.sampled_from((tray.ITEM, tray.MENU, "Title", "label", "clicked")), st.just([])
        ),
        max_size=4,
    ),
)
def test_every_answer_to_any_call_can_be_sent(
    facts: tray.TrayState, interface: str, member: str, args: list[object]
) -> None:
    found = tray.answer(interface, member, args, facts, 3)
    if found.reply is not None:
        encodes(*found.reply)
    assert found.action is None or any(item.action == found.action and item.enabled for item in tray.menu(facts))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_has_its_lines_its_properties_and_its_picture(condition: tray.Condition) -> None:
    shown = tray.TrayState(condition=condition, url="http://127.0.0.1:8080")
    for interface in (tray.ITEM, tray.MENU):
        encodes("a{sv}", (tray.properties(interface, shown),))
    assert tray.properties(tray.ITEM, shown)["ToolTip"][1][3] == shown.in_words  # type: ignore[index]
    assert "Version" in tray.properties(tray.MENU, shown)
    assert tray.properties("org.freedesktop.DBus.Peer", shown) == {}
    (whole, line) = (tray.answer(tray.MENU, "GetLayout", (of, -1, []), shown, 1).reply[1] for of in (0, 1))  # type: ignore[index]
    encodes("u(ia{sv}av)", whole)
    assert whole[1][1] == {"children-display": ("s", "submenu")}
    assert line == (1, (1, {}, []))
    enabled = {item.action for item in tray.menu(shown) if item.enabled and item.label}
    assert ("start" in enabled) != ("stop" in enabled) or condition == "elsewhere"
    picture = tray.icon(condition)
    assert len(picture) == 4 * tray.SIDE * tray.SIDE
    assert picture[:4] == b"\0\0\0\0"
    assert tray.COLOURS[condition].to_bytes(4, "big") in picture
    resource = tray.image(condition)
    assert struct.unpack("<Iii", resource[:12]) == (40, tray.SIDE, 2 * tray.SIDE)
    rows = struct.unpack(f"<{tray.SIDE * tray.SIDE}I", resource[40 : 40 + 4 * tray.SIDE * tray.SIDE])
    upright = [rows[at : at + tray.SIDE] for at in range(0, len(rows), tray.SIDE)][::-1]
    assert b"".join(pixel.to_bytes(4, "big") for row in upright for pixel in row) == picture


@pytest.mark.parametrize("condition", CONDITIONS)
def test_quitting_says_what_becomes_of_the_server(condition: tray.Condition) -> None:
    """It ends the server that the program owns, which is the one that "Stop" would stop, and no other."""
    *_, line = (item for item in tray.menu(tray.TrayState(condition=condition)))
    stops = any(item.action == "stop" and item.enabled for item in tray.menu(tray.TrayState(condition=condition)))
    assert line.action == "quit"
    assert ("stop the server" in line.label) == stops
    assert ("goes on" in line.label) == (condition == "elsewhere")


def test_only_a_click_on_a_line_that_is_enabled_asks_for_something() -> None:
    stopped = tray.TrayState(condition="stopped")
    lines = {item.label: item.id for item in tray.menu(stopped)}
    for label, event, action in (("Start", "clicked", "start"), ("Start", "hovered", None), ("Stop", "clicked", None)):
        assert tray.answer(tray.MENU, "Event", (lines[label], event, ("i", 0), 0), stopped, 1).action == action
    events = [(lines["Stop"], "clicked", ("i", 0), 0), (lines["Quit"], "clicked", ("i", 0), 0)]
    assert tray.answer(tray.MENU, "EventGroup", (events,), stopped, 1).action == "quit"
    assert tray.answer(tray.ITEM, "Activate", (0, 0), stopped, 1).action == "open"


def test_the_entry_that_starts_at_login_quotes_what_a_path_may_have() -> None:
    [line] = [line for line in tray.autostart(["/a b/50%/$x", 'q"\\']).splitlines() if line.startswith("Exec=")]
    assert line == 'Exec="/a b/50%%/\\\\$x" "q\\\\"\\\\\\\\"'


def test_every_call_has_the_types_of_windows() -> None:
    check_calls(windows_calls.SIGNATURES, ICON_PROTOTYPES)


def test_every_structure_has_the_size_of_windows() -> None:
    ours = {
        "WNDCLASSW": windows_calls.WindowClass,
        "MSG": windows_calls.Message,
        "NOTIFYICONDATAW": windows_calls.NotifyIcon,
    }
    assert {name: ctypes.sizeof(each) for name, each in ours.items()} == ICON_STRUCTURES
