package resp

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
)

// parseAll reads every request of the input, giving the parser the bytes in
// pieces that end at multiples of step; 0 is all at once.
func parseAll(in []byte, step int) (requests []string, used int, err error) {
	var p Parser
	seen := len(in)
	if step > 0 {
		seen = 0
	}
	for {
		// A copy: the parser must not need the bytes to stay where they were.
		n, err := p.Next(bytes.Clone(in[used:seen]))
		if err != nil {
			return requests, used, err
		}
		if n > 0 {
			used += n
			requests = append(requests, fmt.Sprintf("%q", p.Args))
			continue
		}
		if seen == len(in) {
			return requests, used, nil
		}
		seen = min(seen+step, len(in))
	}
}

func TestParse(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	for _, test := range []struct {
		in       string
		requests string // of all, or "" if none
		left     int    // bytes not used
		err      string
	}{
		{in: ""},
		{in: "*2\r\n$4\r\nINCR\r\n$3\r\nkey\r\n", requests: `["INCR" "key"]`},
		{in: "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI", requests: `["PING"]`, left: 10},
		{in: "*2\r\n$4\r\nINCR\r\n$12\r\nabcdefghijkl\r\n", requests: `["INCR" "abcdefghijkl"]`},
		{in: "*1\r\n$0\r\n\r\n", requests: `[""]`},
		{in: "*0\r\n*-1\r\n*1\r\n$1\r\na\r\n", requests: `[] [] ["a"]`},
		{in: "PING\r\nGET k\n\r\n", requests: `["PING"] ["GET" "k"] []`},
		{in: `SET "a b\x41\n\\\q" 'c\'d'` + "\n", requests: `["SET" "a bA\n\\q" "c'd"]`},
		{in: "\t a\v b \r\n", requests: `["a\v" "b"]`},
		{in: `ab"c d" e` + "\n", requests: `["abc d" "e"]`},
		{in: "*1\r\n$1\rXa..", requests: `["a"]`},
		{in: `"abc` + "\n", err: "unbalanced quotes in request", left: 5},
		{in: `"abc"d` + "\n", err: "unbalanced quotes in request", left: 7},
		{in: `'abc\'` + "\n", err: "unbalanced quotes in request", left: 7},
		{in: "*x\r\n", err: "invalid multibulk length", left: 4},
		{in: "*01\r\n", err: "invalid multibulk length", left: 5},
		{in: "*1048577\r\n", err: "invalid multibulk length", left: 10},
		{in: "*1\r\n#1\r\na\r\n", err: "expected '$', got '#'", left: 11},
		{in: "*1\r\n$01\r\na\r\n", err: "invalid bulk length", left: 12},
		{in: "*1\r\n$-1\r\n", err: "invalid bulk length", left: 9},
		{in: "*1\r\n$1048577\r\n", err: "invalid bulk length: an argument has at most 1048576 bytes", left: 14},
		{in: "PING " + long, err: "too big inline request", left: 70_005},
		{in: "*1" + long, err: "too big mbulk count string", left: 70_002},
		{in: "*1\r\n$" + long, err: "too big bulk count string", left: 70_005},
	} {
		for _, step := range []int{0, 1, 3} {
			if step != 0 && len(test.in) > 1000 {
				step *= 1000
			}
			requests, used, err := parseAll([]byte(test.in), step)
			text := ""
			if err != nil {
				text = strings.TrimPrefix(err.Error(), "ERR Protocol error: ")
			}
			got := strings.Join(requests, " ")
			left := len(test.in) - used
			if got != test.requests || left != test.left || text != test.err {
				t.Errorf("%.60q in steps of %d: %s, %d left, error %q; want %s, %d left, error %q",
					test.in, step, got, left, text, test.requests, test.left, test.err)
			}
		}
	}
}

func TestParseLargest(t *testing.T) {
	value := bytes.Repeat([]byte("v"), MaxBulkBytes)
	one := AppendBulk(nil, value)
	fits := MaxRequestBytes/len(one) - 1
	request := AppendArray(nil, fits)
	for range fits {
		request = append(request, one...)
	}
	var p Parser
	if n, err := p.Next(request); n != len(request) || err != nil || len(p.Args) != fits {
		t.Errorf("a request of %d bytes: %d used, %v", len(request), n, err)
	}
	request = AppendArray(nil, fits+2)
	for range fits + 2 {
		request = append(request, one...)
	}
	p = Parser{}
	if _, err := p.Next(request); err != errRequestTooBig {
		t.Errorf("a request of %d bytes: %v, want %v", len(request), err, errRequestTooBig)
	}
	if want := fmt.Sprint(MaxRequestBytes); !strings.Contains(string(errRequestTooBig), want) {
		t.Errorf("%q does not name the limit %s", errRequestTooBig, want)
	}
	if want := fmt.Sprint(MaxBulkBytes); !strings.Contains(string(errBulkLimit), want) {
		t.Errorf("%q does not name the limit %s", errBulkLimit, want)
	}
}

func TestManyArgs(t *testing.T) {
	const count = 50_000
	request := AppendArray(nil, count)
	for i := range count {
		request = AppendBulkInt(request, int64(i))
	}
	var p Parser
	for seen := 0; ; seen = min(seen+4096, len(request)) {
		n, err := p.Next(request[:seen])
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			break
		}
	}
	for i, arg := range p.Args {
		if string(arg) != strconv.Itoa(i) {
			t.Fatalf("argument %d is %q", i, arg)
		}
	}
	if n, err := p.Next([]byte("*1\r\n$4\r\nPING\r\n")); n == 0 || err != nil || cap(p.Args) > retained {
		t.Errorf("after a large request: %d used, %v, room for %d arguments kept", n, err, cap(p.Args))
	}
}

func TestRelease(t *testing.T) {
	var p Parser
	for _, count := range []int{3, 500} {
		in := append(AppendArray(nil, count), bytes.Repeat([]byte("$1\r\na\r\n"), count)...)
		if _, err := p.Next(in); err != nil || len(p.Args) != count {
			t.Fatal(err)
		}
		p.Release()
		for i, arg := range p.Args[:cap(p.Args)] {
			if arg != nil {
				t.Errorf("after %d arguments, the %dth is kept", count, i)
			}
		}
	}
}

func TestNeed(t *testing.T) {
	var p Parser
	in := []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nvvv")
	if n, err := p.Next(in); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if want := len(in) - 3 + 1000 + 2; p.Need != want {
		t.Errorf("need %d, want %d", p.Need, want)
	}
	p = Parser{}
	if _, err := p.Next([]byte("*1048576\r\n")); err != nil || p.Need != 0 {
		t.Errorf("a count alone needs %d, %v; want 0", p.Need, err)
	}
}

func TestArgsDoNotOverlap(t *testing.T) {
	for _, in := range []string{"*2\r\n$1\r\na\r\n$1\r\nb\r\n", "a b\r\n"} {
		var p Parser
		if _, err := p.Next([]byte(in)); err != nil || len(p.Args) != 2 {
			t.Fatal(err)
		}
		_ = append(p.Args[0], "xxxxxxxx"...)
		if string(p.Args[1]) != "b" {
			t.Errorf("%q: appending to an argument changed the next to %q", in, p.Args[1])
		}
	}
}

func TestParseInt(t *testing.T) {
	for _, text := range []string{
		"0", "1", "-1", "9", "10", "9223372036854775807", "-9223372036854775808", "1234567890123456789",
	} {
		want, _ := strconv.ParseInt(text, 10, 64)
		if got, ok := ParseInt([]byte(text)); !ok || got != want {
			t.Errorf("%q: %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{
		"", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "0x1", "--1", "-01", "9223372036854775808",
		"-9223372036854775809", "99999999999999999999", "18446744073709551616", "-9999999999999999999", "123456789012345678901",
	} {
		if got, ok := ParseInt([]byte(text)); ok {
			t.Errorf("%q: %d, want no integer", text, got)
		}
	}
}

func TestAppend(t *testing.T) {
	for _, test := range []struct {
		got  []byte
		want string
	}{
		{AppendSimple(nil, "OK"), "+OK\r\n"},
		{AppendError(nil, "ERR a\r\nb"), "-ERR a  b\r\n"},
		{AppendError(nil, "ERR a\nb\r\n\n"), "-ERR a b\r\n"},
		{AppendInt(nil, 5), ":5\r\n"},
		{AppendInt(nil, 10), ":10\r\n"},
		{AppendInt(nil, -1), ":-1\r\n"},
		{AppendInt(nil, math.MinInt64), ":-9223372036854775808\r\n"},
		{AppendBulk(nil, nil), "$0\r\n\r\n"},
		{AppendBulk(nil, []byte("a\r\nb")), "$4\r\na\r\nb\r\n"},
		{AppendBulkString(nil, "abcdefghijk"), "$11\r\nabcdefghijk\r\n"},
		{AppendBulkInt(nil, -42), "$3\r\n-42\r\n"},
		{AppendNull(nil, RESP2), "$-1\r\n"},
		{AppendNull(nil, RESP3), "_\r\n"},
		{AppendArray(nil, 12), "*12\r\n"},
		{AppendMap(nil, RESP2, 3), "*6\r\n"},
		{AppendMap(nil, RESP3, 3), "%3\r\n"},
		{AppendSet(nil, RESP2, 3), "*3\r\n"},
		{AppendSet(nil, RESP3, 3), "~3\r\n"},
		{AppendVerbatim(nil, RESP2, []byte("hi")), "$2\r\nhi\r\n"},
		{AppendVerbatim(nil, RESP3, []byte("hi")), "=6\r\ntxt:hi\r\n"},
	} {
		if string(test.got) != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	in := []byte("*3\r\n$6\r\nINCRBY\r\n$11\r\npage:view:1\r\n$2\r\n10\r\n")
	inline := []byte("INCR page:view:1\r\n")
	var p Parser
	out := make([]byte, 0, 64)
	allocs := testing.AllocsPerRun(1000, func() {
		if n, err := p.Next(in); n != len(in) || err != nil {
			t.Fatal(n, err)
		}
		if n, err := p.Next(inline); n != len(inline) || err != nil {
			t.Fatal(n, err)
		}
		out = AppendBulkInt(AppendInt(out[:0], 123456), 77)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// FuzzParser: whatever comes in, in whatever pieces, the requests and the error
// are the same as all at once, never more is used than there is, and the fast
// reader agrees with the exact one.
func FuzzParser(f *testing.F) {
	for _, seed := range []string{
		"*2\r\n$4\r\nINCR\r\n$3\r\nkey\r\n", "SET \"a\\x41\" 'b'\r\n", "*1\r\n$01\r\nx\r\n", "*-1\r\n*0\r\n\r\n",
		"*1\r\n#", "*99999999\r\n", "$5\r\n", "*1\r\n$12\r\n123456789012\r\n",
	} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		whole, used, err := parseAll(in, 0)
		if used > len(in) {
			t.Fatalf("%d of %d bytes used", used, len(in))
		}
		pieces, usedPieces, errPieces := parseAll(in, int(step)+1)
		if fmt.Sprint(whole, used, err) != fmt.Sprint(pieces, usedPieces, errPieces) {
			t.Fatalf("at once: %v %d %v\nin pieces: %v %d %v", whole, used, err, pieces, usedPieces, errPieces)
		}
		var fast, exact Parser
		if n := fast.fast(in); n > 0 {
			m, err := exact.multibulk(in)
			if m != n || err != nil || fmt.Sprintf("%q", fast.Args) != fmt.Sprintf("%q", exact.Args) {
				t.Fatalf("fast: %d %q; exact: %d %q %v", n, fast.Args, m, exact.Args, err)
			}
		}
	})
}

func BenchmarkParseIncr(b *testing.B) {
	in := bytes.Repeat([]byte("*2\r\n$4\r\nINCR\r\n$16\r\nkey:000000012345\r\n"), 64)
	var p Parser
	b.SetBytes(int64(len(in) / 64))
	for i := 0; i < b.N; {
		for rest := in; len(rest) > 0; i++ {
			n, _ := p.Next(rest)
			rest = rest[n:]
		}
	}
}
