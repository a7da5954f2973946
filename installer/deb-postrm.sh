case "$1" in
    remove) if [ -d "$state" ]; then as_service touch "$state/.removed" || true; fi ;;
    abort-upgrade) resume_service ;;
    purge)
        delete_data
        if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper purge $unit >/dev/null || true; fi
        ;;
esac
if systemd_runs; then systemctl daemon-reload; fi
