#!/bin/sh
# Print the path of a Chromium for the status page's test. `--install` installs Debian's if it is allowed to.
set -eu

find_browser() {
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
        if [ -n "$name" ] && found="$(command -v "$name")"; then
            printf '%s\n' "$found"
            return 0
        fi
    done
    return 1
}

find_browser && exit 0
if [ "${1:-}" = --install ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Chromium found; installing Debian's" >&2
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    # The caller captures stdout, so apt-get writes to stderr.
    { apt-get update >&2 && apt-get install -y --no-install-recommends chromium >&2; } || true
    find_browser && exit 0
fi
echo "The status page is tested in Chromium: install it (Debian: apt-get install chromium) and try again." >&2
exit 1
