package daemon

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/felix-go/felix/internal/peer"
)

func TestLastWords(t *testing.T) {
	for _, v := range []struct {
		err  error
		want string
	}{
		{errors.New("a\nb"), "a; b; the process ends here, so nothing doubtful is acknowledged"},
		{fmt.Errorf("the log: %w", syscall.ENOSPC), "the log: no space left on device; make room and start again: everything that was acknowledged is there; the process ends here, so nothing doubtful is acknowledged"},
		{fmt.Errorf("node 2: %w", &peer.Refusal{Reason: peer.ReasonRemoved, Message: "it was removed"}), "node 2: it was removed"},
	} {
		if got := lastWords(v.err); got != v.want {
			t.Errorf("%q, want %q", got, v.want)
		}
	}
}
