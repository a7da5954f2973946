case "$1" in
    configure)
        make_user
        if [ -z "$2" ]; then
            enable_service
            start_service
        else
            resume_service
        fi
        ;;
    abort-*) resume_service ;;
esac
