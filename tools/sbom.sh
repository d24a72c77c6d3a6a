#!/bin/sh
# Write dist/gazette_spark.cdx.json, the software bill of materials of a release: what an installation of the wheel in
# dist/ brings, with versions and licenses, as CycloneDX.
#
# PYTHON: interpreter to make the environments with; .venv's if unset.
set -eu
cd "$(dirname "$0")/.."

python=$(command -v "${PYTHON:-.venv/bin/python}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

# The tool has a separate environment, so that its packages are not listed.
"$python" -m venv --without-pip "$work/installation"
"$python" -m pip --python "$work/installation/bin/python" install --quiet dist/gazette_spark-*-py3-none-any.whl
"$python" -m venv "$work/tool"
"$work/tool/bin/pip" install --quiet cyclonedx-bom==7.5.0
"$work/tool/bin/cyclonedx-py" environment --output-reproducible \
    --output-format JSON --output-file dist/gazette_spark.cdx.json "$work/installation/bin/python"
