package difftest

const expiryScript = `
# expire
EXPIRE k 100
SET k v
EXPIRE k 100
@near:1 TTL k
EXPIRE k 200
@near:1 TTL k
PEXPIRE k 300000
@near:300 PTTL k
EXPIREAT k $NOW+400
EXPIRETIME k
PEXPIRETIME k
PEXPIREAT k $NOWMS+500321
PEXPIRETIME k
EXPIRETIME k
@near:1 TTL k
PERSIST k
TTL k
PERSIST k
PERSIST missing

# no key, no expiry
TTL k
PTTL k
EXPIRETIME k
PEXPIRETIME k
PERSIST k
SET k v
TTL k
PTTL k
EXPIRETIME k
PEXPIRETIME k

# expire in the past deletes
SET k v
EXPIRE k -1
EXISTS k
TTL k
SET k v
EXPIRE k 0
GET k
SET k v
PEXPIRE k -1
GET k
SET k 5
EXPIREAT k 1
GET k
SET k v
PEXPIREAT k 0
GET k
SET k v
EXPIREAT k -9223372036854775
GET k
SET k v
PEXPIRE k -9223372036854775808
EXISTS k
EXPIRE k -1
SET k v
EXPIRE k -9223372036854775
EXISTS k
INCR k
TTL k

# expire bad numbers
SET k v
EXPIRE k x
EXPIRE k ""
EXPIRE k 1.5
EXPIRE k 9223372036854775808
EXPIRE k 9223372036854775807
EXPIRE k -9223372036854775808
EXPIRE k 9223372036854776
EXPIRE k -9223372036854776
PEXPIRE k 9223372036854775807
EXPIREAT k 9223372036854775807
EXPIREAT k -9223372036854775808
PEXPIREAT k x
EXPIRE missing x
EXPIRE missing 9223372036854775807
EXPIRE missing -9223372036854775808
TTL k
GET k

# expire nx
SET k v
EXPIRE k 100 NX
EXPIRE k 200 NX
@near:1 TTL k
EXPIRE k -1 NX
EXISTS k
EXPIRE missing 100 NX
PERSIST k
EXPIRE k -1 NX
EXISTS k

# expire xx
SET k v
EXPIRE k 100 XX
TTL k
EXPIRE k 100
EXPIRE k 200 XX
@near:1 TTL k
EXPIRE missing 100 XX
EXPIRE k -1 XX
EXISTS k

# expire gt
SET k v
EXPIRE k 100 GT
TTL k
EXPIREAT k $NOW+1000
EXPIREAT k $NOW+1000 GT
EXPIREAT k $NOW+999 GT
EXPIRETIME k
EXPIREAT k $NOW+2000 GT
EXPIRETIME k
EXPIRE k -1 GT
EXISTS k
EXPIRE missing 100 GT

# expire lt
SET k v
EXPIREAT k $NOW+1000 LT
EXPIRETIME k
EXPIREAT k $NOW+1000 LT
EXPIREAT k $NOW+2000 LT
EXPIRETIME k
EXPIREAT k $NOW+500 LT
EXPIRETIME k
EXPIRE missing 100 LT
EXPIRE k -1 LT
EXISTS k
SET k v
EXPIRE k -1 LT
EXISTS k

# expire conditions together
SET k v
EXPIRE k 100 NX XX
EXPIRE k 100 NX GT
EXPIRE k 100 NX LT
EXPIRE k 100 GT LT
EXPIRE k 100 XX GT LT
EXPIRE k 100 NX NX
EXPIRE k 1000 XX GT
@near:1 TTL k
EXPIRE k 5000 xx gt
@near:1 TTL k
EXPIRE k 50 xx lt
@near:1 TTL k
EXPIRE k 100 BOGUS
EXPIRE k 100 NX BOGUS
EXPIRE k x BOGUS
EXPIRE k x NX XX
EXPIRE k 100 ""
EXPIRE missing 100 NX XX
PEXPIRE k 100000 NX XX
EXPIREAT k $NOW+100 Nope
PEXPIREAT k $NOWMS+100 GT LT
EXPIRE k 100 "a\r\nb"
EXPIRE k 100 "x\n"
EXPIRE k 100 "x\r\n\r\n"
EXPIRE k 100 "\n"
EXPIRE k 100 "\nx"

# expiry of a number
INCR n
EXPIRE n 1000
INCR n
@near:1 TTL n
PERSIST n
INCR n
TTL n
EXPIRE n 0
INCR n

# expires in time
SET k v PX 40
SET n 5 PX 40
SET keep w PX 100000
EXISTS k n keep
@sleep:80
GET k
GET n
EXISTS k n keep
TTL k
STRLEN k
TYPE k
SETNX k again
INCR n
TTL n
GETSET keep x
EXPIRE gone 10
DEL k n keep

# expires in time by expire
SET k v
PEXPIRE k 30
INCR n
PEXPIRE n 30
@sleep:70
MGET k n
DEL k n
PERSIST k
SET k v XX
SET k v NX
GETDEL n
GETEX n EX 5
@sort KEYS *
`

const keyspaceScript = `
# del
DEL a
MSET a 1 b 2 c x
DEL a b nope
DEL c c c
EXISTS a b c
UNLINK a
MSET a 1 b 2
UNLINK a b b
DEL

# exists
EXISTS a
SET a 1
EXISTS a
EXISTS a a a b
EXISTS

# type
TYPE a
SET a x
TYPE a
SET a 5
TYPE a

# keys
KEYS *
MSET one 1 two 2 three 3 four 4 f?ur 5 f*ur 6 "f[ur" 7 f\\ur 8
@sort KEYS *
@sort KEYS t*
@sort KEYS *o*
@sort KEYS t??
@sort KEYS f[aeo]ur
@sort KEYS f[^o]ur
@sort KEYS f[a-z]ur
@sort KEYS f[z-a]ur
@sort KEYS f\\?ur
@sort KEYS f\\*ur
@sort KEYS f\\[ur
@sort KEYS f[*]ur
@sort KEYS "f[*?]ur"
@sort KEYS f[
@sort KEYS f[ur
@sort KEYS f[^
@sort KEYS f[\\?]ur
@sort KEYS ***
@sort KEYS f**r
@sort KEYS ?
@sort KEYS ""
@sort KEYS one
@sort KEYS on
@sort KEYS ONE
@sort KEYS f[a-
@sort KEYS f[]ur
@sort KEYS f[^]ur
@sort KEYS [tf]*[re]
KEYS
KEYS a b

# keys with high bytes
MSET "\x80" 1 "\xff" 2 "a\x90b" 3
@sort KEYS "[\x7f-\x81]"
@sort KEYS "[\x80-\xff]"
@sort KEYS "a[^a]b"
@sort KEYS "?"
@sort KEYS "\x80*"

# dbsize
DBSIZE
SET a 1
DBSIZE
INCR a
INCR b
DBSIZE
DEL a
DBSIZE
DBSIZE x

# flush
MSET a 1 b 2
FLUSHDB
EXISTS a b
DBSIZE
SET a 1
FLUSHDB ASYNC
DBSIZE
SET a 1
flushdb sync
DBSIZE
FLUSHDB BOGUS
FLUSHDB SYNC ASYNC
SET a 1
FLUSHALL
DBSIZE
FLUSHALL async
FLUSHALL nope
GET a
INCR a

# scan small
SCAN 0
MSET a 1 b 2 c x
@sort SCAN 0
@sort SCAN 0 COUNT 100
@sort scan 0 count 100 match [ab]
@sort SCAN 0 MATCH * COUNT 100
@sort SCAN 0 TYPE string COUNT 100
@sort SCAN 0 TYPE STRING COUNT 100
SCAN 0 TYPE list COUNT 100
SCAN 0 TYPE nosuch COUNT 100
SCAN 0 MATCH none COUNT 100
SCAN 0 MATCH "" COUNT 100
@sort SCAN 0 MATCH a COUNT 5 COUNT 100
@sort SCAN 0 MATCH b MATCH a COUNT 100

# scan bad
SCAN
SCAN x
SCAN 1x
SCAN " 1"
SCAN 0 COUNT
SCAN 0 COUNT 0
SCAN 0 COUNT -1
SCAN 0 COUNT x
SCAN 0 COUNT 1.5
SCAN 0 MATCH
SCAN 0 TYPE
SCAN 0 BOGUS
SCAN 0 BOGUS 5
SCAN 0 COUNT 10 BOGUS
SCAN 0 COUNT x BOGUS y
SCAN 99999999999999999999999
SCAN 1.5
SCAN x COUNT y
SCAN 00
@except:cursor SCAN 77
@except:cursor-syntax SCAN ""
@except:cursor-syntax SCAN -1
@except:cursor-syntax SCAN +1

# counters and values side by side
SET a 5
SET b five
INCR a
INCR b
MGET a b
SET a five
SET b 5
INCR a
INCR b
DBSIZE
@sort KEYS *
DEL a b

# long pipelines stay in order
SET k 0
INCR k
GET k
INCR k
PING
INCR k
ECHO x
GET k
DBSIZE
INCR k
NOSUCH
INCR k
DEL k
DBSIZE
INCR k
GET k
SCAN 0
INCR k
KEYS *
`
