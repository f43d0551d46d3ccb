// Command felixctl works with the caches and counters of Felix brokers. See
// docs/felixctl.md.
package main

import (
	"os"

	"github.com/felix-go/felix/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
