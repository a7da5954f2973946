case "$1" in
    remove) if [ -d /var/lib/llama-appliance ]; then touch /var/lib/llama-appliance/.removed; fi ;;
    abort-upgrade) resume_service ;;
    purge)
        delete_data
        if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper purge $unit >/dev/null || true; fi
        ;;
esac
if systemd_runs; then systemctl daemon-reload; fi
