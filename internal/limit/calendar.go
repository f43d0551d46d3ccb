package limit

import (
	"sort"
	"sync/atomic"
	"time"
)

// Unit is a stretch of the calendar that a fixed window is as long as.
type Unit uint8

// The units. A window of one begins where the local clock or calendar of the
// policy's zone does.
const (
	// NoUnit is a window of Policy.PeriodMillis, aligned to the Unix epoch.
	NoUnit Unit = iota
	// Second, Minute and Hour begin where the local clock shows a whole one. An
	// hour that the clock shows twice, because it is turned back, is two windows.
	Second
	// Minute: see Second.
	Minute
	// Hour: see Second.
	Hour
	// Day begins at local midnight.
	Day
	// Week begins at local midnight of Monday (ISO 8601), or of the day that
	// Policy.AnchorDay says.
	Week
	// Month begins at local midnight of the first, or of Policy.AnchorDay: in a
	// month that is too short for it, of the last day.
	Month
	// Year begins as Month does, in January or Policy.AnchorMonth.
	Year
)

// String is the unit's name: second, minute, …, year; none for NoUnit.
func (u Unit) String() string {
	names := [...]string{"none", "second", "minute", "hour", "day", "week", "month", "year"}
	if int(u) < len(names) {
		return names[u]
	}
	return "unknown"
}

// seconds is the length of the units that the clock has, 0 for those of the
// calendar.
func (u Unit) seconds() int64 {
	switch u {
	case Second:
		return 1
	case Minute:
		return 60
	case Hour:
		return 3600
	}
	return 0
}

// window is the times from start to before end, Unix milliseconds.
type window struct{ start, end int64 }

func (w window) has(t int64) bool { return w.start <= t && t < w.end }

// calendar says in which window of a unit a moment lies.
//
// Two rules make that exact where clocks are changed. Both are about the instants
// at which a window begins; each ends where the next begins.
//
//   - Days and longer ones begin at the first instant at which the local clock
//     shows their first date or a later one. So a midnight that is skipped moves
//     to the first instant after the gap, one that is shown twice counts the first
//     time, and a day that is skipped has no window.
//   - Shorter ones begin at each instant at which the local clock begins to show
//     another second, minute or hour, and at each at which it is turned back.
type calendar struct {
	loc        *time.Location
	unit       Unit
	month, day int // of Policy, with its defaults filled in
	// newest is the window last found. All keys of a policy share it, so that
	// only the first check in a window pays for finding it. It does not change
	// any answer.
	newest atomic.Pointer[window]
}

// at is the window that now (Unix milliseconds) is in.
func (c *calendar) at(now int64) window {
	if w := c.newest.Load(); w != nil && w.has(now) {
		return *w
	}
	second := floorDiv(now, 1000)
	var w window
	if unit := c.unit.seconds(); unit != 0 {
		w = c.clockWindow(second, unit)
	} else {
		w = c.dateWindow(second)
	}
	w.start, w.end = w.start*1000, w.end*1000
	c.newest.Store(&w)
	return w
}

// span is a stretch of Unix seconds with one offset of the local clock, in
// seconds east of UTC.
type span struct {
	start, end, offset int64
}

// spanAt is the part of the hour around a second that has the same offset; the span
// before or after it may have the same one. It looks at offsets only, and takes it
// that no clock was ever changed twice in an hour: the bounds that
// time.Time.ZoneBounds tells are not exact far from a change (of 31 December of a leap year
// it says that it ends when it begins).
func (c *calendar) spanAt(second int64) span {
	const hour = 60 * 60
	start := floorDiv(second, hour) * hour
	before, after := c.offset(start), c.offset(start+hour)
	if before == after {
		return span{start, start + hour, before}
	}
	change := start + int64(sort.Search(hour, func(n int) bool { return c.offset(start+int64(n)) != before }))
	if second < change {
		return span{start, change, before}
	}
	return span{change, start + hour, after}
}

func (c *calendar) offset(second int64) int64 {
	_, offset := time.Unix(second, 0).In(c.loc).Zone()
	return int64(offset)
}

// clockWindow is the window of a second, minute or hour; times are Unix seconds.
func (c *calendar) clockWindow(second, unit int64) window {
	s := c.spanAt(second)
	shown := floorDiv(second+s.offset, unit) // the minute, say, that the clock shows
	w := window{start: shown*unit - s.offset, end: (shown+1)*unit - s.offset}
	for at := s; w.start < at.start; {
		before := c.spanAt(at.start - 1)
		if at.offset < before.offset || floorDiv(at.start-1+before.offset, unit) != shown {
			w.start = at.start
			break
		}
		w.start = shown*unit - before.offset
		at = before
	}
	for at := s; w.end > at.end; {
		after := c.spanAt(at.end)
		if after.offset < at.offset || floorDiv(at.end+after.offset, unit) != shown {
			w.end = at.end
			break
		}
		w.end = (shown+1)*unit - after.offset
		at = after
	}
	return w
}

// dateWindow is the window of a day, week, month or year; times are Unix seconds.
func (c *calendar) dateWindow(second int64) window {
	s := c.spanAt(second)
	first := c.firstDay(floorDiv(second+s.offset, secondsPerDay))
	w := window{start: c.reaches(first)}
	for {
		// Not always one round: the clock may have shown the next window's first
		// date before, and then been turned back.
		first = c.nextFirstDay(first)
		w.end = c.reaches(first)
		if w.end > second {
			return w
		}
		w.start = w.end
	}
}

const secondsPerDay = 24 * 60 * 60

// reaches is the first instant (Unix seconds) at which the local clock shows the
// day, counted from 1970-01-01, or a later one.
func (c *calendar) reaches(day int64) int64 {
	const furthestEast = 16 * 60 * 60 // more than any offset that there ever was
	midnight := day * secondsPerDay
	s := c.spanAt(midnight - furthestEast)
	for {
		if t := max(s.start, midnight-s.offset); t < s.end {
			return t
		}
		s = c.spanAt(s.end)
	}
}

// firstDay is the first day of the window that the day belongs to by its date.
func (c *calendar) firstDay(day int64) int64 {
	switch c.unit {
	case Week:
		const thursday = 4 // 1970-01-01, as Monday is 1
		return day - floorMod(day+thursday-int64(c.day), 7)
	case Month, Year:
		y, m, _ := date(day)
		if c.unit == Year {
			m = time.Month(c.month)
		}
		first := anchored(y, m, c.day)
		if first <= day {
			return first
		}
		if c.unit == Year {
			return anchored(y-1, m, c.day)
		}
		return anchored(y, m-1, c.day)
	}
	return day
}

// nextFirstDay is the first day of the window after the one that begins on first.
func (c *calendar) nextFirstDay(first int64) int64 {
	switch c.unit {
	case Week:
		return first + 7
	case Month:
		y, m, _ := date(first)
		return anchored(y, m+1, c.day)
	case Year:
		y, m, _ := date(first)
		return anchored(y+1, m, c.day)
	}
	return first + 1
}

// date is the date of a day counted from 1970-01-01.
func date(day int64) (year int, month time.Month, dayOfMonth int) {
	return time.Unix(day*secondsPerDay, 0).UTC().Date()
}

// anchored is the given day of a month, or its last one if it is shorter. The
// month may be 0 or 13: one before and after the year.
func anchored(year int, month time.Month, day int) int64 {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC)
	first := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	return first.Unix()/secondsPerDay + int64(min(day, last.Day())-1)
}
