package difftest

import "strings"

const connectionScript = `
# ping
PING
ping
PING hello
PING ""
PING "a\r\nb"
PING a b
ECHO x
ECHO ""
ECHO
ECHO a b

# select
SELECT 0
SELECT 1
SELECT -1
SELECT x
SELECT 99999999999
SELECT -99999999999
SELECT 99999999999999999999
SELECT
SELECT 0 0

# hello
@kind HELLO
@kind HELLO 2
GET none
@kind HELLO 3
GET none
MGET none none
SET k v NX
SET k v NX
HELLO 4
HELLO 1
HELLO 0
HELLO -1
HELLO x
HELLO 3.0
HELLO 3 BOGUS
HELLO 3 AUTH
HELLO 3 AUTH default
HELLO 3 SETNAME
HELLO 3 SETNAME "a b"
HELLO 3 SETNAME a BOGUS
CLIENT GETNAME
@kind HELLO 3 SETNAME fred
CLIENT GETNAME
@kind HELLO 2 AUTH default anything SETNAME bob
CLIENT GETNAME
GET none
@kind hello 3 setname x auth default y
GET none
CLIENT GETNAME
@kind HELLO 2

# auth
AUTH x
AUTH default x
AUTH default ""
AUTH
AUTH a b c
@except:scopes AUTH nobody x
@except:scopes AUTH no/such/cache x
@except:scopes HELLO 3 AUTH nobody x
PING

# reset
CLIENT SETNAME fred
@kind HELLO 3
RESET
CLIENT GETNAME
GET none
INCR n
RESET
INCR n
RESET x
INCR n

# quit is answered
INCR n
QUIT

# client name
CLIENT GETNAME
CLIENT SETNAME fred
CLIENT GETNAME
client getname
CLIENT SETNAME "a b"
CLIENT SETNAME "a\n"
CLIENT SETNAME "\x7f"
CLIENT GETNAME
CLIENT SETNAME ""
CLIENT GETNAME
CLIENT SETNAME
CLIENT SETNAME a b

# client
@kind CLIENT ID
@kind CLIENT INFO
@kind CLIENT LIST
@kind CLIENT LIST TYPE normal
CLIENT LIST TYPE pubsub
CLIENT LIST TYPE bogus
CLIENT LIST BOGUS
CLIENT LIST ID
CLIENT LIST ID x
CLIENT LIST ID 999999
CLIENT LIST TYPE normal x
CLIENT NO-EVICT ON
CLIENT NO-EVICT off
CLIENT NO-EVICT x
CLIENT NO-EVICT
CLIENT GETREDIR
CLIENT UNBLOCK 999999
CLIENT UNBLOCK x
CLIENT UNBLOCK 999999 TIMEOUT
CLIENT UNBLOCK 999999 error
CLIENT UNBLOCK 999999 bogus
CLIENT UNBLOCK 999999 error x
CLIENT BOGUS
client bogus x y
CLIENT
CLIENT "a\r\nb"
CLIENT ID x
CLIENT KILL
CLIENT KILL 1.2.3.4:5
CLIENT KILL ID x
CLIENT KILL ID 0
CLIENT KILL ID 999999
CLIENT KILL ID 999999 SKIPME no
CLIENT KILL SKIPME x
CLIENT KILL SKIPME maybe
CLIENT KILL TYPE bogus
CLIENT KILL TYPE pubsub
CLIENT KILL ADDR 1.2.3.4:5
CLIENT KILL LADDR 1.2.3.4:5
CLIENT KILL USER nobody
CLIENT KILL USER default ID 999999
CLIENT KILL ID 999999 BOGUS
CLIENT KILL ID 999999 BOGUS x
CLIENT KILL a b c
@except:newer-client CLIENT SETINFO LIB-NAME x
@except:newer-client CLIENT SETINFO LIB-VER 1
@except:newer-client CLIENT NO-TOUCH ON
@except:subset CLIENT PAUSE 0
@except:subset CLIENT HELP

# client tracking
CLIENT TRACKINGINFO
CLIENT TRACKING OFF
CLIENT TRACKING ON OPTIN
CLIENT TRACKINGINFO
CLIENT GETREDIR
CLIENT TRACKING OFF
CLIENT TRACKINGINFO
CLIENT GETREDIR
CLIENT CACHING YES
CLIENT TRACKING BOGUS
CLIENT TRACKING ON BOGUS
CLIENT TRACKING
@except:no-caching CLIENT TRACKING ON
@except:no-caching CLIENT TRACKING ON BCAST
@except:no-caching CLIENT CACHING YES
CLIENT TRACKING OFF

# client reply off
CLIENT REPLY ON
@none CLIENT REPLY OFF
@none INCR n
@none PING
@none NOSUCH
@none GET
@none DBSIZE
@none CLIENT REPLY SKIP
CLIENT REPLY ON
INCR n

# client reply skip
INCR n
@none CLIENT REPLY SKIP
@none INCR n
INCR n
@none CLIENT REPLY SKIP
@none CLIENT REPLY SKIP
@none INCR n
INCR n
@none CLIENT REPLY SKIP
@none GET n
DBSIZE
@none CLIENT REPLY SKIP
@none DBSIZE
GET n
@none CLIENT REPLY SKIP
CLIENT REPLY ON
GET n
CLIENT REPLY BOGUS
CLIENT REPLY
@none CLIENT REPLY SKIP
@none NOSUCH
GET n

# client reply off ends with reset
@none CLIENT REPLY OFF
@none INCR n
RESET
INCR n

# client reply skip is not ended by reset
@none CLIENT REPLY SKIP
@none RESET
PING
INCR n
@none CLIENT REPLY OFF
@none CLIENT REPLY SKIP
RESET
INCR n
`

const serverScript = `
# time
@kind TIME
TIME x

# wait
WAIT 0 0
WAIT 0 100
WAIT -1 0
WAIT 1 20
WAIT x 0
WAIT 0 x
WAIT 0 -1
WAIT 1 -1
WAIT 0
WAIT

# cluster
CLUSTER
CLUSTER INFO
cluster slots
CLUSTER NODES
CLUSTER SHARDS
CLUSTER MYID
CLUSTER KEYSLOT a
CLUSTER KEYSLOT
CLUSTER HELP
CLUSTER BOGUS
CLUSTER COUNTKEYSINSLOT x
CLUSTER GETKEYSINSLOT 0 1
CLUSTER INFO x
CLUSTER MEET a
CLUSTER FAILOVER

# config
@except:identity CONFIG GET port
@except:identity CONFIG GET *
CONFIG GET nosuchthing
CONFIG GET save
CONFIG GET databases
CONFIG GET SAVE
CONFIG GET sav[e]
CONFIG GET maxmemory
CONFIG GET maxmemory-policy
CONFIG GET timeout
CONFIG GET save nosuch
@sort CONFIG GET databases timeout
CONFIG GET
CONFIG
CONFIG BOGUS
@except:subset CONFIG SET save ""
@except:subset CONFIG RESETSTAT
@except:subset CONFIG HELP

# info
@kind INFO
@kind INFO server
@kind INFO server clients
@kind INFO all
@kind INFO everything
@kind INFO default
INFO nosuch
INFO cluster
info CLUSTER
INFO modules
INFO keyspace

# command
@except:subset COMMAND
@except:subset COMMAND COUNT
@except:subset COMMAND DOCS
@except:subset COMMAND INFO
COMMAND INFO get
COMMAND INFO get SET nosuch
COMMAND INFO client|id
COMMAND INFO client|nosuch
COMMAND INFO nosuch|id
COMMAND INFO mget mset
COMMAND DOCS nosuch
@except:subset COMMAND DOCS get
COMMAND GETKEYS GET a
COMMAND GETKEYS SET a b
COMMAND GETKEYS MGET a b c
COMMAND GETKEYS MSET a 1 b 2 c 3
COMMAND GETKEYS DEL a b
COMMAND GETKEYS PING
COMMAND GETKEYS nosuch
COMMAND GETKEYS GET
COMMAND GETKEYS GET a b
COMMAND GETKEYS CLIENT ID
COMMAND GETKEYS
COMMAND GETKEYSANDFLAGS GET a
COMMAND GETKEYSANDFLAGS SET a b
COMMAND GETKEYSANDFLAGS SET a b get
COMMAND GETKEYSANDFLAGS SET get get nx
COMMAND GETKEYSANDFLAGS MSET a 1 b 2
COMMAND GETKEYSANDFLAGS DEL a b
COMMAND LIST FILTERBY PATTERN getd*
COMMAND LIST FILTERBY pattern INCRBY
COMMAND LIST FILTERBY MODULE x
COMMAND LIST FILTERBY ACLCAT nosuch
COMMAND LIST FILTERBY BOGUS x
COMMAND LIST FILTERBY
COMMAND LIST x
COMMAND LIST FILTERBY PATTERN a b
COMMAND BOGUS
COMMAND COUNT x
@except:subset COMMAND HELP
`

const errorScript = `
# unknown commands
NOSUCH
nosuch
NOSUCH a
NOSUCH a b c
NOSUCH "" ""
NOSUCH "with space" 'quote'
NOSUCH "a\r\nb" "c\nd"
"NO\r\nSUCH" x
"" x
NOSUCH aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
NOSUCH aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb cccccccc
NOSUCH aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbb ccc ddd
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b
NOSUCH "a\x00b" c
"GE\x00" k
"G-T" k
"GET " k
GETT k
GE k
"\x07ET" k

# arity
GET
GET a b
SET a
INCR
INCR a b
INCRBY a
INCRBY a 1 2
SETEX a 1
GETSET a
STRLEN
EXPIRE a
TTL
TTL a b
PERSIST
MGET
DBSIZE x
TYPE
SELECT
TIME x
GETEX
GETDEL
UNLINK
PEXPIRETIME

# the subset of commands
@except:subset LPUSH a b
@except:subset APPEND a b
@except:subset PUBLISH a b
`

// limitScript goes beyond Felix's limits, and up to them.
var limitScript = `
# limits on keys
SET $LONG+65535 v
GET $LONG+65535
INCR $LONG+65534
@sort KEYS *
@except:long-key SET $LONG+65536 v
@except:long-key MGET $LONG+65536 a
@except:long-key DEL $LONG+65536
DBSIZE

# limits on values
SET k $LONG+1048576
STRLEN k
GET k
SET k v GET

# limits on the number of keys
MGET` + strings.Repeat(" k", 10_000) + `
EXISTS` + strings.Repeat(" k", 10_000) + `
MSET` + strings.Repeat(" k v", 10_000) + `
DEL` + strings.Repeat(" k", 10_000) + `
@except:many-keys MGET` + strings.Repeat(" k", 10_001) + `
@except:many-keys EXISTS` + strings.Repeat(" k", 10_001) + `
@except:many-keys MSET` + strings.Repeat(" k v", 10_001) + `
@except:many-keys DEL` + strings.Repeat(" k", 10_001) + `
DBSIZE
`

// rawInputs are bytes after which the connection is closed; all that comes back
// is compared.
func rawInputs() map[string]string {
	return map[string]string{
		"quit":                "PING\r\nQUIT\r\n",
		"nothing after quit":  "QUIT\r\nPING\r\n",
		"inline":              "SET k  v\r\nGET k\n\r\n\r\n  \r\nINCR n\r\nquit\r\n",
		"inline quotes":       "SET k \"a b\\x41\\n\"\r\nGET k\r\nSET 'k 2' 'it\\'s'\r\nGET \"k 2\"\r\nDEL k \"k 2\"\r\nQUIT\r\n",
		"inline tabs":         "\tPING\t\vhello\r\nQUIT\r\n",
		"unbalanced":          "SET k \"abc\r\nPING\r\n",
		"unbalanced single":   "SET k 'abc\r\nPING\r\n",
		"quote then text":     "SET k \"abc\"d\r\nPING\r\n",
		"mixed":               "*1\r\n$4\r\nPING\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n$4\r\nQUIT\r\n",
		"nothing":             "*0\r\n*-1\r\n*-10\r\n*1\r\n$4\r\nQUIT\r\n",
		"bad count":           "*x\r\nPING\r\n",
		"count with space":    "* 1\r\n$4\r\nPING\r\n",
		"count with zero":     "*01\r\n$4\r\nPING\r\n",
		"count with plus":     "*+1\r\n$4\r\nPING\r\n",
		"count empty":         "*\r\n$4\r\nPING\r\n",
		"count too large":     "*2147483648\r\n$4\r\nPING\r\n",
		"count overflow":      "*99999999999999999999\r\n$4\r\nPING\r\n",
		"no dollar":           "*1\r\n#4\r\nPING\r\n",
		"no dollar, command":  "*2\r\n$3\r\nGET\r\nk\r\n",
		"bad length":          "*1\r\n$x\r\nPING\r\n",
		"negative length":     "*1\r\n$-1\r\nPING\r\n",
		"length with zero":    "*1\r\n$04\r\nPING\r\n",
		"length empty":        "*1\r\n$\r\nPING\r\n",
		"length overflow":     "*1\r\n$99999999999999999999\r\nPING\r\n",
		"length of gigabytes": "*1\r\n$-9223372036854775808\r\n",
		"ends unchecked":      "*2\r\n$4\r\nECHOxx$2\r\nhi__*1\r\n$4\r\nQUIT\r\n",
		"line feed unchecked": "*1\rX$4\rXPING\r\n*1\r\n$4\r\nQUIT\r\n",
		"error after replies": "INCR q\r\nPING\r\n*1\r\n$x\r\nPING\r\n",
		"host":                "Host: example\r\nPING\r\n",
		"post":                "POST / HTTP/1.1\r\n\r\n",
		"long inline":         "PING " + long(70_000) + "\r\nQUIT\r\n",
		"too long inline":     "PING " + long(200_000),
		"too long count":      "*" + long(200_000),
		"too long length":     "*1\r\n$" + long(200_000),
		"empty argument":      "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n*1\r\n$4\r\nQUIT\r\n",
		"empty command":       "*1\r\n$0\r\n\r\n*1\r\n$4\r\nQUIT\r\n",
		"skip nothing":        "CLIENT REPLY SKIP\r\n\r\nPING\r\nQUIT\r\n",
		"skip spaces":         "CLIENT REPLY SKIP\r\n  \r\n\r\nPING\r\nQUIT\r\n",
		"skip empty array":    "CLIENT REPLY SKIP\r\n*0\r\nPING\r\nQUIT\r\n",
		"skip null array":     "CLIENT REPLY SKIP\r\n*-1\r\nPING\r\nPING\r\nQUIT\r\n",
		"quit in multi":       "MULTI\r\nQUIT\r\nPING\r\n",
	}
}

func long(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a'
	}
	return string(b)
}
