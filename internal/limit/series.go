package limit

import "encoding/binary"

// A series is amounts at times, in order of time and each time once, as bytes:
//
//	uvarint time (of the first) or time since the one before (at least 1) | uvarint amount (at least 1)
//
// A state holds one encoded, so that reading it and leaving it costs no memory.
type series struct {
	rest []byte
	time int64 // of the amount last read
}

// next reads the next amount; ok is false at the end and where the bytes are not a series.
func (r *series) next() (time, amount int64, ok bool) {
	step, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return 0, 0, false
	}
	value, m := binary.Uvarint(r.rest[n:])
	if m <= 0 {
		return 0, 0, false
	}
	r.rest = r.rest[n+m:]
	r.time += int64(step)
	return r.time, int64(value), true
}

// seriesBuilder makes a series. Times come in order; amounts at the same time
// become one.
type seriesBuilder struct {
	bytes        []byte
	written      int64 // time of the last amount in bytes
	time, amount int64 // not in bytes yet
	total        int64
}

// newSeries has room for one more amount than the bytes of the series before.
func newSeries(before []byte) seriesBuilder {
	return seriesBuilder{bytes: make([]byte, 0, len(before)+2*binary.MaxVarintLen64)}
}

func (w *seriesBuilder) add(time, amount int64) {
	if amount == 0 {
		return
	}
	w.total += amount
	if w.amount > 0 && w.time == time {
		w.amount += amount
		return
	}
	w.flush()
	w.time, w.amount = time, amount
}

func (w *seriesBuilder) flush() {
	if w.amount == 0 {
		return
	}
	w.bytes = binary.AppendUvarint(w.bytes, uint64(w.time-w.written))
	w.bytes = binary.AppendUvarint(w.bytes, uint64(w.amount))
	w.written, w.amount = w.time, 0
}
