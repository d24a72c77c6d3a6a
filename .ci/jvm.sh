#!/bin/sh
# Print the home of a Java for Spark 4 (17 or 21). `--install` installs one if it is allowed to.
#
# Order of the search: JAVA_HOME, the java on PATH, Debian's directories (under JVM_ROOT in tests).
# Spark uses JAVA_HOME first, so callers export the printed home.
set -eu
jvm_root="${JVM_ROOT:-/usr/lib/jvm}"

major_of() {
    # 'openjdk version "17.0.15" 2025-04-15' -> 17, 'java version "1.8.0_202"' -> 1
    "$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1
}

suits() {
    [ -x "$1/bin/java" ] || return 1
    case "$(major_of "$1")" in 17 | 21) return 0 ;; *) return 1 ;; esac
}

home_of_path_java() {
    on_path="$(command -v java)" || return 1
    dirname "$(dirname "$(readlink -f "$on_path")")"
}

find_home() {
    for home in "${JAVA_HOME:-}" "$(home_of_path_java || true)" "$jvm_root"/java-17-* "$jvm_root"/java-21-*; do
        if [ -n "$home" ] && suits "$home"; then
            printf '%s\n' "$home"
            return 0
        fi
    done
    return 1
}

install_debian() {
    # The caller captures stdout, so apt-get writes to stderr.
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    apt-get update >&2 && {
        apt-get install -y openjdk-17-jre-headless >&2 || apt-get install -y openjdk-21-jre-headless >&2
    }
}

find_home && exit 0
if [ "${1:-}" = --install ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Java 17 or 21 found; installing Debian's openjdk-17-jre-headless" >&2
    install_debian || echo "apt-get could not install it" >&2
    find_home && exit 0
fi
echo "Spark needs Java 17 or 21: install openjdk-17-jre-headless (or your system's JDK 17) and try again." >&2
exit 1
