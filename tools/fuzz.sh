#!/bin/sh
# Runs every fuzz target for a while: tools/fuzz.sh 10s
set -eu
time=${1:-10s}
cd "$(dirname "$0")/.."
ran=0
for file in $(grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort); do
	package=$(dirname "$file")
	for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9]+)\(.*/\1/p' "$file"); do
		echo "== $package $target, $time"
		go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
		ran=$((ran + 1))
	done
done
[ "$ran" -gt 0 ] || { echo "no fuzz target was found" >&2; exit 1; }
echo "== $ran fuzz targets passed"
