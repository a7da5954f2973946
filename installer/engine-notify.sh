# A service that runs looks at its engines again.
if [ -d /run/systemd/system ] && systemctl --quiet is-active llama-appliance.service; then
    /usr/bin/llama-appliance engines probe --system >/dev/null 2>&1 || true
fi
