package peer

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/felix-go/felix"
)

// leaves calls visit with every field of a struct, those of structs inside it
// included.
func leaves(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	for i := range v.NumField() {
		f, name := v.Field(i), path+"."+v.Type().Field(i).Name
		if f.Kind() == reflect.Struct {
			leaves(f, name, visit)
			continue
		}
		visit(name, f)
	}
}

// samples are values of a field that are worth sending.
func samples(v reflect.Value) (all []any) {
	switch v.Interface().(type) {
	case felix.RecordKind:
		return []any{felix.CounterRecord, felix.ValueRecord}
	case bool:
		return []any{true}
	case int64:
		return []any{int64(1), int64(-1), int64(math.MaxInt64), int64(math.MinInt64)}
	case uint64:
		return []any{uint64(1), uint64(math.MaxUint64)}
	case *felix.Bounds:
		return []any{&felix.Bounds{}, &felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64}, &felix.Bounds{Min: -1, Saturate: true}}
	case *felix.Once:
		return []any{&felix.Once{ID: []byte{}}, &felix.Once{ID: make([]byte, felix.MaxIDBytes), RetentionMillis: math.MaxInt64}}
	case []byte:
		return []any{[]byte{}, []byte("x"), make([]byte, 70_000)}
	case felix.Kind, felix.View, felix.If, felix.TTL, felix.ExpireIf:
		one, most := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
		one.SetUint(1)
		most.SetUint(255)
		return []any{one.Interface(), most.Interface()}
	}
	return nil
}

// sendCall encodes and decodes one call.
func sendCall(t *testing.T, c *Call) *Call {
	t.Helper()
	c.seq = 1
	b := appendCall(nil, c, 1500*time.Millisecond)
	if int64(len(b)) > callBytes(c) {
		t.Errorf("a call of %d bytes counts as %d", len(b), callBytes(c))
	}
	got, err := decodeCalls(b, 0, time.Hour)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d calls, %v", len(got), err)
	}
	if got[0].Deadline != time.Hour+1500*time.Millisecond {
		t.Errorf("the deadline came as %v", got[0].Deadline)
	}
	return got[0]
}

// sendAnswer encodes c's answer and decodes it into a call like it.
func sendAnswer(t *testing.T, c *Call) *Call {
	t.Helper()
	b := appendAnswer(nil, c)
	if int64(len(b)) > answerBytes(c) {
		t.Errorf("an answer of %d bytes counts as %d", len(b), answerBytes(c))
	}
	d := decoder{b: b}
	seq, body := d.nextAnswer()
	got := &Call{Kind: c.Kind, Positions: c.Positions}
	if c.Batch != nil {
		got.Batch = &felix.Batch{Ops: c.Batch.Ops, Replies: make([]felix.Reply, len(c.Batch.Replies))}
	}
	if d.bad || seq != c.seq || len(d.b) != 0 {
		t.Fatalf("call %d, %d bytes left", seq, len(d.b))
	}
	if err := decodeAnswer(body, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// Every field of an operation, set alone and with all others, arrives; a field
// that the codec does not know yet fails here.
func TestEveryFieldOfAnOpArrives(t *testing.T) {
	all := felix.Op{Key: []byte("k")}
	check := func(path string, op felix.Op) {
		t.Helper()
		c := sendCall(t, &Call{Shard: 7, Batch: &felix.Batch{Ops: []felix.Op{{}, op}}, Positions: []int32{1}})
		if len(c.Batch.Ops) != 1 || !reflect.DeepEqual(c.Batch.Ops[0], op) || c.Shard != 7 || len(c.Batch.Replies) != 1 ||
			len(c.Positions) != 1 || c.Positions[0] != 0 {
			t.Errorf("%s does not arrive", path)
		}
	}
	leaves(reflect.ValueOf(&all).Elem(), "Op", func(path string, v reflect.Value) {
		values := samples(v)
		if len(values) == 0 {
			t.Fatalf("%s is of a type that this test does not know", path)
		}
		for _, value := range values {
			op := felix.Op{Key: []byte("k")}
			reflect.ValueOf(&op).Elem().FieldByName(path[3:]).Set(reflect.ValueOf(value))
			check(path, op)
			v.Set(reflect.ValueOf(value))
		}
	})
	check("all", all)
	fieldsAre(t, felix.Bounds{}, "Min", "Max", "Saturate")
	fieldsAre(t, felix.Once{}, "ID", "RetentionMillis")
}

// Groups arrive with the operations that they have in the call, wherever these are
// in the batch. Broken: `from-end` in appendGroups; `g.AllOrNothing` there.
func TestGroupsArrive(t *testing.T) {
	fieldsAre(t, felix.Group{}, "From", "To", "AllOrNothing", "Once")
	ops := make([]felix.Op, 20)
	for i := range ops {
		ops[i].Key = []byte{byte(i + 1)}
	}
	once := &felix.Once{ID: []byte("id"), RetentionMillis: -1}
	groups := []felix.Group{{From: 1, To: 3, AllOrNothing: true}, {From: 3, To: 8}, {From: 9, To: 12, Once: once, AllOrNothing: true}, {From: 15, To: 20}}
	c := sendCall(t, &Call{Batch: &felix.Batch{Ops: ops, Groups: groups}, Positions: []int32{0, 1, 2, 8, 9, 11, 13, 14, 19}})
	want := []felix.Group{{From: 1, To: 3, AllOrNothing: true}, {From: 4, To: 6, Once: once, AllOrNothing: true}, {From: 8, To: 9}}
	if !reflect.DeepEqual(c.Batch.Groups, want) || c.Kind != CallOps || len(c.Batch.Ops) != 9 || c.Batch.Ops[8].Key[0] != 20 {
		t.Errorf("groups %+v of %d operations, want %+v", c.Batch.Groups, len(c.Batch.Ops), want)
	}
	none := &Call{Batch: &felix.Batch{Ops: ops, Groups: groups}, Positions: []int32{0, 8, 13}}
	if c = sendCall(t, none); c.Batch.Groups != nil || protocolOf(none) != 1 {
		t.Errorf("without its groups a call has %+v, of protocol %d", c.Batch.Groups, protocolOf(none))
	}
	for _, bad := range [][]byte{{}, {0}, {1, 0, 0, 0}, {1, 0, 4, 0}, {1, 3, 1, 0}, {1, 0, 1, 4}, {2, 0, 2, 0, 0, 2, 0}, {1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 0}} {
		b := appendCall(nil, &Call{seq: 1, Batch: &felix.Batch{Ops: ops}, Positions: []int32{0, 1, 2}}, time.Second)
		b[1] = kindGroups
		if _, err := decodeCalls(append(b, bad...), 0, 0); err == nil {
			t.Errorf("the groups %v of 3 operations are read", bad)
		}
	}
}

func TestEveryFieldOfAReplyArrives(t *testing.T) {
	check := func(path string, r felix.Reply) {
		t.Helper()
		c := &Call{seq: 9, Batch: &felix.Batch{Ops: make([]felix.Op, 2), Replies: []felix.Reply{{}, r}}, Positions: []int32{1}}
		if got := sendAnswer(t, c); !reflect.DeepEqual(got.Batch.Replies[1], r) {
			t.Errorf("%s does not arrive", path)
		}
	}
	all := felix.Reply{}
	leaves(reflect.ValueOf(&all).Elem(), "Reply", func(path string, v reflect.Value) {
		if path == "Reply.Err" {
			return // TestErrorsArrive
		}
		values := samples(v)
		if len(values) == 0 {
			t.Fatalf("%s is of a type that this test does not know", path)
		}
		for _, value := range values {
			r := felix.Reply{}
			reflect.ValueOf(&r).Elem().FieldByName(path[6:]).Set(reflect.ValueOf(value))
			check(path, r)
			v.Set(reflect.ValueOf(value))
		}
	})
	check("all", all)
	check("none", felix.Reply{})
}

// Errors arrive whole, and those that doors compare by identity as the same.
func TestErrorsArrive(t *testing.T) {
	for _, e := range []*felix.Error{felix.ErrNotInteger, felix.ErrOverflow, felix.ErrInvalidExpire} {
		c := &Call{Batch: &felix.Batch{Ops: make([]felix.Op, 1), Replies: []felix.Reply{{Err: e}}}, Positions: []int32{0}}
		if got := sendAnswer(t, c).Batch.Replies[0].Err; got != e {
			t.Errorf("%v came out as another pointer: %v", e, got)
		}
	}
	for _, code := range felix.Codes() {
		e := &felix.Error{Code: code, Message: "why: " + code.String(), RetryAfter: 1234567}
		c := &Call{Kind: CallCount, Err: e}
		if got := sendAnswer(t, c).Err; !reflect.DeepEqual(got, e) {
			t.Errorf("sent %+v, got %+v", e, got)
		}
		c = &Call{Batch: &felix.Batch{Ops: make([]felix.Op, 1), Replies: []felix.Reply{{Err: e}}}, Positions: []int32{0}}
		if got := sendAnswer(t, c).Batch.Replies[0]; !reflect.DeepEqual(got, felix.Reply{Err: e}) {
			t.Errorf("sent %+v, got %+v", e, got)
		}
	}
}

func TestOtherCallsArrive(t *testing.T) {
	for _, scan := range []felix.ScanRequest{
		{View: felix.ViewRedis, Prefix: []byte{}, Limit: 1},
		{View: felix.ViewValue, Prefix: []byte("p"), After: []byte{}, Limit: felix.MaxScanPage},
		{Prefix: []byte("p"), After: []byte("px"), KeysOnly: true, Limit: 10},
	} {
		fieldsAre(t, scan, "View", "Prefix", "After", "Limit", "KeysOnly")
		if got := sendCall(t, &Call{Kind: CallScan, Shard: 3, Scan: scan}); !reflect.DeepEqual(got.Scan, scan) {
			t.Errorf("sent %+v, got %+v", scan, got.Scan)
		}
	}
	for _, kind := range []CallKind{CallCount, CallClear, CallBarrier} {
		if got := sendCall(t, &Call{Kind: kind, Shard: math.MaxUint64}); got.Kind != kind || got.Shard != math.MaxUint64 {
			t.Errorf("kind %d came as %+v", kind, got)
		}
	}
	fieldsAre(t, felix.ScanPage{}, "Items", "More", "Next", "NowMillis")
	fieldsAre(t, felix.ScanItem{}, "Key", "Kind", "Int", "Value", "ExpiresAtMillis", "Version")
	fieldsAre(t, felix.RecordCount{}, "Counters", "Values", "Keys")
	page := felix.ScanPage{More: true, Next: []byte("n"), NowMillis: 77, Items: []felix.ScanItem{
		{Key: []byte("c"), Kind: felix.CounterRecord, Int: math.MinInt64, ExpiresAtMillis: math.MaxInt64, Version: math.MaxUint64},
		{Key: make([]byte, felix.MaxKeyBytes), Kind: felix.ValueRecord, Value: []byte{}, Version: 1},
		{Key: []byte("n"), Kind: felix.ValueRecord}, // keys only
		{Key: []byte("v"), Kind: felix.ValueRecord, Value: make([]byte, 1<<20)}}}
	for _, c := range []*Call{
		{Kind: CallScan, Page: page}, {Kind: CallScan},
		{Kind: CallCount, Count: felix.RecordCount{Counters: 1, Values: math.MaxInt64, Keys: 3}},
		{Kind: CallClear},
		{Kind: CallBarrier, Index: math.MaxUint64, NowMillis: 99},
		{Kind: CallClear, Outcome: NotOwner, Owner: 1 << 32},
	} {
		if got := sendAnswer(t, c); !reflect.DeepEqual(got, c) {
			t.Errorf("an answer of kind %d arrives as %v, %v, %d items", c.Kind, got.Outcome, got.Err, len(got.Page.Items))
		}
	}
}

// fieldsAre fails when a struct has a field that the test, and so perhaps the
// codec, does not know.
func fieldsAre(t *testing.T, v any, known ...string) {
	t.Helper()
	for i := range reflect.TypeOf(v).NumField() {
		if name := reflect.TypeOf(v).Field(i).Name; !slices.Contains(known, name) {
			t.Errorf("%T has the field %s: teach the codec, then this test", v, name)
		}
	}
}

// Calls are numbered one by one, so that none is taken for another.
func TestCallsAreNumbered(t *testing.T) {
	var b []byte
	for _, seq := range []uint64{5, 6, 8} {
		b = appendCall(b, &Call{Kind: CallCount, seq: seq}, time.Second)
	}
	if _, err := decodeCalls(b, 4, 0); err == nil {
		t.Error("a call was skipped and nobody noticed")
	}
	if got, err := decodeCalls(b[:len(b)/3*2], 4, 0); err != nil || len(got) != 2 {
		t.Errorf("%d calls, %v", len(got), err)
	}
}

// Whatever a peer sends ends in calls or an error; what is accepted is encoded
// and decoded to the same.
func FuzzCalls(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		f.Add(appendCall(nil, randomCall(r, 1), time.Second))
	}
	f.Add(appendCall(nil, &Call{seq: 1, Batch: &felix.Batch{Ops: make([]felix.Op, 3), Groups: []felix.Group{{From: 1, To: 3, AllOrNothing: true}}},
		Positions: []int32{0, 1, 2}}, time.Second))
	f.Add([]byte{1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		calls, err := decodeCalls(b, 0, 0)
		if err != nil {
			return
		}
		var again []byte
		for _, c := range calls {
			again = appendCall(again, c, c.Deadline)
		}
		twice, err := decodeCalls(again, 0, 0)
		if err != nil || !reflect.DeepEqual(calls, twice) {
			t.Fatalf("%+v became %+v, %v", calls, twice, err)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		c := randomCall(r, 1)
		for i := range c.Positions {
			c.Batch.Replies[i].Version = r.Uint64()
			c.Batch.Replies[i].Delta = r.Int64N(2) * r.Int64()
		}
		f.Add(appendAnswer(nil, c), byte(c.Kind), uint8(len(c.Positions)))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind byte, ops uint8) {
		d := decoder{b: b}
		seq, body := d.nextAnswer()
		fresh := func() *Call {
			c := &Call{seq: seq, Kind: CallKind(kind % 5)}
			if c.Kind == CallOps {
				c.Batch = &felix.Batch{Ops: make([]felix.Op, ops), Replies: make([]felix.Reply, ops)}
				for i := range ops {
					c.Positions = append(c.Positions, int32(i))
				}
			}
			return c
		}
		once, twice := fresh(), fresh()
		if d.bad || decodeAnswer(body, once) != nil {
			return
		}
		d = decoder{b: appendAnswer(nil, once)}
		_, body = d.nextAnswer()
		if err := decodeAnswer(body, twice); err != nil || !reflect.DeepEqual(once, twice) {
			t.Fatalf("%+v became %+v, %v", once, twice, err)
		}
	})
}

func FuzzBatch(f *testing.F) {
	b, err := appendMessage(nil, Message{Shard: 9, M: appOf(1, 3, []byte("entry"))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := decodeMessages(b)
		if err != nil {
			return
		}
		var again []byte
		for _, m := range ms {
			if again, err = appendMessage(again, m); err != nil {
				t.Fatal(err)
			}
		}
		if twice, err := decodeMessages(again); err != nil || len(twice) != len(ms) {
			t.Fatalf("%d messages became %d, %v", len(ms), len(twice), err)
		}
	})
}

// randomCall is a call of any kind.
func randomCall(r *rand.Rand, seq uint64) *Call {
	c := &Call{seq: seq, Kind: CallKind(r.IntN(5)), Shard: r.Uint64N(100), Scan: felix.ScanRequest{Limit: 1, Prefix: []byte{}}}
	if c.Kind != CallOps {
		return c
	}
	n := 1 + r.IntN(4)
	c.Batch = &felix.Batch{Ops: make([]felix.Op, n), Replies: make([]felix.Reply, n)}
	for i := range n {
		c.Batch.Ops[i] = felix.Op{Kind: felix.Kind(1 + r.IntN(5)), Key: []byte{byte(r.Int())}, Int: r.Int64(), Version: r.Uint64()}
		if r.IntN(4) == 0 {
			c.Batch.Ops[i].Bounds = &felix.Bounds{Min: r.Int64() - r.Int64(), Max: r.Int64(), Saturate: r.IntN(2) == 0}
		}
		if r.IntN(4) == 0 {
			c.Batch.Ops[i].Once = &felix.Once{ID: []byte{byte(r.Int())}, RetentionMillis: r.Int64()}
		}
		c.Positions = append(c.Positions, int32(i))
	}
	return c
}
