package felix_test

import (
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "z", "0", "9", "a-b", "a.b", "a_b", "0-", "a..", "default", strings.Repeat("x", 63)} {
		if err := felix.ValidateName("cache", name); err != nil {
			t.Errorf("%q is refused: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"":                       "the cache name is empty",
		strings.Repeat("x", 64):  "64 bytes, at most 63",
		"A":                      `'A' at position 1`,
		"aB":                     `'B' at position 2`,
		"-a":                     `'-' at position 1`,
		".a":                     `'.' at position 1`,
		"_a":                     `'_' at position 1`,
		"a b":                    `' ' at position 2`,
		"a/b":                    `'/' at position 2`,
		"a\x00":                  `'\x00' at position 2`,
		"ab{":                    `'{' at position 3`,
		"a`":                     "position 2",
		"a\xff":                  "position 2",
		strings.Repeat("A", 100): "100 bytes",
	} {
		err := felix.ValidateName("cache", name)
		if e := felix.AsError(err); e == nil || e.Code != felix.InvalidArgument || !strings.Contains(e.Message, says) {
			t.Errorf("%q: %v, want invalid_argument that says %q", name, err, says)
		}
	}
}

func TestScope(t *testing.T) {
	scope := felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}
	if err := scope.Validate(); err != nil || scope.String() != "t/n/c" {
		t.Errorf("%s: %v", scope, err)
	}
	for what, bad := range map[string]felix.Scope{
		"tenant":    {Tenant: "T", Namespace: "N", Cache: "C"},
		"namespace": {Tenant: "t", Namespace: "", Cache: "C"},
		"cache":     {Tenant: "t", Namespace: "n", Cache: "c c"},
	} {
		e := felix.AsError(bad.Validate())
		if e == nil || e.Code != felix.InvalidArgument || !strings.Contains(e.Message, "the "+what+" name") {
			t.Errorf("%+v: %v, want one that names the %s", bad, e, what)
		}
	}
}

func TestKeys(t *testing.T) {
	for n, ok := range map[int]bool{0: false, 1: true, 65_535: true, 65_536: false} {
		err := felix.ValidateKey(make([]byte, n))
		if (err == nil) != ok || err != nil && err.Code != felix.InvalidArgument {
			t.Errorf("a key of %d bytes: %v", n, err)
		}
	}
}

func TestConsistency(t *testing.T) {
	for s, want := range map[string]felix.Consistency{"": felix.Quorum, "quorum": felix.Quorum, "leader": felix.Leader} {
		got, err := felix.ParseConsistency(s)
		if err != nil || got != want || s != "" && got.String() != s {
			t.Errorf("%q is %v, error %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"Quorum", "all", " leader"} {
		_, err := felix.ParseConsistency(s)
		if e := felix.AsError(err); e == nil || e.Code != felix.InvalidArgument || !strings.Contains(e.Message, "quorum or leader") {
			t.Errorf("%q: %v", s, err)
		}
	}
	var zero felix.CacheSettings
	if zero.Consistency != felix.Quorum {
		t.Error("a cache that says nothing is not quorum")
	}
}

func TestMutates(t *testing.T) {
	for kind, want := range map[felix.Kind]bool{felix.Get: false, felix.Add: true, felix.Set: true, felix.Delete: true, felix.Expire: true} {
		if got := (&felix.Op{Kind: kind}).Mutates(); got != want {
			t.Errorf("kind %d mutates: %v", kind, got)
		}
	}
}

// TestLimits: relations that the code relies on.
func TestLimits(t *testing.T) {
	const expiry int64 = felix.MaxExpiryMillis
	if expiry+expiry < expiry {
		t.Error("the sum of two expiries overflows")
	}
	if felix.SlotCount%felix.MaxShardsPerCache != 0 || felix.SlotCount/felix.MaxShardsPerCache < 64 {
		t.Error("a shard of the largest cache has less than 64 slots")
	}
	if felix.MaxShards < felix.MaxShardsPerCache {
		t.Error("the largest cache does not fit a broker")
	}
	if felix.MaxInflightShardBytes < 2*felix.MaxValueBytes || felix.MaxInflightBrokerBytes < felix.MaxInflightShardBytes {
		t.Error("a legal value would not fit what may be in flight")
	}
}
