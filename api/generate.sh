#!/bin/sh
# Regenerates the Go code of the schema; `make generate` calls it. The plugins
# are Go tools of this module (go.mod), protoc is Debian's protobuf-compiler.
#
#   api/generate.sh [output-directory]     default: this directory
set -eu
api=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=${1:-$api}
cd "$api"
protoc \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-connect-go="$(go tool -n protoc-gen-connect-go)" \
	--proto_path=. \
	--go_out="$out" --go_opt=paths=source_relative \
	--connect-go_out="$out" --connect-go_opt=paths=source_relative \
	felix/v1/felix.proto
