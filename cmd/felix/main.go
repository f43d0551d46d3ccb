// Command felix runs a broker. See `felix --help`.
package main

import (
	"context"
	"os"

	"github.com/felix-go/felix/internal/daemon"
)

func main() {
	os.Exit(daemon.Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
