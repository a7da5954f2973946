if systemd_runs; then systemctl daemon-reload; fi
case "$1" in
    abort-upgrade) resume_service ;;
    purge) delete_data ;;
esac
