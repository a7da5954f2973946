case "$1" in
    configure)
        make_user
        close_settings
        if [ -z "$2" ]; then
            make_key
            enable_service
            start_service
            tell_key
        else
            resume_service
        fi
        ;;
    abort-*) resume_service ;;
esac
