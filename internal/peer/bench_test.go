package peer

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// BenchmarkForward is an add that is forwarded over loopback TCP to a peer which
// answers at once, with so many callers at a time.
func BenchmarkForward(b *testing.B) {
	for _, callers := range []int{1, 50, 800} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchmarkForward(b, callers) })
	}
}

func benchmarkForward(b *testing.B, callers int) {
	here, there := newBroker(b, 1, nil), newBroker(b, 2, nil)
	there.forward = func(from *Link, calls []*Call) {
		for _, c := range calls {
			c.Batch.Replies[0] = felix.Reply{Applied: true, Int: c.Batch.Ops[0].Int, Version: 1 << 41}
		}
		from.Answer(calls...)
	}
	here.net.SetPeers([]Peer{there.peer()})
	here.awaitLink(2)
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for w := range callers {
		all.Go(func() {
			done := make(chan struct{}, 1)
			c := addCall(w, 0, func(*Call) { done <- struct{}{} })
			for range (b.N + callers - 1) / callers {
				c.Deadline = here.net.o.Mono() + time.Minute
				here.net.Forward(2, c)
				<-done
			}
		})
	}
	all.Wait()
}
