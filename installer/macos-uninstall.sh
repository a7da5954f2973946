#!/bin/sh
# Removes what the installer package installed, and the services made since: sudo sh uninstall.sh [--purge]
# With --purge also the models and data of the machine's service; those of users stay, they belong to them.
set -e
label=io.llama-appliance
command=/usr/local/bin/llama-appliance
if [ "$(id -u)" != 0 ]; then echo "error: this needs root: sudo sh '$0'" >&2; exit 2; fi
case "${1:-}" in '' | --purge) ;; *) echo "error: there is no option $1; --purge also deletes data" >&2; exit 2 ;; esac
if [ -e /Library/LaunchDaemons/$label.plist ]; then "$command" service uninstall ${1:+"$1"}; fi
for plist in /Users/*/Library/LaunchAgents/$label.plist; do
    [ -e "$plist" ] || continue
    launchctl bootout "gui/$(stat -f %u "$plist")/$label" 2>/dev/null || true
    rm -f "$plist"
done
rm -rf '/Applications/Llama Appliance.app' "$command"
for part in program service; do pkgutil --forget $label.$part >/dev/null 2>&1 || true; done
