package redisapi_test

import (
	"context"
	"strings"
	"testing"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
	"github.com/felix-go/felix/internal/redisapi"
)

// increxNow is when the scripts happen, in Unix milliseconds.
const increxNow = 1_700_000_000_000

// increxScript is, line by line, a command and what it answers, in RESP2 with
// spaces for line ends. There is no server of Redis 8.8 to compare with: these are
// the examples of its documentation and the cases of its tests.
const increxScript = `
INCREX r UBOUND 3 EX 60 ENX => *2 :1 :1
INCREX r UBOUND 3 EX 99 ENX => *2 :2 :1
INCREX r UBOUND 3 EX 99 ENX => *2 :3 :1
INCREX r UBOUND 3 EX 99 ENX => *2 :3 :0
TTL r => :60

SET k 99 => +OK
INCREX k BYINT 5 UBOUND 100 => *2 :99 :0
GET k => $2 99
INCREX k BYINT 5 UBOUND 100 SATURATE => *2 :100 :1
INCREX k BYINT 5 UBOUND 100 SATURATE => *2 :100 :0
INCREX k => *2 :101 :1
INCREX k BYINT -10 => *2 :91 :-10
INCREX k BYINT 0 => *2 :91 :0
increx k lbound 0 BYINT -100 ubound 10 saturate => *2 :0 :-91

SET k 5 => +OK
INCREX k BYINT 2 LBOUND 0 UBOUND 10 => *2 :7 :2
INCREX k BYINT 10 LBOUND 0 UBOUND 10 => *2 :7 :0
INCREX k BYINT -20 LBOUND 0 UBOUND 10 => *2 :7 :0
INCREX k BYINT 3 UBOUND 10 => *2 :10 :3
INCREX k BYINT -10 LBOUND 0 => *2 :0 :-10

DEL k => :1
INCREX k BYINT 15 UBOUND 10 => *2 :0 :0
INCREX k BYINT 5 LBOUND 10 => *2 :0 :0
EXISTS k => :0
INCREX k BYINT 5 LBOUND 10 SATURATE => *2 :10 :10
DEL k => :1
INCREX k UBOUND 0 SATURATE => *2 :0 :0
EXISTS k => :1

SET k 50 => +OK
INCREX k BYINT 5 UBOUND 30 => *2 :50 :0
INCREX k BYINT 5 UBOUND 30 SATURATE => *2 :30 :-20
SET k -50 => +OK
INCREX k BYINT -5 LBOUND -30 SATURATE => *2 :-30 :20
SET k 50 => +OK
INCREX k BYINT -25 UBOUND 30 => *2 :25 :-25

SET k 9223372036854775800 => +OK
INCREX k BYINT 9223372036854775800 => *2 :9223372036854775800 :0
INCREX k BYINT 9223372036854775800 SATURATE => *2 :9223372036854775807 :7
INCRBY k 1 => -ERR increment or decrement would overflow
INCREX k BYINT 1 SATURATE UBOUND -9223372036854775808 => -ERR applied increment would overflow
GET k => $19 9223372036854775807
SET k -9223372036854775800 => +OK
INCREX k BYINT -9223372036854775800 => *2 :-9223372036854775800 :0
INCREX k BYINT -9223372036854775800 SATURATE => *2 :-9223372036854775808 :-8

SET k 10 => +OK
INCREX k BYINT 100 UBOUND 15 EX 100 => *2 :10 :0
TTL k => :-1
INCREX k BYINT 3 UBOUND 20 EX 200 => *2 :13 :3
TTL k => :200
INCREX k BYINT 100 UBOUND 15 SATURATE PX 300000 => *2 :15 :2
TTL k => :300
INCREX k => *2 :16 :1
TTL k => :300
INCREX k UBOUND 16 PERSIST => *2 :16 :0
TTL k => :300
INCREX k PERSIST => *2 :17 :1
TTL k => :-1
INCREX k EXAT 1700000100 => *2 :18 :1
TTL k => :100
INCREX k PXAT 1700000200000 => *2 :19 :1
TTL k => :200
INCREX k EXAT 1 ENX => *2 :20 :1
TTL k => :200
INCREX k EXAT 1 => *2 :21 :1
EXISTS k => :0
INCREX k PXAT 1 ENX => *2 :1 :1
EXISTS k => :0

SET k hello => +OK
INCREX k => -ERR value is not an integer or out of range
INCREX k UBOUND 0 => -ERR value is not an integer or out of range
INCREX k SATURATE EXAT 1 => -ERR value is not an integer or out of range
GET k => $5 hello

INCREX => -ERR wrong number of arguments for 'increx' command
INCREX k FOO => -ERR syntax error
INCREX k 5 => -ERR syntax error
INCREX k BYINT => -ERR syntax error
INCREX k UBOUND => -ERR syntax error
INCREX k BYINT 1 BYINT 2 => -ERR syntax error
INCREX k BYINT 1 BYFLOAT 1.5 => -ERR syntax error
INCREX k BYFLOAT 1.5 BYINT 1 => -ERR syntax error
INCREX k LBOUND 0 LBOUND 1 => -ERR syntax error
INCREX k UBOUND 9 UBOUND 8 => -ERR syntax error
INCREX k SATURATE SATURATE => -ERR syntax error
INCREX k EX 10 EX 20 => -ERR syntax error
INCREX k EX 10 PX 5000 => -ERR syntax error
INCREX k PX 5000 PXAT 9999999999000 => -ERR syntax error
INCREX k EX 10 PERSIST => -ERR syntax error
INCREX k PERSIST EX 10 => -ERR syntax error
INCREX k PERSIST PERSIST => -ERR syntax error
INCREX k PERSIST ENX => -ERR syntax error
INCREX k ENX PERSIST => -ERR syntax error
INCREX k ENX ENX EX 10 => -ERR syntax error
INCREX k ENX => -ERR ENX flag requires an expiration
INCREX k BYFLOAT 1.5 => -ERR BYFLOAT is not supported
INCREX k BYINT abc => -ERR Increment is not an integer or out of range
INCREX k BYINT 1.5 => -ERR Increment is not an integer or out of range
INCREX k LBOUND 1.5 => -ERR LBOUND is not an integer or out of range
INCREX k UBOUND inf => -ERR UBOUND is not an integer or out of range
INCREX k LBOUND 10 UBOUND 5 => -ERR LBOUND can't be greater than UBOUND
INCREX k LBOUND 10 UBOUND 5 SATURATE => -ERR LBOUND can't be greater than UBOUND
INCREX k EX 0 => -ERR invalid expire time in 'increx' command
INCREX k PX -1 => -ERR invalid expire time in 'increx' command
INCREX k EX x => -ERR value is not an integer or out of range
INCREX k EX 9223372036854775807 => -ERR invalid expire time in 'increx' command
GET k => $5 hello

COMMAND GETKEYS INCREX k BYINT 1 => *1 $1 k
COMMAND GETKEYSANDFLAGS INCREX k => *1 *2 $1 k *3 +RW +access +update
`

// TestIncrex: the conversation of increxScript. Broken: each of the words of
// increxOptions, and each case of parseIncrex.
func TestIncrex(t *testing.T) {
	service := model.New(func() int64 { return increxNow })
	if _, _, _, err := service.CreateCache(context.Background(), felix.Scope{Tenant: "default", Namespace: "default", Cache: "default"}, felix.CacheSettings{}); err != nil {
		t.Fatal(err)
	}
	k := newTalk(t, redisapi.New(service, redisapi.Options{}))
	steps := 0
	for line := range strings.Lines(increxScript) {
		command, want, is := strings.Cut(strings.TrimSpace(line), " => ")
		if !is {
			continue
		}
		steps++
		if got := strings.TrimSpace(strings.ReplaceAll(k.say(command), "\r\n", " ")); got != want {
			t.Errorf("%s: %s, want %s", command, got, want)
		}
	}
	if steps < 100 {
		t.Errorf("only %d steps", steps)
	}
	if got := k.say("HELLO 3", "INCREX n BYINT 7"); !strings.HasSuffix(got, "\r\n*2\r\n:7\r\n:7\r\n") {
		t.Errorf("with RESP3: %q", got)
	}
}
