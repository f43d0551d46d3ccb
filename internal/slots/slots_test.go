package slots

import (
	"fmt"
	"testing"

	"github.com/felix-go/felix"
)

// TestCRC checks the reference value of the Redis Cluster specification,
// appendix A.
func TestCRC(t *testing.T) {
	if got := crc16([]byte("123456789")); got != 0x31C3 {
		t.Errorf("crc16 of 123456789 is %#x, want 0x31c3", got)
	}
	if got := crc16(nil); got != 0 {
		t.Errorf("crc16 of nothing is %#x, want 0", got)
	}
}

// TestCRCOfEveryLength compares with the polynomial worked bit by bit, across
// the bound between eight bytes at a time and the rest.
func TestCRCOfEveryLength(t *testing.T) {
	key := make([]byte, 40)
	for i := range key {
		key[i] = byte(i*i*37 + 11)
	}
	for n := range key {
		var want uint16
		for _, c := range key[:n] {
			want ^= uint16(c) << 8
			for range 8 {
				if want&0x8000 != 0 {
					want = want<<1 ^ 0x1021
				} else {
					want <<= 1
				}
			}
		}
		if got := crc16(key[:n]); got != want {
			t.Errorf("crc16 of %d bytes is %#x, want %#x", n, got, want)
		}
	}
}

// TestKnownSlots: these are the answers of CLUSTER KEYSLOT of Redis.
func TestKnownSlots(t *testing.T) {
	for key, want := range map[string]uint16{
		"foo":               12182,
		"bar":               5061,
		"hello":             866,
		"123456789":         0x31C3,
		"somekey":           11058,
		"foo{hash_tag}":     2515,
		"bar{hash_tag}":     2515,
		"hash_tag":          2515,
		"{user1000}.any":    3443,
		"foo{}{bar}":        8363,
		"foo{{bar}}zap":     4015,
		"foo{bar}{zap}":     5061,
		"{}":                15257,
		"{":                 4092,
		"a{b":               13340,
		"\x00":              0,
		"\xff\xfe\x00\r\n{": 1575,
	} {
		if got := Slot([]byte(key)); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}

// TestTags: keys that name the same tag have the same slot, as in the examples
// of the specification.
func TestTags(t *testing.T) {
	for _, same := range [][2]string{
		{"{user1000}.following", "{user1000}.followers"},
		{"{user1000}.following", "user1000"},
		{"foo{{bar}}zap", "{bar"},   // from the first { to the next }
		{"foo{bar}{zap}", "bar"},    // only the first tag
		{"foo{bar", "{foo{bar}"},    // no closing brace: the whole key
		{"}foo{bar}", "bar"},        // a closing brace before does not count
		{"{\x00\xff}x", "\x00\xff"}, // any bytes
	} {
		if a, b := Slot([]byte(same[0])), Slot([]byte(same[1])); a != b {
			t.Errorf("%q has slot %d, %q has %d: want the same", same[0], a, same[1], b)
		}
	}
	for _, whole := range []string{"foo{}{bar}", "{}", "{}x", "a{b", "a}b"} {
		if got, want := Slot([]byte(whole)), crc16([]byte(whole))%felix.SlotCount; got != want {
			t.Errorf("slot of %q is %d, want that of the whole key, %d", whole, got, want)
		}
	}
}

// TestShards: for every number of shards, slots rise through all of them in
// contiguous ranges whose sizes differ by one at most.
func TestShards(t *testing.T) {
	for shards := 1; shards <= felix.MaxShardsPerCache; shards++ {
		size := make([]int, shards)
		last := 0
		for slot := range felix.SlotCount {
			shard := Shard(uint16(slot), shards)
			if shard < last || shard > last+1 || shard >= shards {
				t.Fatalf("%d shards: slot %d is in shard %d, the one before in %d", shards, slot, shard, last)
			}
			size[shard]++
			last = shard
		}
		if Shard(0, shards) != 0 || last != shards-1 {
			t.Fatalf("%d shards: the slots go from shard %d to %d", shards, Shard(0, shards), last)
		}
		for shard, n := range size {
			if low := felix.SlotCount / shards; n < low || n > low+1 {
				t.Errorf("%d shards: shard %d has %d slots, want %d or one more", shards, shard, n, low)
			}
		}
	}
}

// TestSpread: ordinary keys spread over shards.
func TestSpread(t *testing.T) {
	const keys, shards = 16_000, 16
	var count [shards]int
	for n := range keys {
		slot := Slot(fmt.Appendf(nil, "user:%d:2026-10-17T09:15", n))
		if slot >= felix.SlotCount {
			t.Fatalf("slot %d", slot)
		}
		count[Shard(slot, shards)]++
	}
	for shard, n := range count {
		if n < keys/shards*3/4 || n > keys/shards*5/4 {
			t.Errorf("shard %d has %d of %d keys", shard, n, keys)
		}
	}
}

func TestSlotDoesNotAllocate(t *testing.T) {
	key := []byte("a{tag}b")
	if n := testing.AllocsPerRun(100, func() { Slot(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSlot(b *testing.B) {
	key := []byte("user:42:2026-10-17T09:15")
	for b.Loop() {
		Slot(key)
	}
}
