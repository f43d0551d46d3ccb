#!/bin/sh
# Runs every fuzz target for a while: tools/fuzz.sh 10s
set -eu
time=${1:-10s}
cd "$(dirname "$0")/.."
ran=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# fuzz runs one target. Go may report the end of the time as a failure ("context
# deadline exceeded", without an input that fails): then it is run once more.
fuzz() {
	go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$time" >"$log" 2>&1 && tail -n 1 "$log" && return
	cat "$log"
	grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input' "$log" &&
		go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$time"
}
for file in $(grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort); do
	package=$(dirname "$file")
	for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9]+)\(.*/\1/p' "$file"); do
		echo "== $package $target, $time"
		fuzz "$package" "$target"
		ran=$((ran + 1))
	done
done
[ "$ran" -gt 0 ] || { echo "no fuzz target was found" >&2; exit 1; }
echo "== $ran fuzz targets passed"
