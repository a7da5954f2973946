set -e
unit=llama-appliance.service
state=/var/lib/llama-appliance

systemd_runs() { [ -d /run/systemd/system ]; }

# The user and its groups; without systemd there is no service that needs them.
make_user() {
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers llama-appliance.conf; fi
}

# The service's user owns its home, so what is in it may be a link to anywhere. Root makes the home alone; what is in it
# the user makes, with no more rights than it has.
as_service() { setpriv --reuid llama-appliance --regid llama-appliance --clear-groups "$@"; }

# Where somebody puts models: members of the service's group may, and what they put there belongs to the group. A folder
# that cannot be made is no reason to leave the package half installed.
make_models() {
    if getent passwd llama-appliance >/dev/null; then
        install -d -m 750 -o llama-appliance -g llama-appliance "$state"
        as_service install -d -m 2770 "$state/models" || echo "no folder for models: $state/models" >&2
    fi
}

# A new service starts with the machine unless the machine's presets say otherwise (systemd.preset(5)). Debian's own
# tool remembers across removals what somebody has chosen.
enable_service() {
    if ! command -v systemctl >/dev/null; then return; fi
    if [ -z "$DPKG_MAINTSCRIPT_NAME" ]; then systemctl --quiet preset $unit || true; return; fi
    deb-systemd-helper unmask $unit >/dev/null || true
    if deb-systemd-helper --quiet was-enabled $unit && ! preset_forbids; then
        deb-systemd-helper enable $unit >/dev/null || true
    else
        deb-systemd-helper update-state $unit >/dev/null || true
    fi
}

preset_forbids() { systemctl list-unit-files --no-legend $unit 2>/dev/null | grep -q 'disabled *$'; }

# Images and chroots forbid services by policy-rc.d, which Debian's own tool asks.
steer() {
    if [ -n "$DPKG_MAINTSCRIPT_NAME" ]; then deb-systemd-invoke "$1" $unit >/dev/null
    else systemctl "$1" $unit; fi
}

# The settings may hold a key. Earlier packages let every user read them, and an upgrade keeps the rights of a file.
close_settings() { chmod o-rwx /etc/default/llama-appliance; }

# The key of a new service: without one, all users of the machine would share one list of conversations. A file that is
# there stays as it is, also an empty one; a service that had no key before an upgrade has none after it.
make_key() {
    key=/etc/llama-appliance/key.env
    if [ -e $key ] || ! command -v systemctl >/dev/null; then return; fi
    mkdir -p -m 755 ${key%/*}
    (umask 077; echo "LLAMA_APPLIANCE_API_KEY=$(head -c 24 /dev/urandom | base64 | tr +/ -_)" >$key.new)
    mv $key.new $key
}

tell_next() {
    if systemd_runs && systemctl --quiet is-active $unit; then
        echo "llama-appliance serves http://127.0.0.1:8080. A first answer:"
        echo '  sudo llama-appliance run starter "Hello"'
        echo "Its page and its API ask for the key that 'sudo cat /etc/llama-appliance/key.env' shows. Commands of root"
        echo "need none, and neither do those of a user in the service's group:"
        echo '  sudo usermod -aG llama-appliance USER'
    elif systemd_runs; then
        echo "llama-appliance does not run; 'sudo systemctl enable --now llama-appliance' starts it, also with the machine"
    fi
}

stop_service() {
    if systemd_runs; then steer stop || true; fi
}

# The files of a running program are about to be replaced. It runs again afterwards if it ran before.
pause_service() {
    if systemd_runs && systemctl --quiet is-active $unit; then
        touch /run/llama-appliance.paused
        steer stop || true
    fi
}

resume_service() {
    if [ -e /run/llama-appliance.paused ]; then
        rm -f /run/llama-appliance.paused
        start_service
    fi
}

start_service() {
    if systemd_runs; then
        systemctl daemon-reload
        steer start || echo "the service does not start; 'journalctl -u llama-appliance' says why" >&2
    fi
}

start_if_enabled() {
    if systemd_runs && systemctl --quiet is-enabled $unit; then start_service; fi
}

delete_data() {
    rm -rf "$state" /var/cache/llama-appliance /etc/llama-appliance
    if getent passwd llama-appliance >/dev/null; then userdel llama-appliance || true; fi
}
