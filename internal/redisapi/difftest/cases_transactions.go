package difftest

import "strings"

// transactionScript: keys of a transaction have the same {tag}, since Felix wants them on one shard.
var transactionScript = `
# no transaction
EXEC
DISCARD
UNWATCH
MULTI x
EXEC
WATCH
WATCH a
UNWATCH
UNWATCH x

# transaction of nothing
MULTI
EXEC
MULTI
DISCARD
MULTI
MULTI
WATCH a
EXEC
EXEC
DISCARD

# transaction with errors
MULTI
NOSUCH
EXEC
MULTI
GET
DISCARD
MULTI
CLIENT BOGUS
EXEC
MULTI
EXEC x
EXEC
MULTI
INCR n
MSET {t}a 1 {t}b 2
PING
UNWATCH
NOSUCH
SET n 5
EXEC
EXEC
MGET n {t}a {t}b
INCR n

# transaction of what cannot be queued here
MULTI
@except:unqueued FLUSHALL
@except:unqueued EXEC
MULTI
INCR n
@except:unqueued CLIENT SETNAME x
@except:unqueued EXEC
@except:unqueued GET n

# transaction discarded
MULTI
INCR n
SET n 5
DISCARD
GET n
INCR n
MULTI
INCR n
RESET
EXEC
INCR n

# transaction of strings
MULTI
SET {t}a 1
INCR {t}a
INCRBY {t}a 40
GET {t}a
SET {t}s text
GETSET {t}s other
MGET {t}a {t}s {t}none
MSET {t}x 1 {t}y two
EXISTS {t}a {t}s {t}none {t}a
STRLEN {t}y
TYPE {t}y
TYPE {t}none
DEL {t}x {t}none {t}a
GETDEL {t}y
GETDEL {t}y
SETNX {t}s x
SETNX {t}z x
SET {t}s v NX
SET {t}s v XX GET
GET {t}none
APPENDX {t}s v
EXEC
MULTI
SET {t}a 1
INCR {t}a
INCRBY {t}a 40
GET {t}a
SET {t}s text
GETSET {t}s other
MGET {t}a {t}s {t}none
MSET {t}x 1 {t}y two
EXISTS {t}a {t}s {t}none {t}a
STRLEN {t}y
TYPE {t}y
TYPE {t}none
DEL {t}x {t}none {t}a
GETDEL {t}y
GETDEL {t}y
SETNX {t}s x
SETNX {t}z x
SET {t}s v NX
SET {t}s v XX GET
GET {t}none
PING
PING hello
ECHO word
SELECT 0
SELECT 1
UNWATCH
CLIENT GETNAME
EXEC
MULTI
TIME
CLIENT ID
@kind EXEC
MGET {t}a {t}s {t}x {t}y {t}z

# transaction of errors
SET {t}s text
SET {t}max 9223372036854775807
MULTI
INCR {t}s
INCR {t}max
INCR {t}n
INCRBY {t}n x
SET {t}n
SET {t}n 5 EX 0
SET {t}n 5 BOGUS
EXPIRE {t}n x
EXEC
MULTI
INCR {t}s
INCR {t}max
INCR {t}n
INCRBY {t}n x
SET {t}n 5 EX 0
SET {t}n 5 BOGUS
EXPIRE {t}n x
GETEX {t}n BOGUS
INCR {t}n
EXEC
GET {t}n

# transaction with expiries
MULTI
SET {t}a 1 EX 100
INCR {t}a
TTL {t}a
EXPIRE {t}a 50
TTL {t}a
PERSIST {t}a
PERSIST {t}a
TTL {t}a
EXPIRE {t}none 5
PEXPIREAT {t}a 1
GET {t}a
EXEC
GET {t}a

# transaction
MULTI
SET other v
EXEC
INCR n
EXEC

# transaction of many
MULTI
` + strings.Repeat("INCR other\n", 200) + `
EXEC
GET other
MULTI
` + strings.Repeat("INCR other\n", 200) + `
NOSUCH
EXEC
GET other

# silent transaction
@none CLIENT REPLY OFF
@none MULTI
@none INCR n
@none NOSUCH
@none EXEC
@none DISCARD
@none MULTI
@none INCR n
@none EXEC
RESET
GET n

# watch what stays
SET {t}a 1
WATCH {t}a {t}none {t}a
WATCH {t}a
GET {t}a
SET {t}other 1
MULTI
INCR {t}a
SET {t}none x
EXEC
MGET {t}a {t}none

# watch what is changed
SET {t}a 1
WATCH {t}a
INCR {t}a
MULTI
INCR {t}a
PING
EXEC
GET {t}a
MULTI
INCR {t}a
EXEC

# watch what is written the same
SET {t}a 1
WATCH {t}a
SET {t}a 1
MULTI
EXEC
WATCH {t}a
INCRBY {t}a 0
MULTI
EXEC
WATCH {t}a
PERSIST {t}a
SETNX {t}a 7
MULTI
EXEC

# watch what is made
WATCH {t}none
SET {t}none x
MULTI
GET {t}none
EXEC
WATCH {t}made
INCR {t}made
MULTI
EXEC

# watch what is deleted
SET {t}a 1
WATCH {t}a
DEL {t}a
MULTI
SET {t}a 5
EXEC
GET {t}a
SET {t}a text
WATCH {t}a
DEL {t}a
SET {t}a text
MULTI
EXEC
WATCH {t}none
DEL {t}none
MULTI
EXEC
SET {t}a 1
WATCH {t}a
FLUSHALL
MULTI
EXEC

# watch what becomes another kind
SET {t}a 1
WATCH {t}a
SET {t}a text
MULTI
EXEC
WATCH {t}a
SET {t}a 2
MULTI
EXEC

# watch what expires
SET {t}a 1 PX 60
WATCH {t}a
@sleep:120
MULTI
SET {t}b 1
EXEC
GET {t}b
SET {t}a 1
WATCH {t}a
EXPIRE {t}a 100
MULTI
EXEC

# watches are forgotten
SET {t}a 1
WATCH {t}a
UNWATCH
INCR {t}a
MULTI
INCR {t}a
EXEC
WATCH {t}a
INCR {t}a
MULTI
DISCARD
MULTI
INCR {t}a
EXEC
WATCH {t}a
INCR {t}a
MULTI
NOSUCH
EXEC
MULTI
INCR {t}a
EXEC
WATCH {t}a
INCR {t}a
RESET
MULTI
INCR {t}a
EXEC
WATCH {t}a
INCR {t}a
EXEC
MULTI
INCR {t}a
UNWATCH
EXEC
GET {t}a
`
