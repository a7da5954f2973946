case "$1" in
    remove | deconfigure) stop_service ;;
    upgrade) pause_service ;;
esac
