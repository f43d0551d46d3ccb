package difftest

// scripts are the written sequences, see parseScript for their form.
func scripts() []string {
	return []string{
		stringScript, setScript, expiryScript, keyspaceScript, connectionScript, transactionScript, serverScript, errorScript,
		limitScript,
	}
}

const stringScript = `
# get
GET k
SET k v
GET k
get k
GeT k
SET k ""
GET k
STRLEN k
SET k "a\r\nb\x00c"
GET k
STRLEN k

# get numbers
SET n 42
GET n
STRLEN n
SET n -9223372036854775808
GET n
STRLEN n
SET n 9223372036854775807
GET n
SET n 9223372036854775808
GET n
STRLEN n

# look-alikes keep their bytes
SET n 011
GET n
SET n +5
GET n
SET n " 11"
GET n
SET n -0
GET n
SET n 1.50
GET n
SET n 1e5
GET n
SET n 00
GET n
SET n -
GET n

# incr
INCR n
INCR n
GET n
DECR n
DECR n
DECR n
GET n
INCRBY n 10
DECRBY n 4
INCRBY n -7
DECRBY n -9
TYPE n
STRLEN n

# incr not an integer
SET s " 11"
INCR s
SET s 011
INCR s
SET s +5
INCR s
SET s -0
INCR s
SET s 1.5
INCR s
SET s ""
INCR s
SET s "11 "
DECR s
SET s 9223372036854775808
INCR s
SET s -9223372036854775809
DECRBY s 1
SET s text
INCRBY s 5
GET s

# incr overflow keeps the value
SET n 9223372036854775807
INCR n
GET n
INCRBY n 1
INCRBY n 9223372036854775807
GET n
DECR n
SET n -9223372036854775808
DECR n
DECRBY n 1
INCRBY n -1
INCRBY n -9223372036854775808
GET n
INCRBY n 9223372036854775807
GET n

# decrby the least integer
DECRBY n -9223372036854775808
GET n
SET n 5
DECRBY n -9223372036854775808
INCRBY n -9223372036854775808
GET n
DECRBY n 9223372036854775807
INCRBY m -9223372036854775808
GET m

# bad deltas
INCRBY n x
INCRBY n ""
INCRBY n 1.0
INCRBY n " 1"
INCRBY n +1
INCRBY n 01
INCRBY n -0
INCRBY n 9223372036854775808
INCRBY n -9223372036854775809
INCRBY n 99999999999999999999999999
DECRBY n x
DECRBY n 0x10
EXISTS n
INCRBY n 0
EXISTS n

# incr keeps the expiry
SET n 10 EX 1000
INCR n
@near:1 TTL n
INCRBY n 5
DECR n
@near:1 TTL n
SET s abc EX 500
INCR s
@near:1 TTL s
GET s

# mget
MGET a
MGET a b c
SET a 1
SET c x
MGET a b c a
MGET a a a

# mset
MSET a 1 b two c 3
MGET a b c
MSET a 1 a 2 a 3
GET a
MSET a
MSET a 1 b
MSET
SET a 5 EX 100
MSET a 6
TTL a

# setnx
SETNX k v
SETNX k w
GET k
SETNX n 5
SETNX n 6
INCR n
SETNX k v EX 5

# setex
SETEX k 100 v
@near:1 TTL k
GET k
SETEX k 0 v
SETEX k -1 v
SETEX k x v
SETEX k 9223372036854775807 v
SETEX k 9223372036854776 v
SETEX k -18446744073709551 v
SETEX k -9223372036854776 v
SETEX k 1.5 v
GET k
PSETEX k 100000 w
@near:100 PTTL k
PSETEX k 0 v
PSETEX k -5 v
PSETEX k "" v
PSETEX k 9223372036854775807 v
GET k

# getset
GETSET k v
GETSET k w
GETSET k 5
INCR k
GETSET k x
SET k y EX 100
GETSET k z
TTL k
GET k

# getdel
GETDEL k
SET k v
GETDEL k
GETDEL k
SET n 7
GETDEL n
EXISTS n

# getex
GETEX k
SET k v
GETEX k
GETEX k EX 100
@near:1 TTL k
GETEX k PX 200000
@near:200 PTTL k
GETEX k PERSIST
TTL k
GETEX k EXAT $NOW+500
EXPIRETIME k
GETEX k PXAT $NOWMS+600123
PEXPIRETIME k
GETEX k
PEXPIRETIME k
GETEX k PERSIST
GETEX k PERSIST
GETEX k EXAT 1
EXISTS k

# getex bad
GETEX missing EX 0
GETEX missing EX x
GETEX missing EX -5
GETEX missing BOGUS
GETEX missing EX
SET k v
GETEX k EX 0
GETEX k EX -5
GETEX k EX x
GETEX k EX 9223372036854775807
GETEX k EX -18446744073709551
GETEX k EXAT -18446744073709551
GETEX k EXAT -9223372036854776
GETEX k EX
GETEX k PX 0
GETEX k EXAT 0
GETEX k PXAT -1
GETEX k EX 10 PX 10
GETEX k EX 10 PERSIST
GETEX k PERSIST EX 10
GETEX k KEEPTTL
GETEX k NX
GETEX k GET
GETEX k PERSIST PERSIST
GETEX k EX 10 EX 2000
@near:1 TTL k
GETEX k persist
TTL k

# getex number
SET n 12
GETEX n EX 1000
INCR n
@near:1 TTL n
GETEX n PXAT 5
GET n

# strlen
STRLEN none
SET a hello
STRLEN a
SET a 12345
STRLEN a
INCRBY a -12346
STRLEN a

# binary keys
SET "\x00\xff\r\n" 1
INCR "\x00\xff\r\n"
GET "\x00\xff\r\n"
MGET "\x00\xff\r\n" "\x00\xff"
EXISTS "\x00\xff\r\n" "\x00"
@sort KEYS *
DEL "\x00\xff\r\n"
GET "\x00\xff\r\n"

# tags
MSET {t}a 1 {t}b 2 x{t}c 3
MGET {t}a {t}b x{t}c
DEL {t}a {t}b x{t}c t
`

const setScript = `
# set options
SET k v NX
SET k w NX
GET k
SET k w XX
GET k
SET none w XX
EXISTS none
set k x nx
set k x xx
SET k y xX
GET k

# set get
SET k v GET
SET k w GET
GET k
SET k 5 GET
INCR k
SET k 6 GET
SET k z NX GET
GET k
SET new z NX GET
GET new
SET none z XX GET
EXISTS none
SET k q XX GET
GET k
SET k r GET GET GET
GET k

# set expiry
SET k v EX 100
@near:1 TTL k
SET k v
TTL k
SET k v PX 100000
@near:100 PTTL k
SET k v EXAT $NOW+1000
EXPIRETIME k
PEXPIRETIME k
SET k v PXAT $NOWMS+1000777
PEXPIRETIME k
EXPIRETIME k
SET k v ex 10
@near:1 TTL k
SET k v EX 10 EX 5000
@near:1 TTL k

# set keepttl
SET k v EX 100
SET k w KEEPTTL
@near:1 TTL k
GET k
SET k 5 KEEPTTL
@near:1 TTL k
INCR k
SET k x keepttl get
@near:1 TTL k
SET k y
SET k z KEEPTTL
TTL k
SET fresh z KEEPTTL
TTL fresh

# set in the past
SET k v EXAT 1
GET k
EXISTS k
SET k v
SET k w PXAT 1
GET k
SET k v
SET k w PXAT 1 GET
GET k

# set bad expiry
SET k v EX 0
SET k v EX -1
SET k v PX 0
SET k v PX -10
SET k v EXAT 0
SET k v EXAT -1
SET k v PXAT 0
SET k v PXAT -10
SET k v EX x
SET k v EX ""
SET k v EX 1.5
SET k v EX 9223372036854775807
SET k v EX 9223372036854775
SET k v EX 9223372036854776
SET k v EX -18446744073709551
SET k v EX -9223372036854776
SET k v EXAT -18446744073709551
SET k v PX -18446744073709551
SET k v PX 9223372036854775807
SET k v EXAT 9223372036854775807
SET k v PX 9223372036854775808
SET k v EX 99999999999999999999
EXISTS k

# set bad syntax
SET k v BOGUS
SET k v EX
SET k v EX 10 PX 10
SET k v PX 10 EX 10
SET k v EX 10 EXAT 10
SET k v PXAT 10 EX 10
SET k v EX 10 KEEPTTL
SET k v KEEPTTL EX 10
SET k v NX XX
SET k v XX NX
SET k v PERSIST
SET k v NX NX
SET k v XX XX
SET k v KEEPTTL KEEPTTL
SET k v 10
SET k v "" ""
SET k v EX 10 NX GET XX
SET k v EX NX
SET k v GET EX 0
SET k v NX EX 0
SET k
SET
GET k

# set replaces
SET k 5
INCR k
SET k text
INCR k
SET k 7
INCR k
SET k v EX 100
SET k v NX EX 500
@near:1 TTL k
SET k v XX
TTL k

# far expiry
@except:far-expiry SET k v PX 9000000000000000000
@except:far-expiry SET k v EX 9000000000000000
@except:far-expiry EXPIRE k 9000000000000000
@except:far-expiry PEXPIREAT k 9223372036854775807

# limits
@except:empty-key SET "" v
@except:empty-key GET ""
@except:empty-key MGET a ""
@except:empty-key DEL a ""
@except:empty-key MSET a 1 "" 2
`
