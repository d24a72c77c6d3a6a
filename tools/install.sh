#!/bin/sh
# Install packages into the environment of an interpreter: sh tools/install.sh .venv/bin/python REQUIREMENT…
#
# uv does in 25 seconds what takes pip 100. It does not read pip's configuration, though, so pip takes over where uv
# cannot be had or reaches no index. uv keeps no cache, which would take 2 GB for PySpark alone.
set -eu
cd "$(dirname "$0")/.."
python=$1
uv=.venv/bin/uv
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
# PySpark comes as source, which is packed into a wheel and unpacked again. Its jars do not shrink by that.
export DIST_EXTRA_CONFIG="$PWD/tools/uncompressed-wheels.cfg"

# Without editable_mode=compat, PySpark would not find pyspark_gazette: it lists the directories of sys.path.
if { [ -x $uv ] || .venv/bin/python -m pip install --quiet uv==0.13.8; } &&
    $uv pip install --quiet --no-cache --python "$python" --config-setting editable_mode=compat "$@"; then
    exit 0
fi
echo "uv could not install the packages, so pip does; that takes some minutes" >&2
exec .venv/bin/python -m pip --python "$python" install --quiet --config-settings editable_mode=compat "$@"
