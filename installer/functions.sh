set -e
unit=llama-appliance.service

systemd_runs() { [ -d /run/systemd/system ]; }

# The user and its groups; without systemd there is no service that needs them.
make_user() {
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers llama-appliance.conf; fi
}

enable_service() {
    if command -v systemctl >/dev/null; then systemctl --quiet enable $unit || true; fi
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

tell_key() {
    if systemd_runs && [ -s /etc/llama-appliance/key.env ]; then
        echo "llama-appliance serves http://127.0.0.1:8080; its page and its API ask for the key in"
        echo "  sudo cat /etc/llama-appliance/key.env"
    fi
}

disable_service() {
    if systemd_runs; then systemctl --quiet disable --now $unit || true
    elif command -v systemctl >/dev/null; then systemctl --quiet disable $unit || true; fi
}

# The files of a running program are about to be replaced. It runs again afterwards if it ran before.
pause_service() {
    if systemd_runs && systemctl --quiet is-active $unit; then
        touch /run/llama-appliance.paused
        systemctl stop $unit || true
    fi
}

resume_service() {
    if systemd_runs; then
        systemctl daemon-reload
        if [ -e /run/llama-appliance.paused ]; then
            rm -f /run/llama-appliance.paused
            systemctl start $unit || echo "the service does not start; 'journalctl -u llama-appliance' says why" >&2
        fi
    fi
}

start_service() {
    if systemd_runs; then
        systemctl daemon-reload
        systemctl start $unit || echo "the service does not start; 'journalctl -u llama-appliance' says why" >&2
    fi
}

delete_data() {
    rm -rf /var/lib/llama-appliance /var/cache/llama-appliance /etc/llama-appliance
    if getent passwd llama-appliance >/dev/null; then userdel llama-appliance || true; fi
}
