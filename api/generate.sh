#!/bin/sh
# Regenerates the Go code of the schemas: the API's, and what brokers say to each
# other. `make generate` calls it. The plugins are Go tools of this module
# (go.mod), protoc is Debian's protobuf-compiler.
#
#   api/generate.sh [output-directory]     default: the repository
set -eu
cd "$(dirname -- "$0")/.."
out=${1:-.}

# generate DIRECTORY SCHEMA: both are below out, too.
generate() {
	mkdir -p "$out/$1"
	protoc \
		--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
		--plugin=protoc-gen-connect-go="$(go tool -n protoc-gen-connect-go)" \
		--proto_path="$1" \
		--go_out="$out/$1" --go_opt=paths=source_relative \
		--connect-go_out="$out/$1" --connect-go_opt=paths=source_relative \
		"$2"
}

generate api felix/v1/felix.proto
generate api felix/v1/batch.proto
generate internal/peer peerv1/peer.proto
