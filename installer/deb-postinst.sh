removed=$state/.removed
case "$1" in
    configure)
        make_user
        make_models
        close_settings
        if [ -z "$2" ]; then make_key; fi
        enable_service
        if systemd_runs; then systemctl daemon-reload; fi
        if [ -z "$2" ] || [ -e $removed ]; then
            rm -f $removed
            start_if_enabled
            tell_next
        else
            resume_service
        fi
        ;;
    abort-*) resume_service ;;
esac
