package cli

import (
	"bufio"
	"context"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/felix-go/felix"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// readLine reads one line, or what there is before the end. If ctx ends first,
// as by Ctrl-C, the error is unavailable (nothing was done); the read then goes
// on until the process ends.
func readLine(ctx context.Context, r io.Reader) (string, error) {
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(r).ReadString('\n') // an error is no agreement: what came before it decides
		line <- text
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", felix.Errorf(felix.Unavailable, "interrupted; nothing was changed")
	}
}
