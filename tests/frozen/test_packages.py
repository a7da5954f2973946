"""The packages in a Debian that boots: installed, served, killed, hung, upgraded, removed, purged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import booted
import pytest
from booted import package
from frozen_harness import commands_of_the_page

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.slow,
    pytest.mark.needs("root", "mmdebstrap", "systemd-nspawn", "unshare"),
]

ROOT = Path(__file__).resolve().parents[2]
STARTER = ROOT / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
PAGE = commands_of_the_page()
[_, DEB_WAYS, RPM_WAYS, ENGINE_WAYS] = [[line.partition("#")[0] for line in block] for block in PAGE["Linux packages"]]
[SERVICE, OWN_SERVICE] = [[line.partition("#")[0] for line in block] for block in PAGE["A systemd service"]]
WORDS = """
sudo() { "$@"; }
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes
echo 'assumeyes=1' >>/etc/dnf/dnf.conf
files() {
    find / -xdev \\( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log \\
        -o -path /var/lib/rpm -o -path /var/cache/ldconfig -o -path /var/lib/systemd \\
        -o -name .rpmdb -o -path /var/lib/apt -o -path /var/cache/apt -o -path /var/lib/dnf -o -path /var/cache/dnf \\
        -o -name __pycache__ \\
        \\) -prune -o \\
        \\( ! -type d -o -name "*llama*" \\) -print |
        grep -v -e '^/etc/.*-$' -e '^/said' -e '^/etc/.pwd.lock' | sort
}
property() { systemctl show llama-appliance -P "$1"; }
chat() {
    key=$(sed 's/^[^=]*=//' /etc/llama-appliance/key.env 2>/dev/null)
    curl -sS --fail --max-time 60 http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $key" \\
        -d '{"model": "starter", "messages": [{"role": "user", "content": "What is your name?"}]}'
    echo
}
user() { su --login "$1" --command "$2"; }
tell() { user "$1" "$2"; echo "status $?"; }
stranger() { setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp sh -c "$1"; }
rights() { stat -c '%a %U' /etc/default/llama-appliance /etc/llama-appliance/key.env; }
without_key() { curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8080/v1/models; }
hub() {
    mkdir -p /hub/acme/Tiny-GGUF "$1/llama-appliance.service.d"
    cp /starter.gguf /hub/acme/Tiny-GGUF/Tiny-Q8_0.gguf
    python3 -S -E /fakes/model_hub.py --root /hub >/hub.json & until [ -s /hub.json ]; do sleep 0.1; done
    printf '[Service]\\nEnvironment=HF_ENDPOINT=%s\\n' "$(sed 's/.*"hub": "\\([^"]*\\).*/\\1/' /hub.json)" \
        >"$1/llama-appliance.service.d/hub.conf"
}
first_day() {
    user "$1" "$2 pull acme/Tiny-GGUF && $2 ls && $2 ps -v"
    tell "$1" "$2 run acme/Tiny-GGUF:Q8_0 'What is your name?'"
    user "$1" "cp /hub/acme/Tiny-GGUF/Tiny-Q8_0.gguf '$3/mine.gguf'"
    tell "$1" "$2 ls; $2 run mine 'What is your name?'"
    tell "$1" "$2 unload acme/Tiny-GGUF:Q8_0 && $2 rm acme/Tiny-GGUF"
    echo then; user "$1" "$2 ls"
}
another_engine() {
    (umask 077; cp -r "$3/engines/linux-x64-cpu" /engine)
    sed -i 's/"build": "b[0-9]*"/"build": "b1"/' /engine/*/engine.json; chown -R "$1" /engine
    tell "$1" "$2 engines install cpu/b1 --from /engine/*"
    user "$1" "$2 engines ls"; tell "$1" "$2 engines use linux-x64-cpu/b1"
    user "$1" "$2 run starter hi"; user "$1" "$2 ps"
}
until_active() {
    for _ in $(seq 300); do
        [ "$(property ActiveState) $(property NRestarts)" = "active $1" ] && return
        sleep 0.1
    done
    echo "not active with $1 restarts"
}
"""
"""Shell functions of the scenarios."""

DEB = f"""
files >/tmp/before
section install; {DEB_WAYS[0]}; echo "status $?"
section key; rights; without_key
section strangers
stranger 'llama-appliance ps'; echo "status $?"; stranger 'llama-appliance run starter hi'; echo "status $?"
(export $(cat /etc/llama-appliance/key.env); stranger 'llama-appliance ps'; echo "status $?")
setpriv --reuid 54321 --regid 54321 --clear-groups env -u HOME llama-appliance ls; echo "status $?"
section others
for file in /etc/default/llama-appliance /etc/llama-appliance/key.env; do
    setpriv --reuid 65534 cat $file && echo read
done
section status; llama-appliance service status --json
section user; ps -o user:20= -p "$(property MainPID)"
section chat; chat
section engine; ps -eo args | grep -c '^/usr/lib/llama-appliance/engines/.*/llama-server'
section gpu; property DevicePolicy; property DeviceAllow
section security; systemd-analyze security llama-appliance | tail -1
section refused; llama-appliance service install; echo "status $?"
section man; [ -s /usr/share/man/man1/llama-appliance.1.gz ] && echo there
section killed; kill -9 "$(property MainPID)"; until_active 1; chat
section watchdog
mkdir -p /run/systemd/system/llama-appliance.service.d
printf '[Service]\\nWatchdogSec=2\\n' >/run/systemd/system/llama-appliance.service.d/short.conf
systemctl daemon-reload; systemctl restart llama-appliance; kill -STOP "$(property MainPID)"; until_active 1; chat
journalctl -u llama-appliance | grep -c 'Watchdog timeout'
section reload; systemctl reload llama-appliance; echo "status $?"; systemctl is-active llama-appliance
section data; touch /var/lib/llama-appliance/mine; echo '#edited' >>/etc/default/llama-appliance
section upgrade; dpkg -i /newer.deb; echo "status $?"; systemctl is-active llama-appliance; chat
grep -c edited /etc/default/llama-appliance; ls /var/lib/llama-appliance/mine
section key-stays; rights; without_key
section keyless; mv /etc/llama-appliance/key.env /tmp; chmod 644 /etc/default/llama-appliance
dpkg -i /newer.deb >/dev/null 2>&1; rights; without_key; mv /tmp/key.env /etc/llama-appliance
section upgraded-stopped; systemctl stop llama-appliance; dpkg -i /newer.deb >/dev/null 2>&1
systemctl is-active llama-appliance
section remove; {DEB_WAYS[1]}; echo "status $?"; ls -d /var/lib/llama-appliance/mine /usr/lib/llama-appliance
ps -eo args | grep -c '[l]lama-appliance serve'
section purge; {DEB_WAYS[2]}; echo "status $?"
rm -rf /run/systemd/system/llama-appliance.service.d; files >/tmp/after
section left; diff /tmp/before /tmp/after; getent passwd llama-appliance
"""


def newer(deb: Path, made: Path, comment: str = "") -> Path:
    """Make the same package with a higher version, and with this in front of its settings."""
    tree = made.with_name("tree")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text("utf-8").replace("\nVersion: ", "\nVersion: 99."), "utf-8")
    settings = tree / "etc" / "default" / "llama-appliance"
    settings.write_text(comment + settings.read_text("utf-8"), "utf-8")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, made], check=True)
    shutil.rmtree(tree)
    return made


def answer(text: str) -> str:
    return str(json.loads(text.splitlines()[0])["choices"][0]["message"]["content"]).lower()


def test_the_deb_from_install_to_purge(tmp_path: Path) -> None:
    deb = package("llama-appliance_*.deb")
    root = booted.unpack_root(tmp_path)
    said = booted.boot(root, WORDS + DEB, {deb.name: deb, "newer.deb": newer(deb, tmp_path / "newer.deb")})
    assert said["install"].endswith("status 0\n"), said["install"]
    status = json.loads(said["status"])
    assert (status["state"], status["enabled"], status["said"]) == (
        "active",
        True,
        "listening on http://127.0.0.1:8080",
    )
    assert "sudo cat /etc/llama-appliance/key.env" in said["install"]
    assert said["key"] == "600 root\n600 root\n401\n"
    assert said["strangers"].count("sudo usermod -aG llama-appliance USER") == 2
    assert [line[7:] for line in said["strangers"].splitlines() if "status" in line] == ["2", "2", "0", "2"]
    assert "the system knows no home folder for ~; set HOME" in said["strangers"]
    assert said["others"].count("Permission denied") == 2
    assert said["user"].strip() == "llama-appliance"
    assert "appliance" in answer(said["chat"])
    assert said["engine"] == "1\n"
    assert "closed" in said["gpu"]
    assert "char-nvidia" in said["gpu"]
    assert "1.9 OK" in said["security"]
    assert "belongs to a package" in said["refused"]
    assert said["refused"].endswith("status 2\n")
    assert said["man"] == "there\n"
    assert "appliance" in answer(said["killed"])
    assert "appliance" in answer(said["watchdog"])
    assert said["watchdog"].splitlines()[-1] != "0"
    assert said["reload"] == "status 0\nactive\n"
    tail = said["upgrade"].partition("status 0\nactive\n")[2].splitlines()
    assert "appliance" in answer(tail[0])
    assert tail[1:] == ["1", "/var/lib/llama-appliance/mine"]
    assert said["key-stays"] == "600 root\n600 root\n401\n"
    assert said["keyless"].startswith("640 root\n")
    assert said["keyless"].endswith("\n200\n")
    assert "No such file" in said["keyless"]
    assert said["upgraded-stopped"] == "inactive\n"
    assert "\n/var/lib/llama-appliance/mine\n" in said["remove"]
    assert "cannot access '/usr/lib/llama-appliance'" in said["remove"]
    assert said["remove"].endswith("\n0\n")
    assert "status 0" in said["purge"]
    assert said["left"] == ""


CIRCLE = """
useradd --create-home anna; useradd --create-home bert; hub /run/systemd/system
section manners; printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
apt install /first.deb >/dev/null 2>&1; systemctl is-enabled llama-appliance; systemctl is-active llama-appliance
apt purge llama-appliance >/dev/null 2>&1; rm /usr/sbin/policy-rc.d
mkdir -p /etc/systemd/system-preset; echo 'disable llama-appliance.service' >/etc/systemd/system-preset/10-no.preset
apt install /first.deb >/said-preset 2>&1; grep -c 'systemctl enable --now' /said-preset
systemctl is-enabled llama-appliance; systemctl is-active llama-appliance
apt purge llama-appliance >/dev/null 2>&1; rm /etc/systemd/system-preset/10-no.preset
section again; apt install /first.deb >/said-install 2>&1; apt remove llama-appliance >/dev/null 2>&1
apt install /first.deb >/dev/null 2>&1; systemctl is-enabled llama-appliance; systemctl is-active llama-appliance
grep -c 'usermod -aG llama-appliance' /said-install
systemctl daemon-reload; systemctl restart llama-appliance; usermod -aG llama-appliance anna
section anna; first_day anna llama-appliance /var/lib/llama-appliance/models
section closed; (umask 077; cp /hub/acme/Tiny-GGUF/Tiny-Q8_0.gguf /var/lib/llama-appliance/models/closed.gguf)
user anna 'llama-appliance ls' | grep 'closed cannot'
section guest; tell anna 'llama-appliance engines use cpu'
tell bert 'llama-appliance pull acme/Tiny-GGUF'; tell bert 'llama-appliance ps'
section root; llama-appliance pull acme/Tiny-GGUF; echo "status $?"; llama-appliance run acme/Tiny-GGUF:Q8_0 hi
llama-appliance run mine hi; another_engine root llama-appliance /usr/lib/llama-appliance
user anna 'llama-appliance engines ls; llama-appliance ps'
find /var/lib/llama-appliance /var/cache/llama-appliance ! -user llama-appliance ! -path '*/models/*'
section bundle; llama-appliance bundle keygen /mine
llama-appliance bundle export --models mine --no-program --key /mine -o /b; echo "status $?"
llama-appliance bundle import /b --key /mine.pub; echo "status $?"
for words in '' --own '--key /mine.pub'; do
    llama-appliance bundle verify /b --json $words | sed -n 's/.*"trust": \\("[a-z]*"\\).*/\\1/p'; done
tell anna 'llama-appliance bundle verify /b'; tell anna 'llama-appliance bundle verify /b --key /mine.pub'
section engine; @INSTALL@ >/dev/null 2>&1; echo "status $?"; user anna '@LIST@'
apt remove llama-appliance-engine-vulkan >/dev/null 2>&1; user anna 'llama-appliance engines ls' | grep -c vulkan
section pool; code=$(llama-appliance pool create --name one --address 127.0.0.1 | grep -o 'LAP1-[^ ]*')
# until it listens
user bert 'llama-appliance serve --port 8081 >/dev/null 2>&1 & sleep 5; echo $! >serves'
tell bert "llama-appliance pool join $code --own --name two --address 127.0.0.1 --port 4290"
# it is looked at for half a minute
together() { for _ in $(seq 60); do [ "$(user bert "$1" | grep -c ' up ')" = 1 ] && return; sleep 0.5; done; }
together 'llama-appliance pool ls --own'; llama-appliance pool ls; user bert 'llama-appliance run mine hi --own'
ps -o user:20=,args= -C nats-server; systemctl restart llama-appliance; together 'llama-appliance pool ls --own'
tell bert 'llama-appliance run mine hi --own'; llama-appliance doctor --line; llama-appliance pool leave two
echo "status $?"; llama-appliance pool leave; echo "status $?"; kill "$(cat /home/bert/serves)"
section stopped; systemctl stop llama-appliance; llama-appliance ls --system; llama-appliance engines use auto --system
echo "status $?"; find /var/lib/llama-appliance /var/cache/llama-appliance -user root ! -path '*/models/*'
# each has its time to begin
section taken; python3 -m http.server 8080 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1
# as above
systemctl start llama-appliance; sleep 3; property NRestarts; llama-appliance service status
section end; kill %1 %2
"""
"""The day after the installation: everybody's first commands, with the service running. The first folder of an ordinary
user, a hub that the service alone knows.
"""


def assert_first_day(said: str, data: str, why: str) -> None:
    """`first_day` reached the server of this data folder, and each command found what the one before it did."""
    before, _, after = said.partition("then\n")
    assert before.count("status 0") == 3, said
    assert f"server: unix:{data}/server.sock ({why})" in before
    assert f"Models folder: {data}/models" in before
    listed = [line.split()[0] for line in before.splitlines() if line.startswith(("acme/Tiny-GGUF:Q8_0 ", "mine "))]
    assert listed == ["acme/Tiny-GGUF:Q8_0", "acme/Tiny-GGUF:Q8_0", "mine"], before
    assert "acme" not in after
    assert "\nmine " in after


@pytest.mark.slow(only_all=True)  # a landing makes no engines' packages
def test_the_day_after_the_installation(tmp_path: Path) -> None:
    """The commands of root and of the group reach the service; nothing goes into the home of their user."""
    deb, vulkan = package("llama-appliance_*.deb"), package("llama-appliance-engine-vulkan_*.deb")
    root = booted.unpack_root(tmp_path)
    shutil.copytree(ROOT / "tests" / "fakes", root / "fakes")
    script = CIRCLE.replace("@INSTALL@", ENGINE_WAYS[0]).replace("@LIST@", ENGINE_WAYS[1])
    said = booted.boot(root, WORDS + script, {"first.deb": deb, "starter.gguf": STARTER, vulkan.name: vulkan})
    assert said["manners"] == "enabled\ninactive\n1\ndisabled\ninactive\n"
    assert said["again"] == "enabled\nactive\n1\n"
    assert_first_day(said["anna"], "/var/lib/llama-appliance", "the service of this machine runs")
    assert "sudo chmod a+r /var/lib/llama-appliance/models/closed.gguf" in said["closed"]
    assert "put 'sudo' before the command" in said["guest"]
    assert "usermod -aG llama-appliance" in said["guest"]
    assert [line for line in said["guest"].splitlines() if "status" in line] == ["status 2"] * 3
    assert said["root"].count("status 0") == 3, said["root"]
    assert said["root"].count("\nstarter ") == 2, said["root"]
    assert "linux-x64-cpu/b1" in said["root"]
    assert not [line for line in said["root"].splitlines() if line.startswith("/var/")]
    assert "put 'sudo' before the command" in said["bundle"]
    assert said["bundle"].count("status 0") == 3, said["bundle"]
    assert '"signed"\n"unchecked"\n"signed"\n' in said["bundle"], said["bundle"]
    assert said["engine"].startswith("status 0\n"), said["engine"]
    assert "linux-x64-vulkan/" in said["engine"]
    assert said["engine"].endswith("\n0\n")
    assert said["pool"].count("status 0") == 4, said["pool"]
    assert "\ntwo  up " in said["pool"], said["pool"]
    assert "\nllama-appliance      /usr/lib/llama-appliance/nats-server -c /var/lib/" in said["pool"]
    assert said["stopped"].splitlines()[-1] == "status 0", said["stopped"]
    assert "\n0\nfailed (exit-code)" in said["taken"], said["taken"]
    assert "listens there already" in said["taken"]


OWN_CIRCLE = f"""
useradd --create-home --shell /bin/bash anna; useradd --create-home bert; chmod 755 /home/anna
hub /home/anna/.config/systemd/user; chown -R anna /home/anna/.config
user anna 'tar -xzf /program.tar.gz; mv llama-appliance-* program; echo "PATH=~/program:$PATH" >.bash_profile'
bare() {{ setpriv --reuid "$1" --regid "$1" --init-groups env -i HOME="/home/$1" PATH="$PATH:/home/anna/program" $2; }}
section nobody; bare bert 'llama-appliance service install --user'; echo "status $?"
find /home/bert -name '*.service'
section install; {OWN_SERVICE[0].replace("USER", "anna")}; tell anna '{OWN_SERVICE[1]}'
section status; tell anna '{OWN_SERVICE[2]}'; tell anna 'llama-appliance service status'
section anna; first_day anna llama-appliance /home/anna/.local/share/llama-appliance/models
section engine; another_engine anna llama-appliance /home/anna/program
section restart; tell anna '{OWN_SERVICE[3]}'; bare anna 'llama-appliance service restart --user'; echo "status $?"
tell anna 'llama-appliance run mine hi'
section stopped; tell anna 'llama-appliance service stop --user'; tell anna 'llama-appliance service status --user'
user anna 'llama-appliance ls'; tell anna 'llama-appliance service start --user && llama-appliance ps -v'
section reboot; systemctl restart "user@$(id -u anna)"; user anna 'systemctl --user is-system-running --wait'
tell anna 'llama-appliance service status --user && llama-appliance ps -v && llama-appliance run mine hi'
section bert; {OWN_SERVICE[0].replace("USER", "bert")}; tell bert '~anna/program/llama-appliance service install --user'
tell bert '~anna/program/llama-appliance service install --user -- --port 8081 && ~anna/program/llama-appliance ps -v'
section uninstall; tell anna '{OWN_SERVICE[4]}'; tell anna 'llama-appliance service status --user'
user anna 'llama-appliance ls'; pgrep -u anna llama; find /home/anna -name '*.service' -o -name '*.sock'
section end; kill %1
"""
"""The same day for users without rights: the services of their own run what the archive holds."""


def test_the_first_day_with_a_service_of_ones_own(tmp_path: Path) -> None:
    """The user's commands reach it, in a session and outside of one, and it comes back with the user's systemd."""
    root = booted.unpack_root(tmp_path)
    shutil.copytree(ROOT / "tests" / "fakes", root / "fakes")
    said = booted.boot(root, WORDS + OWN_CIRCLE, {"program.tar.gz": package("*.tar.gz"), "starter.gguf": STARTER})
    data = "/home/anna/.local/share/llama-appliance"
    found = f"server: unix:{data}/server.sock (your own server runs)"
    assert "sudo loginctl enable-linger" in said["nobody"]
    assert said["nobody"].endswith("status 2\n")
    assert said["install"].endswith("llama-appliance.service and started it\nstatus 0\n")
    assert said["status"].startswith("active (running, process "), said["status"]
    assert "starts with your session" in said["status"]
    assert said["status"].endswith("not installed, but a service of your own is: --user means that one\nstatus 3\n")
    assert_first_day(said["anna"], data, "your own server runs")
    assert said["engine"].count("status 0") == 2, said["engine"]
    assert "\nstarter  loaded  linux-x64-cpu/b1:CPU\n" in said["engine"]
    assert said["restart"].count("status 0") == 3, said["restart"]
    assert said["stopped"].startswith("status 0\ninactive (dead); "), said["stopped"]
    assert f"Models folder: {data}/models" in said["stopped"]
    assert said["stopped"].endswith("status 0\n")
    assert said["reboot"].startswith("running\nactive (running, process "), said["reboot"]
    assert found in said["reboot"]
    assert said["reboot"].endswith("status 0\n")
    assert "cannot listen on 127.0.0.1:8080" in said["bert"].partition("status 1\n")[0], said["bert"]
    assert "server: unix:/home/bert/.local/share/llama-appliance/server.sock" in said["bert"]
    assert said["bert"].endswith("status 0\n")
    assert "status 0\nnot installed; 'llama-appliance service install --user'" in said["uninstall"]
    assert said["uninstall"].endswith(f"Models folder: {data}/models\nTo add a model, put its .gguf file there.\n")


RPM = f"""
rpm --initdb; rpm -i --nodeps /system.rpm; files >/tmp/before
section install; {RPM_WAYS[0]}; echo "status $?"
section verify; rpm -V llama-appliance; echo "status $?"
section key; rights; without_key
section chat; until_active 0; chat
section upgrade; rpm -U --force /llama-appliance*.rpm; echo "status $?"; systemctl is-active llama-appliance
section remove; {RPM_WAYS[1]}; echo "status $?"; systemctl is-active llama-appliance
section left; rm -rf /var/lib/llama-appliance /var/cache/llama-appliance /etc/llama-appliance
files >/tmp/after; diff /tmp/before /tmp/after
"""
ONE_FILE = f"""
mkdir -p /opt /usr/local/bin; mv /llama-appliance*.AppImage /opt; chmod +x /opt/llama-appliance*
ln -s /opt/llama-appliance*.AppImage /usr/local/bin/llama-appliance
section service-install; {SERVICE[0]}; echo "status $?"; systemctl show llama-appliance -P ExecStart; chat
section service-status; {SERVICE[1]}
section service-restart; {SERVICE[2]}; until_active 0
section service-uninstall; {SERVICE[3]}; ls -d /var/lib/llama-appliance; {SERVICE[0]}
section service-purge; {SERVICE[4]}
ls -d /var/lib/llama-appliance /var/cache/llama-appliance /etc/llama-appliance/key.env
getent passwd llama-appliance
"""


def system_of(rpm: Path, folder: Path) -> Path:
    """A package that says of the small Debian what the program's package asks for: rpm knows nothing of dpkg."""
    asked = subprocess.run(["rpm", "-qp", "--requires", rpm], capture_output=True, text=True, check=True).stdout
    provides = "".join(f"Provides: {line}\n" for line in asked.splitlines() if not line.startswith("rpmlib("))
    (folder / "system.spec").write_text(
        f"Name: system\nVersion: 1\nRelease: 1\nSummary: x\nLicense: MIT\nBuildArch: noarch\n{provides}"
        "%description\nx\n%files\n"
    )
    command = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}/rpm", folder / "system.spec"]
    subprocess.run(command, check=True)
    [made] = folder.rglob("system*.rpm")
    return made


def test_the_rpm_installed_and_removed_and_the_one_file_as_a_service(tmp_path: Path) -> None:
    rpm, one = package("llama-appliance-[0-9]*.rpm"), package("*.AppImage")
    root = booted.unpack_root(tmp_path)
    files = {rpm.name: rpm, one.name: one, "system.rpm": system_of(rpm, tmp_path)}
    said = booted.boot(root, WORDS + RPM + ONE_FILE, files)
    assert said["install"].endswith("status 0\n"), said["install"]
    assert said["verify"] == "status 0\n"
    assert "sudo cat /etc/llama-appliance/key.env" in said["install"]
    assert said["key"] == "600 root\n600 root\n401\n"
    assert "appliance" in answer(said["chat"])
    assert said["upgrade"].endswith("status 0\nactive\n")
    assert "status 0\n" in said["remove"]
    assert said["remove"].endswith("inactive\n")
    assert said["left"] == ""
    installed = said["service-install"].splitlines()
    assert "status 0" in installed
    assert f"/opt/{one.name} serve" in said["service-install"]
    assert "ask for the key in /etc/llama-appliance/key.env" in said["service-install"]
    assert "appliance" in answer(installed[-1])
    assert "starts with the machine" in said["service-status"]
    assert said["service-restart"] == ""
    assert "\n/var/lib/llama-appliance\n" in said["service-uninstall"]
    assert "/var/lib/llama-appliance\n" not in said["service-purge"].splitlines(keepends=True)
    assert said["service-purge"].count("No such file") == 3
    assert "x:" not in said["service-purge"]


def test_the_tarball_serves_where_it_is_unpacked() -> None:
    """By the script that tries every package of a release on a fresh machine."""
    archive = package("*.tar.gz")
    listed = json.loads((ROOT / "dist" / "llama-appliance" / "payload.json").read_bytes())
    assert archive.name == f"llama-appliance-{listed['version']}-{listed['platform']}.tar.gz"
    smoke = [sys.executable, str(ROOT / "packaging" / "smoke.py"), str(archive), "--commit", listed["commit"]]
    done = subprocess.run(smoke, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
