// Package store keeps the state of shards: the live records of each in one
// in-memory table, and all of them in one Pebble without a WAL, which
// checkpoints bring up to date. The Raft log is the write-ahead log.
//
// A Table belongs to its shard's goroutine. A DB is shared by all shards and
// safe for concurrent use. What is in the table is newer than, or the same as,
// what the DB holds for the same key; what the table does not hold, the DB
// does.
//
// The life of a record: the owner evaluates an operation and Stages the new
// cell as in flight; when its log entry is committed and on the local disk,
// Apply makes it the applied one and the entry dirty; a checkpoint captures
// dirty cells, all as they were at one applied index, and writes them; then the
// entry is clean and may be evicted.
package store
