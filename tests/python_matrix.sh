#!/bin/sh
# Run the unit tests on later Pythons than that of .venv, each with the newest allowed releases of all packages. The
# environments are kept in .cache/python-matrix/ (delete it to start afresh): 1.5 GB each.
#
# A Python is the one on PATH, else one of pyenv's, else Debian's, unpacked beside the environments.
#
# PYTHONS: the versions; 3.12, 3.13 and 3.14 if unset.
set -eu
cd "$(dirname "$0")/.."

cache=$PWD/.cache/python-matrix
stamp=$(sed -n '/^dependencies/,/^\[project.scripts/p' pyproject.toml | cksum)

# Print the interpreter of a version.
interpreter() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c 'import venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    case $1 in
        3.13) sh tests/debian_python.sh "$1" trixie "$cache/python-$1" ;;
        3.14) sh tests/debian_python.sh "$1" sid "$cache/python-$1" ;;
        *) return 1 ;;
    esac
}

failed=
for version in ${PYTHONS:-3.12 3.13 3.14}; do
    if ! python=$(interpreter "$version"); then
        echo "Python $version is not here" >&2
        failed="$failed $version"
        continue
    fi
    env=$cache/$version
    if [ "$(cat "$env/stamp" 2>/dev/null)" != "$stamp" ]; then
        rm -rf "$env"
        "$python" -m venv --without-pip "$env"
        sh tools/install.sh "$env/bin/python" pip -e '.[spark,dev]'
        echo "$stamp" >"$env/stamp"
    fi
    "$env/bin/python" --version
    "$env/bin/python" -m pytest -q -n 2 -p no:cacheprovider tests/unit || failed="$failed $version"
done

if [ -n "$failed" ]; then
    echo "failed:$failed"
    exit 1
fi
