package felix_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// fakeCache lets a test decide when operations finish.
type fakeCache struct {
	felix.Cache
	submit func(b *felix.Batch)
}

func (c fakeCache) Submit(b *felix.Batch) { c.submit(b) }

func ops(kinds ...felix.Kind) []felix.Op {
	var all []felix.Op
	for i, kind := range kinds {
		all = append(all, felix.Op{Kind: kind, Key: []byte{byte(i)}})
	}
	return all
}

// TestDo: parts finish in any order, from any goroutine; Do returns when all
// have.
func TestDo(t *testing.T) {
	cache := fakeCache{submit: func(b *felix.Batch) {
		for _, part := range [][]int32{{3, 1}, {0}, {2, 4}} {
			go func() {
				for _, i := range part {
					b.Replies[i].Int = int64(b.Ops[i].Key[0]) * 10
				}
				b.Done.OpsDone(b, part)
			}()
		}
	}}
	for range 100 {
		replies, err := felix.Do(context.Background(), cache, ops(felix.Add, felix.Add, felix.Get, felix.Add, felix.Get)...)
		if err != nil || len(replies) != 5 {
			t.Fatalf("%d replies, error %v", len(replies), err)
		}
		for i, r := range replies {
			if r.Int != int64(i)*10 {
				t.Errorf("reply %d is %d", i, r.Int)
			}
		}
	}
}

// TestDoInline: a cache may finish everything inside Submit.
func TestDoInline(t *testing.T) {
	cache := fakeCache{submit: func(b *felix.Batch) {
		b.Replies[0].Int = 5
		b.Done.OpsDone(b, []int32{0})
	}}
	replies, err := felix.Do(context.Background(), cache, ops(felix.Get)...)
	if err != nil || len(replies) != 1 || replies[0].Int != 5 {
		t.Errorf("%v, error %v", replies, err)
	}
}

func TestDoNothing(t *testing.T) {
	cache := fakeCache{submit: func(*felix.Batch) { t.Error("a batch of nothing was submitted") }}
	if replies, err := felix.Do(context.Background(), cache); err != nil || len(replies) != 0 {
		t.Errorf("%v, error %v", replies, err)
	}
}

func TestDoDeadline(t *testing.T) {
	deadline := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var got []time.Time
	cache := fakeCache{submit: func(b *felix.Batch) {
		got = append(got, b.Deadline)
		b.Done.OpsDone(b, []int32{0})
	}}
	for _, ctx := range []context.Context{ctx, context.Background()} {
		if _, err := felix.Do(ctx, cache, ops(felix.Get)...); err != nil {
			t.Fatal(err)
		}
	}
	if !got[0].Equal(deadline) || !got[1].IsZero() {
		t.Errorf("deadlines %v, want %v and none", got, deadline)
	}
}

// TestDoGivesUp: when the context ends first, the error says whether anything
// may have been applied; what finishes later disturbs nobody.
func TestDoGivesUp(t *testing.T) {
	for _, c := range []struct {
		ops  []felix.Op
		want felix.Code
	}{
		{ops(felix.Get, felix.Get), felix.Unavailable},
		{ops(felix.Get, felix.Add), felix.OutcomeUnknown},
		{ops(felix.Set, felix.Get), felix.OutcomeUnknown},
		{ops(felix.Delete), felix.OutcomeUnknown},
		{ops(felix.Expire), felix.OutcomeUnknown},
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		var late sync.WaitGroup
		release := make(chan struct{})
		cache := fakeCache{submit: func(b *felix.Batch) {
			late.Go(func() {
				<-release
				for i := range b.Ops {
					b.Replies[i].Int = 1
					b.Done.OpsDone(b, []int32{int32(i)})
				}
			})
			cancel(errors.New("the user went home"))
		}}
		replies, err := felix.Do(ctx, cache, c.ops...)
		e := felix.AsError(err)
		if replies != nil || e == nil || e.Code != c.want || e.Message != "the request ended before its answer came: the user went home" {
			t.Errorf("%+v: %v, error %v, want %v", c.ops, replies, err, c.want)
		}
		close(release)
		late.Wait()
	}
}

// TestDoPrefersTheAnswer: an answer that has come is told, also when the context
// has ended.
func TestDoPrefersTheAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cache := fakeCache{submit: func(b *felix.Batch) {
		b.Replies[0].Int = 7
		b.Done.OpsDone(b, []int32{0})
	}}
	for range 100 {
		replies, err := felix.Do(ctx, cache, ops(felix.Add)...)
		if err != nil || replies[0].Int != 7 {
			t.Fatalf("%v, error %v: the add was done, and its answer was there", replies, err)
		}
	}
}
