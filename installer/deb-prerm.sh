case "$1" in
    remove | deconfigure) disable_service ;;
    upgrade) pause_service ;;
esac
