package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// worker is one connection.
type worker struct {
	g      *generator
	number int
	conn   net.Conn
	in     *bufio.Reader
	keys   *chooser
	tally  *tally
	out    []byte
}

func newWorker(g *generator, number int, conn net.Conn) *worker {
	return &worker{g: g, number: number, conn: conn, in: bufio.NewReaderSize(conn, 32<<10),
		keys: newChooser(&g.Config, number), tally: g.tallies[number%len(g.tallies)]}
}

// closedLoop sends a pipeline, waits for all its answers, and sends the next. The
// time of each counts from when the pipeline was sent.
func (w *worker) closedLoop(ctx context.Context) error {
	took := make([]time.Duration, 0, w.g.Depth)
	for ctx.Err() == nil {
		w.out = w.out[:0]
		for range w.g.Depth {
			w.out = w.keys.appendNext(w.out)
		}
		sent := time.Now()
		if err := send(w.conn, w.out); err != nil {
			return w.ended(ctx, err)
		}
		took = took[:0]
		for len(took) < w.g.Depth {
			refusal, err := readReply(w.in)
			if err != nil {
				w.record(took)
				return w.ended(ctx, err)
			}
			took = append(took, time.Since(sent))
			if refusal != nil {
				w.refused(refusal)
			}
		}
		w.record(took)
	}
	return nil
}

// openLoop sends each command when it is due, or, if the connection has Depth of
// them under way, as soon as one is answered; its time counts from when it was
// due.
func (w *worker) openLoop(ctx context.Context) error {
	due := make(chan time.Time, w.g.Depth) // of the commands under way, in order
	sendErr := make(chan error, 1)
	go func() {
		defer close(due)
		sendErr <- w.sendWhenDue(ctx, due)
	}()
	var took []time.Duration
	var err error
	for at := range due {
		if err != nil {
			continue // what is under way gets no answer
		}
		var refusal []byte
		if refusal, err = readReply(w.in); err != nil {
			w.conn.Close() // ends the sender
			continue
		}
		took = append(took, time.Since(at))
		if refusal != nil {
			w.refused(refusal)
		}
		if len(due) == 0 || len(took) >= 256 {
			w.record(took)
			took = took[:0]
		}
	}
	w.record(took)
	if err == nil {
		err = <-sendErr
	}
	if err != nil {
		err = w.ended(ctx, err)
	}
	w.countUnanswered(err)
	return err
}

// sendWhenDue sends the connection's commands. Those of different connections
// are due in turn.
func (w *worker) sendWhenDue(ctx context.Context, due chan<- time.Time) error {
	step := time.Duration(float64(time.Second) * float64(w.g.Connections) / w.g.Rate)
	at := w.g.began.Add(step * time.Duration(w.number) / time.Duration(w.g.Connections))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(at))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		w.out = w.out[:0]
		for now := time.Now(); !at.After(now); at = at.Add(step) {
			select {
			case due <- at:
				w.out = w.keys.appendNext(w.out)
				continue
			default:
			}
			// Depth commands are under way: those of them that wait here go first.
			if err := send(w.conn, w.out); err != nil {
				return err
			}
			w.out = w.out[:0]
			select {
			case <-ctx.Done():
				return nil
			case due <- at:
				w.out = w.keys.appendNext(w.out)
			}
		}
		if err := send(w.conn, w.out); err != nil {
			return err
		}
	}
}

// countUnanswered notes the commands that were due and have no answer.
func (w *worker) countUnanswered(err error) {
	if err != nil {
		return
	}
	share := w.g.Rate / float64(w.g.Connections)
	due := int64(min(time.Since(w.g.began), w.g.Duration).Seconds() * share)
	w.tally.mu.Lock()
	w.tally.result.Unanswered += max(0, due-w.keys.answered)
	w.tally.mu.Unlock()
}

// ended is why a connection ended: nil if the time was up.
func (w *worker) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed)) {
		return nil
	}
	return fmt.Errorf("connection %d of %d ended: %w", w.number+1, w.g.Connections, err)
}

func (w *worker) record(took []time.Duration) {
	if len(took) == 0 {
		return
	}
	w.keys.answered += int64(len(took))
	w.tally.mu.Lock()
	w.tally.result.Operations += int64(len(took))
	for _, d := range took {
		// An error would say that the value is too large: it is cut off.
		_ = w.tally.latency.RecordValue(max(1, min(d, MaxLatency).Microseconds()))
	}
	w.tally.mu.Unlock()
	w.g.progress.operations.Add(int64(len(took)))
}

func (w *worker) refused(text []byte) {
	w.tally.mu.Lock()
	if w.tally.result.Errors++; w.tally.result.FirstError == "" {
		w.tally.result.FirstError = string(text)
	}
	w.tally.mu.Unlock()
}
