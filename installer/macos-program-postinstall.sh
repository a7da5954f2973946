#!/bin/sh
set -e
label=io.llama-appliance
if [ -e /private/var/run/llama-appliance.paused ]; then
    rm -f /private/var/run/llama-appliance.paused
    /usr/local/bin/llama-appliance service start
fi
# The services of users who are logged in run on from the replaced files: they start again from the new ones.
for user in $(ps -axo uid=,comm= | awk '/Llama Appliance[.]app.*llama-appliance$/ { print $1 }' | sort -u); do
    launchctl kickstart -k "gui/$user/$label" 2>/dev/null || true
done
