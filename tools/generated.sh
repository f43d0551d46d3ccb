#!/bin/sh
# Fails where the committed code is not what the schemas generate. The line that
# names protoc's version may differ: another version writes the same code.
set -eu
cd "$(dirname "$0")/.."
if ! command -v protoc >/dev/null; then
	echo "protoc is missing (apt-get install protobuf-compiler): the generated code was not checked" >&2
	[ -z "${CI:-}" ] # in CI that is a failure
	exit
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
api/generate.sh "$fresh"
checked=0
for file in $(cd "$fresh" && find . -name '*.go'); do
	diff -u -I '^// \(	protoc  *v\|- protoc  *v\|	protoc .*v\)' "$file" "$fresh/$file" ||
		{ echo "$file is not what its schema generates: run make generate" >&2; exit 1; }
	checked=$((checked + 1))
done
[ "$checked" -gt 0 ]
