#!/bin/sh
# Copy Gazette's module to FOLDER without what needs RocksDB's library, and print a go.mod that uses the copy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
core=$(go list -m -f '{{.Dir}}' go.gazette.dev/core)
rm -rf "$1"
mkdir -p "$1"
cp -R "$core/." "$1"
chmod -R u+w "$1"
for package in rocksdb sqlite; do
    rm -rf "$1/consumer/store-$package"
    mkdir "$1/consumer/store-$package"
    cp "$here/store_$package.go.txt" "$1/consumer/store-$package/store.go"
done
# Imported for a generator's sake only, whose modules nobody else needs.
main=$1/mainboilerplate/runconsumer/run_consumer.go
grep -v 'protoc-gen-grpc-gateway/descriptor"' "$main" > "$main.new"
mv "$main.new" "$main"
cat go.mod
printf '\nreplace go.gazette.dev/core => %s\n' "$1"
