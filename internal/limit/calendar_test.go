package limit

import (
	"testing"
	"time"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := new(Zones).Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// instant reads a time with its offset.
func instant(t testing.TB, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

func windowOf(t testing.TB, p Policy, now int64) window {
	p.Algorithm, p.Limit = FixedWindow, 1
	return made(t, p).windowAt(now)
}

// Windows where clocks or dates are odd. Each is found from its first and its last
// millisecond, and from where the clock may have been turned back to before its start.
func TestCalendarWindows(t *testing.T) {
	for _, c := range []struct {
		name       string
		p          Policy
		start, end string
	}{
		{"a day of 25 hours", Policy{Unit: Day, Zone: "Europe/Berlin"}, "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"a day of 23 hours", Policy{Unit: Day, Zone: "Europe/Berlin"}, "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"an hour that is repeated, first", Policy{Unit: Hour, Zone: "Europe/Berlin"}, "2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+02:00"},
		{"an hour that is repeated, second", Policy{Unit: Hour, Zone: "Europe/Berlin"}, "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		{"the hour before a gap", Policy{Unit: Hour, Zone: "Europe/Berlin"}, "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		{"a week of 169 hours, from Monday", Policy{Unit: Week, Zone: "Europe/Berlin"}, "2026-10-19T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"a week from Sunday", Policy{Unit: Week, AnchorDay: 7}, "2026-10-25T00:00:00Z", "2026-11-01T00:00:00Z"},
		{"the week of the epoch", Policy{Unit: Week}, "1969-12-29T00:00:00Z", "1970-01-05T00:00:00Z"},
		{"a month", Policy{Unit: Month, Zone: "Europe/Berlin"}, "2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00"},
		{"the 31st in January", Policy{Unit: Month, AnchorDay: 31}, "2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"},
		{"the 31st in February", Policy{Unit: Month, AnchorDay: 31}, "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"the 31st in February of a leap year", Policy{Unit: Month, AnchorDay: 31}, "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"},
		{"the 31st in April", Policy{Unit: Month, AnchorDay: 31}, "2026-04-30T00:00:00Z", "2026-05-31T00:00:00Z"},
		{"the 30th over a new year", Policy{Unit: Month, AnchorDay: 30}, "2025-12-30T00:00:00Z", "2026-01-30T00:00:00Z"},
		{"a year", Policy{Unit: Year}, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"a tax year", Policy{Unit: Year, AnchorMonth: 4, AnchorDay: 6, Zone: "Europe/London"}, "2026-04-06T00:00:00+01:00", "2027-04-06T00:00:00+01:00"},
		{"29 February, no leap year", Policy{Unit: Year, AnchorMonth: 2, AnchorDay: 29}, "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"29 February, leap year", Policy{Unit: Year, AnchorMonth: 2, AnchorDay: 29}, "2028-02-29T00:00:00Z", "2029-02-28T00:00:00Z"},
		{"2100 is no leap year", Policy{Unit: Month, AnchorDay: 29}, "2100-02-28T00:00:00Z", "2100-03-29T00:00:00Z"},
		{"midnight is skipped: Sao Paulo", Policy{Unit: Day, Zone: "America/Sao_Paulo"}, "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"midnight is skipped: Beirut", Policy{Unit: Day, Zone: "Asia/Beirut"}, "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"},
		{"midnight is skipped: Cairo", Policy{Unit: Day, Zone: "Africa/Cairo"}, "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"},
		{"the last hour is repeated: Sao Paulo", Policy{Unit: Day, Zone: "America/Sao_Paulo"}, "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00"},
		{"the last hour is repeated: Cairo", Policy{Unit: Day, Zone: "Africa/Cairo"}, "2026-10-29T00:00:00+03:00", "2026-10-30T00:00:00+02:00"},
		{"the first hour is repeated: Havana", Policy{Unit: Day, Zone: "America/Havana"}, "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"turned back after midnight: St John's", Policy{Unit: Day, Zone: "America/St_Johns"}, "2009-11-01T00:00:00-02:30", "2009-11-02T00:00:00-03:30"},
		{"a month whose midnight is skipped: Asuncion", Policy{Unit: Month, Zone: "America/Asuncion"}, "2017-10-01T01:00:00-03:00", "2017-11-01T00:00:00-03:00"},
		{"a day before one that is skipped: Apia", Policy{Unit: Day, Zone: "Pacific/Apia"}, "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"half an hour is skipped: Lord Howe", Policy{Unit: Hour, Zone: "Australia/Lord_Howe"}, "2026-10-04T02:30:00+11:00", "2026-10-04T03:00:00+11:00"},
		{"before half an hour that is repeated: Lord Howe", Policy{Unit: Hour, Zone: "Australia/Lord_Howe"}, "2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+11:00"},
		{"half an hour that is repeated: Lord Howe", Policy{Unit: Hour, Zone: "Australia/Lord_Howe"}, "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"},
		{"a day of 24.5 hours: Lord Howe", Policy{Unit: Day, Zone: "Australia/Lord_Howe"}, "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30"},
		{"an hour at 45 minutes: Kathmandu", Policy{Unit: Hour, Zone: "Asia/Kathmandu"}, "2026-06-01T10:00:00+05:45", "2026-06-01T11:00:00+05:45"},
		{"a minute", Policy{Unit: Minute, Zone: "Asia/Kathmandu"}, "2026-06-01T10:07:00+05:45", "2026-06-01T10:08:00+05:45"},
		{"a second", Policy{Unit: Second, Zone: "Africa/Cairo"}, "2026-10-29T23:59:59+03:00", "2026-10-29T23:00:00+02:00"},
		{"beyond the rules that are written out", Policy{Unit: Day, Zone: "Europe/Berlin"}, "2190-10-31T00:00:00+02:00", "2190-11-01T00:00:00+01:00"},
	} {
		want := window{instant(t, c.start), instant(t, c.end)}
		for _, now := range []int64{want.start, want.start + 1, want.start + min(30*aMinute, (want.end-want.start)/2), want.end - 1} {
			if got := windowOf(t, c.p, now); got != want {
				t.Errorf("%s: at %s: from %s to %s, want %s to %s", c.name, show(now), show(got.start), show(got.end), c.start, c.end)
			}
		}
		if got := windowOf(t, c.p, want.end); got.start != want.end {
			t.Errorf("%s: at its end: from %s", c.name, show(got.start))
		}
		if got := windowOf(t, c.p, want.start-1); got.end != want.start {
			t.Errorf("%s: before it: to %s", c.name, show(got.end))
		}
	}
}

func show(millis int64) string { return time.UnixMilli(millis).UTC().Format(time.RFC3339Nano) }

// A day in Berlin on 2026-10-25 has 90,000 s, and is told so.
func TestResetOfTheLongDay(t *testing.T) {
	l := made(t, Policy{Algorithm: FixedWindow, Limit: 1, Unit: Day, Zone: "Europe/Berlin"})
	d, _ := l.Check(State{}, 1, instant(t, "2026-10-25T00:00:00+02:00"))
	if d.ResetAfterMillis != 90_000_000 {
		t.Errorf("%+v, want a reset after 90,000 s", d)
	}
}

// Hours and days around many changes of clocks, beside ones that are found by looking
// at the clock every minute.
func TestCalendarBesideTheClock(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "Australia/Lord_Howe",
		"America/St_Johns", "America/Havana", "Pacific/Apia", "America/Caracas", "Asia/Pyongyang", "Antarctica/Troll"} {
		loc := zone(t, name)
		changes := 0
		const step = 12 * time.Hour
		for at := time.Date(2006, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2029; at = at.Add(step) {
			_, before := at.In(loc).Zone()
			if _, after := at.Add(step).In(loc).Zone(); before == after {
				continue
			}
			if changes++; changes%5 == 1 || at.Year() == 2026 {
				for _, unit := range []Unit{Hour, Day} {
					watchClock(t, loc, unit, at.Add(-27*time.Hour), at.Add(step+27*time.Hour))
				}
			}
		}
		if changes == 0 {
			t.Errorf("%s: its clock was never changed", name)
		}
	}
}

// watchClock notes what the clock shows each minute, and in which window that is.
func watchClock(t *testing.T, loc *time.Location, unit Unit, from, to time.Time) {
	c := &calendar{loc: loc, unit: unit, month: 1, day: 1}
	name := func(local time.Time) string {
		if unit == Hour {
			return local.Format("2006-01-02 15")
		}
		return local.Format("2006-01-02")
	}
	var start, highest time.Time // the window's start; the highest that the clock has shown
	for at := from.Truncate(time.Minute); at.Before(to); at = at.Add(time.Minute) {
		// What the clock shows, as if it were UTC: so it can be compared.
		_, offset := at.In(loc).Zone()
		_, before := at.Add(-time.Minute).In(loc).Zone()
		shown := at.Add(time.Duration(offset) * time.Second).UTC()
		was := at.Add(time.Duration(before)*time.Second - time.Minute).UTC()
		var begins bool
		if unit == Hour {
			begins = name(shown) != name(was) || offset < before
		} else if shown.After(highest) {
			begins = !highest.IsZero() && name(shown) != name(highest)
			highest = shown
		}
		if begins {
			if w := c.at(at.UnixMilli() - 1); w.end != at.UnixMilli() {
				t.Fatalf("%s in %s: the window before %s ends %s", unit, loc, at.In(loc), show(w.end))
			}
			start = at
		}
		if w := c.at(at.UnixMilli()); !start.IsZero() && w.start != start.UnixMilli() || !w.has(at.UnixMilli()) {
			t.Fatalf("%s in %s: at %s from %s, want from %s", unit, loc, at.In(loc), show(w.start), start)
		}
	}
}

// Windows of months and years, beside ones found by counting days.
func TestDatesBesideCounting(t *testing.T) {
	for _, p := range []Policy{
		{Unit: Month}, {Unit: Month, AnchorDay: 28}, {Unit: Month, AnchorDay: 29}, {Unit: Month, AnchorDay: 30}, {Unit: Month, AnchorDay: 31},
		{Unit: Year}, {Unit: Year, AnchorMonth: 2, AnchorDay: 29}, {Unit: Year, AnchorMonth: 12, AnchorDay: 31},
		{Unit: Week}, {Unit: Week, AnchorDay: 3},
	} {
		p.Algorithm, p.Zone = FixedWindow, "Africa/Lagos" // an hour from UTC, never changed
		l := made(t, p)
		begins := func(day time.Time) bool {
			last := day.AddDate(0, 1, -day.Day()).Day()
			anchor := min(max(p.AnchorDay, 1), last)
			switch p.Unit {
			case Week:
				return int(day.Weekday()) == max(p.AnchorDay, 1)%7
			case Year:
				return day.Day() == anchor && day.Month() == time.Month(max(p.AnchorMonth, 1))
			}
			return day.Day() == anchor
		}
		var start int64
		for day := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < 2110; day = day.AddDate(0, 0, 1) {
			midnight := day.Add(-time.Hour).UnixMilli()
			if begins(day) {
				if start != 0 && l.windowAt(midnight-1) != (window{start, midnight}) {
					t.Fatalf("%+v: before %s: %+v", p, day, l.windowAt(midnight-1))
				}
				start = midnight
			}
			if got := l.windowAt(midnight + 1); start != 0 && got.start != start {
				t.Fatalf("%+v: on %s: from %s, want %s", p, day, show(got.start), show(start))
			}
		}
	}
}

// The earliest and the latest times have windows.
func TestCalendarAtTheEnds(t *testing.T) {
	for _, name := range []string{"", "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Pago_Pago"} {
		for unit := Second; unit <= Year; unit++ {
			for _, now := range []int64{0, 1, 1 << 50, 1<<61 - 1, 1 << 61} {
				if w := windowOf(t, Policy{Unit: unit, Zone: name}, now); !w.has(now) || w.end-w.start > 366*24*3600*1000 {
					t.Errorf("%s in %q at %d: %+v", unit, name, now, w)
				}
			}
		}
	}
}
