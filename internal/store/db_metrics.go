package store

import "github.com/cockroachdb/pebble/v2"

// PebbleMetrics are the database's own figures: levels, compactions, cache.
// They are a copy.
func (db *DB) PebbleMetrics() *pebble.Metrics { return db.kv.Metrics() }

// DiskBytes is what the state takes on disk, with files that are about to be
// removed.
func (db *DB) DiskBytes() uint64 { return db.kv.Metrics().DiskSpaceUsage() }
