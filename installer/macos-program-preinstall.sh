#!/bin/sh
# The files of a running service are about to be replaced. It is loaded again afterwards if it was loaded before.
set -e
label=io.llama-appliance
if launchctl print system/$label >/dev/null 2>&1; then
    touch /private/var/run/llama-appliance.paused
    launchctl bootout system/$label || true
fi
