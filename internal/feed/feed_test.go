package feed

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/record"
)

func put(index uint64, key string, n int64) *Change {
	return &Change{Index: index, Event: felix.WatchEvent{Kind: felix.WatchPut, Key: []byte(key), Int: n}}
}

// TestQueueTellsWhatItLeftOut: when the queue is full the latest change of each key
// stays, in order, and says whether older ones were left out.
func TestQueueTellsWhatItLeftOut(t *testing.T) {
	budget := &Budget{Max: felix.MaxWatchBrokerBytes}
	q := NewQueue(budget)
	q.Push(put(1, "once", 1))
	for n := range felix.MaxWatchQueueEvents {
		if !q.Push(put(uint64(n+2), "hot", int64(n))) {
			t.Fatal("two keys are too many")
		}
	}
	last := uint64(felix.MaxWatchQueueEvents + 1)
	first, _ := q.Pop()
	second, _ := q.Pop()
	if string(first.Event.Key) != "once" || first.Skipped || first.Behind != last {
		t.Errorf("the first is %+v", first)
	}
	if second.Index != last || !second.Skipped || second.Behind != 0 {
		t.Errorf("the second is %+v", second)
	}
	if _, more := q.Pop(); more || budget.UsedBytes() != 0 || budget.Skipped() != felix.MaxWatchQueueEvents-1 {
		t.Errorf("more %v, %d bytes, %d skipped", more, budget.UsedBytes(), budget.Skipped())
	}
}

// TestQueueBounds: too many keys, or no memory, empty the queue, and it says so.
func TestQueueBounds(t *testing.T) {
	budget := &Budget{Max: felix.MaxWatchBrokerBytes}
	q := NewQueue(budget)
	fitted := 0
	for n := range felix.MaxWatchQueueEvents + 1 {
		if q.Push(put(uint64(n), fmt.Sprint(n), 1)) {
			fitted++
		}
	}
	if fitted != felix.MaxWatchQueueEvents || q.Len() != 0 || budget.UsedBytes() != 0 {
		t.Errorf("%d fitted, %d are there, %d bytes", fitted, q.Len(), budget.UsedBytes())
	}
	budget.Max = 10
	if q.Push(put(1, "k", 1)) || budget.UsedBytes() != 0 {
		t.Errorf("beyond the budget, %d bytes are held", budget.UsedBytes())
	}
	budget.Max = 1 << 20
	q.Push(put(1, "k", 1))
	q.Push(&Change{Index: 2, Clear: true})
	if item, _ := q.Pop(); !item.Clear {
		t.Errorf("%+v is told before a clear", item)
	}
}

// TestRead: the writes of an entry that are wanted, with their versions.
func TestRead(t *testing.T) {
	b := record.AppendHeader(nil, record.Header{Base: 100})
	b = record.AppendPutCounter(b, []byte("a"), 7, 9, 2)
	b = record.AppendPutCounter(b, []byte("other"), 7, 0, 0)
	b = record.AppendPutValue(b, []byte("a"), []byte("v"), 0, 1)
	b = record.AppendDelete(b, record.DeleteValue, []byte("a"))
	b = record.AppendDelete(b, record.DeleteID, make([]byte, record.IDKeyBytes)) // no record that is watched
	var got []*Change
	err := Read(5, b, func(_ felix.View, key []byte) bool { return string(key) != "other" }, func(c *Change) { got = append(got, c) })
	clear(b) // what was taken is a copy
	want := []*Change{
		{Index: 5, Write: 0, Event: felix.WatchEvent{Kind: felix.WatchPut, Key: []byte("a"), Int: 7, ExpiresAtMillis: 9, Version: 102}},
		{Index: 5, Write: 2, View: felix.ViewValue, Event: felix.WatchEvent{Kind: felix.WatchPut, Key: []byte("a"), Value: []byte("v"), Version: 101}},
		{Index: 5, Write: 3, View: felix.ViewValue, Event: felix.WatchEvent{Kind: felix.WatchDelete, Key: []byte("a")}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("error %v", err)
		for _, c := range got {
			t.Logf("%+v", *c)
		}
	}
}

// TestPositionAfter: a place behind a change, while older ones of other keys may
// have been left out.
func TestPositionAfter(t *testing.T) {
	p := Position{}.After(Item{Change: put(5, "k", 1), Behind: 9})
	if p != (Position{Index: 5, Writes: 1, Behind: 9}) || !p.Told(put(5, "k", 1)) || p.Told(put(6, "k", 1)) {
		t.Errorf("%+v", p)
	}
	if p = p.After(Item{Change: put(9, "k", 1)}); p != (Position{Index: 9, Writes: 1}) {
		t.Errorf("at the end of what was left out: %+v", p)
	}
}

func FuzzToken(f *testing.F) {
	seed := Token{Cache: 7, Shards: []ShardPosition{{0, Position{Index: 5, Writes: 3}}, {255, Position{Index: 1 << 60, Behind: 1 << 61}}}}
	f.Add(seed.Append(nil))
	f.Add([]byte{tokenFormat, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		token, err := ReadToken(b)
		if err != nil {
			return
		}
		written := token.Append(nil)
		again, err := ReadToken(written)
		if err != nil || !reflect.DeepEqual(again, token) || len(written) > felix.MaxWatchTokenBytes {
			t.Errorf("%+v is read again as %+v, error %v", token, again, err)
		}
		if len(written) == len(b) && !bytes.Equal(written, b) {
			t.Errorf("%x is written as %x", b, written)
		}
	})
}
