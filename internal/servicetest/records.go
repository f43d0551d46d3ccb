package servicetest

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

// far is an expiry that no test lives to see: about the year 2527.
const far = 17_600_000_000_000

func testCounters(t *testing.T, e *env) {
	script(t, e, "an add answers with the sum", []step{
		{get("k"), none},
		{add("k", 5), sum(5)},
		{add("k", -7), sum(-2)},
		{add("k", 0), sum(-2)},
		{get("k"), counter(-2)},
		{add("other", 1), sum(1)},
		{get("k"), counter(-2)},
	})
	script(t, e, "a delta of 0 creates", []step{
		{add("k", 0), sum(0)},
		{get("k"), counter(0)},
	})
	script(t, e, "an overflow changes nothing", []step{
		{add("k", math.MaxInt64), sum(math.MaxInt64)},
		{add("k", 1), fails(felix.ErrOverflow)},
		{add("k", math.MaxInt64), fails(felix.ErrOverflow)},
		{get("k"), counter(math.MaxInt64)},
		{add("k", 0), sum(math.MaxInt64)},
		{add("k", math.MinInt64), sum(-1)},
		{add("k", math.MinInt64), fails(felix.ErrOverflow)},
		{add("k", math.MinInt64+1), sum(math.MinInt64)},
		{add("k", -1), fails(felix.ErrOverflow)},
		{get("k"), counter(math.MinInt64)},
		{add("k", math.MaxInt64), sum(-1)},
		{add("n", math.MinInt64), sum(math.MinInt64)},
	})
	script(t, e, "a refused add does not touch the expiry", []step{
		{add("k", math.MaxInt64, at(far)), expiring(sum(math.MaxInt64), far)},
		{add("k", 1, at(far+1)), fails(felix.ErrOverflow)},
		{add("k", 1, clearTTL), fails(felix.ErrOverflow)},
		{get("k"), expiring(counter(math.MaxInt64), far)},
	})
	script(t, e, "a counter and a value with the same key are unrelated", []step{
		{add("k", 3), sum(3)},
		{get("k", inValues), none},
		{set("k", "abc", inValues), did},
		{get("k"), counter(3)},
		{get("k", inValues), value("abc")},
		{set("k", "7", inValues), did},
		{get("k", inValues), value("7")},
		{add("k", 1), sum(4)},
		{expire("k", at(far), inValues), did},
		{get("k"), counter(4)},
		{del("k", inValues), did},
		{get("k", inValues), none},
		{get("k"), counter(4)},
		{set("k", "x", inValues), did},
		{del("k"), did},
		{get("k"), none},
		{get("k", inValues), value("x")},
	})
}

func testRecords(t *testing.T, e *env) {
	script(t, e, "set and delete a counter", []step{
		{setInt("k", 10), did},
		{get("k"), counter(10)},
		{add("k", 1), sum(11)},
		{setInt("k", -4, old), applied(counter(11))},
		{setInt("k", 0), did},
		{get("k"), counter(0)},
		{del("k", old), applied(counter(0))},
		{del("k"), none},
		{del("k", old), none},
		{get("k"), none},
		{setInt("k", math.MinInt64, old), did},
		{get("k"), counter(math.MinInt64)},
	})
	script(t, e, "set and delete a value", []step{
		{set("k", "one", inValues), did},
		{set("k", "", inValues, old), applied(value("one"))},
		{get("k", inValues), value("")},
		{set("k", "\x00\xff\r\n", inValues), did},
		{get("k", inValues), value("\x00\xff\r\n")},
		{del("k", inValues, old), applied(value("\x00\xff\r\n"))},
		{get("k", inValues), none},
		{del("k", inValues), none},
	})
	for _, view := range []struct {
		name string
		set  func(o ...option) felix.Op
		o    option
		rec  felix.Reply
	}{
		{"counter", func(o ...option) felix.Op { return setInt("k", 5, o...) }, func(*felix.Op) {}, counter(5)},
		{"value", func(o ...option) felix.Op { return set("k", "v", append(o, inValues)...) }, inValues, value("v")},
		{"redis counter", func(o ...option) felix.Op { return set("k", "5", o...) }, redis, counter(5)},
		{"redis value", func(o ...option) felix.Op { return set("k", "v", o...) }, redis, value("v")},
	} {
		script(t, e, "conditions on a "+view.name, []step{
			{view.set(ifPresent), none},
			{view.set(ifVersion(1)), none},
			{view.set(ifVersion(0)), none},
			{get("k", view.o), none},
			{del("k", view.o, ifPresent), none},
			{del("k", view.o, ifVersion(0)), none},
			{view.set(ifAbsent, old), did},
			{view.set(ifAbsent), view.rec},
			{view.set(ifAbsent, old), view.rec},
			{view.set(ifPresent), did},
			{view.set(ifPresent, old), applied(view.rec)},
			{view.set(ifVersion(math.MaxUint64)), view.rec},
			{view.set(ifVersion(0), at(far)), view.rec},
			{del("k", view.o, ifVersion(math.MaxUint64)), view.rec},
			{get("k", view.o), view.rec},
			{del("k", view.o, ifPresent), did},
			{get("k", view.o), none},
		})
	}
	t.Run("values are copied", func(t *testing.T) { testValuesAreCopied(t, e) })
}

// testValuesAreCopied changes the memory of an operation once it is done.
func testValuesAreCopied(t *testing.T, e *env) {
	cache := e.cache(t)
	key, val := []byte("key"), []byte("value")
	one(t, cache, felix.Op{Kind: felix.Set, View: felix.ViewValue, Key: key, Value: val})
	copy(key, "xxx")
	copy(val, "xxxxx")
	checkReply(t, "after the caller's memory changed", one(t, cache, get("key", inValues)), value("value"))
	checkReply(t, "the key the memory now says", one(t, cache, get("xxx", inValues)), none)
}

func testKeys(t *testing.T, e *env) {
	long := strings.Repeat("k", felix.MaxKeyBytes)
	script(t, e, "bounds", []step{
		{add(long, 2), sum(2)},
		{get(long), counter(2)},
		{get(long[1:]), none},
		{set(long, "v", inValues), did},
		{get(long, inValues), value("v")},
		{add(long+"k", 1), fails(illegal)},
		{get(long + "k"), fails(illegal)},
		{set(long+"k", "v"), fails(illegal)},
		{del(long + "k"), fails(illegal)},
		{expire(long+"k", at(far)), fails(illegal)},
		{add("", 1), fails(illegal)},
		{get(""), fails(illegal)},
	})
	big := strings.Repeat("v", felix.MaxValueBytes)
	script(t, e, "value bounds", []step{
		{set("k", big), did},
		{get("k", redis), value(big)},
		{set("k", big+"v"), fails(illegal)},
		{set("n", big+"v", inValues), fails(illegal)},
		{get("k", redis), value(big)},
		{get("n", inValues), none},
		{add("k", 1, redis), fails(felix.ErrNotInteger)},
	})
	t.Run("any bytes", func(t *testing.T) { testKeyBytes(t, e.cache(t)) })
}

// testKeyBytes uses keys of all bytes, and keys that begin others, and sees that
// none is taken for another.
func testKeyBytes(t *testing.T, cache felix.Cache) {
	var keys []string
	for b := range 256 {
		c := string([]byte{byte(b)})
		keys = append(keys, c, c+c, c+"\x00", "\xff"+c+"\xff")
	}
	keys = append(keys, "{", "}", "{}", "{a}", "{a}{b}", "a}b{c", "\r\n", "$-1\r\n", "日本語", "a\x00b", "a", "ab", "abc", "a b", " a", "%00", "../..")
	distinct := map[string]int64{}
	var adds, gets []felix.Op
	for i, key := range keys {
		distinct[key] += int64(i + 1)
		adds = append(adds, add(key, int64(i+1)))
	}
	for key := range distinct {
		gets = append(gets, get(key))
	}
	do(t, cache, adds...)
	for i, r := range do(t, cache, gets...) {
		checkReply(t, fmt.Sprintf("key %q", gets[i].Key), r, counter(distinct[string(gets[i].Key)]))
	}
}

// testIllegal tries operations that mean nothing: each is refused with
// invalid_argument and changes nothing.
func testIllegal(t *testing.T, e *env) {
	cache := e.cache(t)
	one(t, cache, add("k", 7, at(far)))
	one(t, cache, set("k", "v", inValues))
	for _, op := range []felix.Op{
		{Key: []byte("k")},
		{Kind: felix.Expire + 1, Key: []byte("k")},
		{Kind: 255, Key: []byte("k")},
		get("k", func(op *felix.Op) { op.View = felix.ViewRedis + 1 }),
		add("k", 1, func(op *felix.Op) { op.View = 255 }),
		add("k", 1, inValues),
		add("k", 1, ifPresent),
		add("k", 1, old),
		add("k", 1, at(far), nx),
		add("k", 1, func(op *felix.Op) { op.TTL = felix.TTLAtIfNone + 1 }),
		add("k", 1, between(2, 1)),
		add("k", 1, between(2, 1), saturating),
		add("k", 1, at(far), ifNone, nx),
		get("k", atMost(1)),
		setInt("k", 1, atMost(1)),
		setInt("k", 1, at(far), ifNone),
		del("k", atMost(1)),
		expire("k", at(far+1), atMost(1)),
		expire("k", at(far+1), ifNone),
		get("k", old),
		get("k", ifPresent),
		get("k", at(far)),
		get("k", keep),
		set("k", "v", func(op *felix.Op) { op.View = felix.ViewCounter }),
		setInt("k", 1, at(far), gt),
		setInt("k", 1, func(op *felix.Op) { op.If = felix.IfVersion + 1 }),
		del("k", ifAbsent),
		del("k", at(far)),
		del("k", xx),
		expire("k", at(far+1), ifPresent),
		expire("k", clearTTL, xx),
		expire("k", keep, xx),
		expire("k", at(far+1), nx, xx),
		expire("k", at(far+1), nx, gt),
		expire("k", at(far+1), nx, lt),
		expire("k", at(far+1), gt, lt),
		expire("k", at(far+1), func(op *felix.Op) { op.ExpireIf = 1 << 4 }),
	} {
		checkReply(t, describe(&op), do(t, cache, op)[0], fails(illegal))
	}
	checkReply(t, "the counter afterwards", one(t, cache, get("k")), expiring(counter(7), far))
	checkReply(t, "the value afterwards", one(t, cache, get("k", inValues)), value("v"))
}

// testVersions checks compare-and-set, and that no version of a key ever comes
// back.
func testVersions(t *testing.T, e *env) {
	cache := e.cache(t)
	watch := versionWatch{}
	wrote := func(op felix.Op) uint64 {
		t.Helper()
		r := one(t, cache, op)
		if !r.Applied || r.Version == 0 {
			t.Fatalf("%s: %s: not applied, or without a version", describe(&op), show(r))
		}
		watch.check(t, describe(&op), &op, &r)
		return r.Version
	}
	v1 := wrote(add("k", 1))
	if r := one(t, cache, get("k")); r.Version != v1 {
		t.Errorf("get says version %d, the add said %d", r.Version, v1)
	}
	v2 := wrote(setInt("k", 5, ifVersion(v1)))
	r := one(t, cache, setInt("k", 6, ifVersion(v1)))
	checkReply(t, "a set on an outdated version", r, counter(5))
	if r.Version != v2 {
		t.Errorf("the refusal says version %d, want the current one, %d", r.Version, v2)
	}
	checkReply(t, "a delete on an outdated version", one(t, cache, del("k", ifVersion(v1))), counter(5))
	v3 := wrote(expire("k", at(far)))
	if v3 <= v2 {
		t.Errorf("an expire that changed the record has version %d, not above %d", v3, v2)
	}
	if v := wrote(expire("k", at(far))); v != v3 {
		t.Errorf("an expire that changed nothing says version %d, want that of the record, %d", v, v3)
	}
	checkReply(t, "a delete on the current version", one(t, cache, del("k", ifVersion(v3))), did)
	v4 := wrote(add("k", 1))
	if v4 <= v3 {
		t.Errorf("after a delete the record has version %d, not above %d", v4, v3)
	}
	checkReply(t, "a set on a version from before the delete", one(t, cache, setInt("k", 9, ifVersion(v3))), counter(1))
	if err := cache.Clear(within(t)); err != nil {
		t.Fatal(err)
	}
	if v5 := wrote(setInt("k", 1)); v5 <= v4 {
		t.Errorf("after a clear the record has version %d, not above %d", v5, v4)
	}
	wrote(set("k", "v"))
	v6 := wrote(set("k", "7"))
	if r := one(t, cache, get("k")); r.Version != v6 {
		t.Errorf("the counter that a Redis set made has version %d, the set said %d", r.Version, v6)
	}
	t.Run("within one batch", func(t *testing.T) { testBatchVersions(t, e.cache(t)) })
}

// testBatchVersions: two writes of one key in one batch have two versions.
// Otherwise a compare-and-set on the first one's version would overwrite the
// second unseen.
func testBatchVersions(t *testing.T, cache felix.Cache) {
	watch := versionWatch{}
	ops := []felix.Op{setInt("k", 1), add("k", 1), add("k", 1), set("k", "x", inValues), setInt("k", 9), del("k"), add("k", 1)}
	for i, r := range do(t, cache, ops...) {
		if ops[i].Kind != felix.Delete && r.Version == 0 {
			t.Errorf("%s: no version", describe(&ops[i]))
		}
		watch.check(t, describe(&ops[i]), &ops[i], &r)
	}
	first := do(t, cache, setInt("cas", 1), add("cas", 1))[0]
	r := one(t, cache, setInt("cas", 100, ifVersion(first.Version)))
	checkReply(t, "a set on the version of the first of two writes", r, counter(2))
}

// testRedis checks the view of both records as one Redis string.
func testRedis(t *testing.T, e *env) {
	script(t, e, "strings", []step{
		{get("k", redis), none},
		{set("k", "abc"), did},
		{get("k", redis), value("abc")},
		{get("k", inValues), value("abc")},
		{get("k"), none},
		{set("k", "12"), did},
		{get("k", redis), counter(12)},
		{get("k"), counter(12)},
		{get("k", inValues), none},
		{set("k", "def", old), applied(counter(12))},
		{get("k"), none},
		{get("k", redis), value("def")},
		{del("k", redis, old), applied(value("def"))},
		{del("k", redis), none},
		{get("k", inValues), none},
	})
	testRedisNumbers(t, e)
	testRedisBothKinds(t, e)
	script(t, e, "expiry goes from one kind to the other", []step{
		{set("k", "abc", at(far)), did},
		{set("k", "5", keep), did},
		{get("k", redis), expiring(counter(5), far)},
		{add("k", 1, redis), expiring(sum(6), far)},
		{set("k", "abc", keep, old), applied(expiring(counter(6), far))},
		{get("k", redis), expiring(value("abc"), far)},
		{set("k", "abc"), did},
		{get("k", redis), value("abc")},
		{set("k", "41", inValues, at(far)), did},
		{add("k", 1, redis), expiring(sum(42), far)},
		{get("k", inValues), none},
		{set("k", "41", keep), did},
		{get("k", redis), expiring(counter(41), far)},
		{set("k", "41", inValues, at(far+5)), did},
		{del("k"), did},
		{add("k", 1, redis, clearTTL), sum(42)},
		{set("n", "1", keep), did},
		{get("n", redis), counter(1)},
	})
}

// testRedisBothKinds: a counter and a value under one key, made through the
// other views.
func testRedisBothKinds(t *testing.T, e *env) {
	script(t, e, "both kinds exist", []step{
		{setInt("k", 1), did},
		{set("k", "v", inValues), did},
		{get("k", redis), counter(1)},
		{add("k", 1, redis), sum(2)},
		{get("k", inValues), none},
		{set("k", "v", inValues), did},
		{set("k", "5", old), applied(counter(2))},
		{get("k", inValues), none},
		{set("k", "v", inValues), did},
		{set("k", "w"), did},
		{get("k"), none},
		{get("k", inValues), value("w")},
		{setInt("k", 1), did},
		{del("k", redis), did},
		{get("k"), none},
		{get("k", inValues), none},
		{setInt("k", 1, at(far)), did},
		{set("k", "v", inValues), did},
		{expire("k", redis, at(far+1)), did},
		{get("k", inValues), none},
		{get("k"), expiring(counter(1), far+1)},
		{set("k", "v", inValues), did},
		{expire("k", redis, at(far+1)), did},
		{get("k", inValues), none},
		{set("k", "v", inValues), did},
		{expire("k", redis, at(1)), did},
		{get("k"), none},
		{get("k", inValues), none},
	})
	script(t, e, "what is refused replaces nothing", []step{
		{setInt("k", math.MaxInt64), did},
		{set("k", "v", inValues), did},
		{add("k", 1, redis), fails(felix.ErrOverflow)},
		{set("k", "w", ifAbsent), counter(math.MaxInt64)},
		{set("k", "w", ifVersion(math.MaxUint64)), counter(math.MaxInt64)},
		{expire("k", redis, clearTTL), counter(math.MaxInt64)},
		{expire("k", redis, at(far), gt), counter(math.MaxInt64)},
		{get("k", inValues), value("v")},
		{get("k"), counter(math.MaxInt64)},
	})
}

// testRedisNumbers: which bytes are an integer to Redis.
func testRedisNumbers(t *testing.T, e *env) {
	cache := e.cache(t)
	for _, n := range []int64{0, 1, -1, 5, -5, 10, -10, 1234567890, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1} {
		s := fmt.Sprint(n)
		one(t, cache, set("k", s))
		checkReply(t, "a set of "+s, one(t, cache, get("k", redis)), counter(n))
		one(t, cache, del("k"))
		one(t, cache, set("k", s, inValues))
		checkReply(t, "an add to the value "+s, one(t, cache, add("k", 0, redis)), sum(n))
	}
	for _, s := range []string{
		"", " 11", "11 ", "011", "00", "+5", "-0", "--1", "-", "+", "1.5", "1e3", "0x10", "abc", "1a", "a1", "1\x00", "\x001", "１",
		"9223372036854775808", "-9223372036854775809", "18446744073709551617", "99999999999999999999", "-01", "1_0", "1\n",
		"00000000000000000000001", "92233720368547758070",
	} {
		one(t, cache, set("k", s))
		checkReply(t, fmt.Sprintf("a set of %q", s), one(t, cache, get("k", redis)), value(s))
		checkReply(t, fmt.Sprintf("an add to %q", s), do(t, cache, add("k", 1, redis))[0], fails(felix.ErrNotInteger))
		if r := one(t, cache, get("k", redis)); !bytes.Equal(r.Value, []byte(s)) {
			t.Errorf("after a refused add to %q it is %q", s, r.Value)
		}
	}
}
