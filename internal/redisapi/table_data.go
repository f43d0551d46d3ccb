package redisapi

import "github.com/felix-go/felix"

// stringCommands are the commands on values and counters.
func stringCommands() []*command {
	return []*command{
		{
			name: "get", arity: 2, flags: flagReadonly | flagFast, group: "string", since: "1.0.0",
			usage:      "key",
			summary:    "The value of a key",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseGet,
		},
		{
			name: "set", arity: -3, flags: flagWrite | flagDenyOOM, group: "string", since: "1.0.0",
			usage:      "key value [NX|XX] [GET] [EX seconds|PX milliseconds|EXAT unix-seconds|PXAT unix-milliseconds|KEEPTTL]",
			summary:    "Set a key",
			felix:      "A value of a canonical 64-bit integer is stored as the counter of that key.",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update variable_flags", notes: "RW and ACCESS due to the optional `GET` argument", flagsOf: setKeyFlags},
			needsCache: true,
			parse:      parseSet,
		},
		{
			name: "setnx", arity: 3, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key value",
			summary:    "Set a key if it does not exist",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "OW insert"},
			needsCache: true,
			parse:      parseSetnx,
		},
		{
			name: "setex", arity: 4, flags: flagWrite | flagDenyOOM, group: "string", since: "2.0.0",
			usage:      "key seconds value",
			summary:    "Set a key with a time to live in seconds",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "OW update"},
			needsCache: true,
			parse:      parseSetex,
		},
		{
			name: "psetex", arity: 4, flags: flagWrite | flagDenyOOM, group: "string", since: "2.6.0",
			usage:      "key milliseconds value",
			summary:    "Set a key with a time to live in milliseconds",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "OW update"},
			needsCache: true,
			parse:      parseSetex,
		},
	}
}

// swapCommands are those that answer a value and change its key.
func swapCommands() []*command {
	return []*command{
		{
			name: "getset", arity: 3, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key value",
			summary:    "Set a key and answer its old value",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
			needsCache: true,
			parse:      parseGetset,
		},
		{
			name: "getdel", arity: 2, flags: flagWrite | flagFast, group: "string", since: "6.2.0",
			usage:      "key",
			summary:    "Delete a key and answer its value",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access delete"},
			needsCache: true,
			parse:      parseGetdel,
		},
		{
			name: "getex", arity: -2, flags: flagWrite | flagFast, group: "string", since: "6.2.0",
			usage:      "key [EX seconds|PX milliseconds|EXAT unix-seconds|PXAT unix-milliseconds|PERSIST]",
			summary:    "Answer the value of a key and change its expiry",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update", notes: "RW and UPDATE because it changes the TTL"},
			needsCache: true,
			parse:      parseGetex,
		},
	}
}

// counterCommands are those on numbers.
func counterCommands() []*command {
	return []*command{
		{
			name: "incr", arity: 2, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key",
			summary:    "Add 1",
			felix:      "The sum is on disk on a majority of replicas when it is answered (quorum caches).",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
			needsCache: true,
			parse:      parseIncr,
		},
		{
			name: "incrby", arity: 3, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key increment",
			summary:    "Add a number",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
			needsCache: true,
			parse:      parseIncrby,
		},
		{
			name: "decr", arity: 2, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key",
			summary:    "Subtract 1",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
			needsCache: true,
			parse:      parseDecr,
		},
		{
			name: "decrby", arity: 3, flags: flagWrite | flagDenyOOM | flagFast, group: "string", since: "1.0.0",
			usage:      "key decrement",
			summary:    "Subtract a number",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW access update"},
			needsCache: true,
			parse:      parseDecrby,
		},
	}
}

// manyCommands are those on several keys, and the length of one.
func manyCommands() []*command {
	return []*command{
		{
			name: "mset", arity: -3, flags: flagWrite | flagDenyOOM, group: "string", since: "1.0.1",
			usage:      "key value [key value ...]",
			summary:    "Set several keys",
			felix:      "Keys on different shards are not changed in one atomic step.",
			complexity: "O(N) where N is the number of keys",
			categories: "string",
			tips:       "request_policy:multi_shard response_policy:all_succeeded",
			keys:       keySpec{first: 1, last: -1, step: 2, flags: "OW update"},
			needsCache: true,
			parse:      parseMset,
		},
		{
			name: "mget", arity: -2, flags: flagReadonly | flagFast, group: "string", since: "1.0.0",
			usage:      "key [key ...]",
			summary:    "The values of the keys",
			felix:      "At most 256 MiB of values.",
			complexity: "O(N) where N is the number of keys",
			categories: "string",
			tips:       "request_policy:multi_shard",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseMget,
		},
		{
			name: "strlen", arity: 2, flags: flagReadonly | flagFast, group: "string", since: "2.2.0",
			usage:      "key",
			summary:    "The length of a value",
			complexity: "O(1)",
			categories: "string",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO"},
			needsCache: true,
			parse:      parseStrlen,
		},
	}
}

// keyCommands are the commands on keys.
func keyCommands() []*command {
	return []*command{
		{
			name: "del", arity: -2, flags: flagWrite, group: "generic", since: "1.0.0",
			usage:      "key [key ...]",
			summary:    "Delete keys",
			felix:      "Keys on different shards are not deleted in one atomic step.",
			complexity: "O(N) where N is the number of keys",
			categories: "keyspace",
			tips:       "request_policy:multi_shard response_policy:agg_sum",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RM delete"},
			needsCache: true,
			parse:      parseDel,
		},
		{
			name: "unlink", arity: -2, flags: flagWrite | flagFast, group: "generic", since: "4.0.0",
			usage:      "key [key ...]",
			summary:    "Delete keys",
			felix:      "As DEL.",
			complexity: "O(N) where N is the number of keys",
			categories: "keyspace",
			tips:       "request_policy:multi_shard response_policy:agg_sum",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RM delete"},
			needsCache: true,
			parse:      parseDel,
		},
		{
			name: "exists", arity: -2, flags: flagReadonly | flagFast, group: "generic", since: "1.0.0",
			usage:      "key [key ...]",
			summary:    "How many of the keys exist",
			complexity: "O(N) where N is the number of keys",
			categories: "keyspace",
			tips:       "request_policy:multi_shard response_policy:agg_sum",
			keys:       keySpec{first: 1, last: -1, step: 1, flags: "RO"},
			needsCache: true,
			parse:      parseExists,
		},
		{
			name: "type", arity: 2, flags: flagReadonly | flagFast, group: "generic", since: "1.0.0",
			usage:      "key",
			summary:    "The type of a key: string or none",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO"},
			needsCache: true,
			parse:      parseType,
		},
	}
}

// listCommands are those that list and count keys.
func listCommands() []*command {
	return []*command{
		{
			name: "scan", arity: -2, flags: flagReadonly, group: "generic", since: "2.8.0",
			usage:      "cursor [MATCH pattern] [COUNT count] [TYPE type]",
			summary:    "List keys in steps",
			felix:      "A cursor that was forgotten (the server keeps 16,384) or is of another cache is an error. COUNT is at most 10,000. TYPE: every key is a string.",
			categories: "keyspace",
			tips:       "nondeterministic_output request_policy:special",
			parse:      parseScan,
		},
		{
			name: "keys", arity: 2, flags: flagReadonly, group: "generic", since: "1.0.0",
			usage:      "pattern",
			summary:    "All keys that match",
			felix:      "At most 64 MiB of keys.",
			complexity: "O(N) where N is the number of keys",
			categories: "keyspace dangerous",
			tips:       "request_policy:all_shards nondeterministic_output_order",
			parse:      parseKeys,
		},
		{
			name: "dbsize", arity: 1, flags: flagReadonly | flagFast, group: "server", since: "1.0.0",
			summary:    "The number of keys",
			felix:      "Expired keys count until they are swept, as in Redis.",
			complexity: "O(1)",
			categories: "keyspace",
			tips:       "request_policy:all_shards response_policy:agg_sum",
			parse:      parseDbsize,
		},
	}
}

// expiryCommands are those on the life of keys.
func expiryCommands() []*command {
	return []*command{
		{
			name: "expire", arity: -3, flags: flagWrite | flagFast, group: "generic", since: "1.0.0",
			usage:      "key seconds [NX|XX|GT|LT]",
			summary:    "Set the time to live in seconds",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW update"},
			needsCache: true,
			parse:      parseExpire(felix.TTLIn, 1000),
		},
		{
			name: "pexpire", arity: -3, flags: flagWrite | flagFast, group: "generic", since: "2.6.0",
			usage:      "key milliseconds [NX|XX|GT|LT]",
			summary:    "Set the time to live in milliseconds",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW update"},
			needsCache: true,
			parse:      parseExpire(felix.TTLIn, 1),
		},
		{
			name: "expireat", arity: -3, flags: flagWrite | flagFast, group: "generic", since: "1.2.0",
			usage:      "key unix-seconds [NX|XX|GT|LT]",
			summary:    "Set when a key expires, in Unix seconds",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW update"},
			needsCache: true,
			parse:      parseExpire(felix.TTLAt, 1000),
		},
		{
			name: "pexpireat", arity: -3, flags: flagWrite | flagFast, group: "generic", since: "2.6.0",
			usage:      "key unix-milliseconds [NX|XX|GT|LT]",
			summary:    "Set when a key expires, in Unix milliseconds",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW update"},
			needsCache: true,
			parse:      parseExpire(felix.TTLAt, 1),
		},
	}
}

// lifetimeCommands are those that ask for it.
func lifetimeCommands() []*command {
	return []*command{
		{
			name: "ttl", arity: 2, flags: flagReadonly | flagFast, group: "generic", since: "1.0.0",
			usage:      "key",
			summary:    "The rest of the time to live in seconds; -1 is forever, -2 no key",
			complexity: "O(1)",
			categories: "keyspace",
			tips:       "nondeterministic_output",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseLifetime(renderTTL),
		},
		{
			name: "pttl", arity: 2, flags: flagReadonly | flagFast, group: "generic", since: "2.6.0",
			usage:      "key",
			summary:    "The rest of the time to live in milliseconds; -1 is forever, -2 no key",
			complexity: "O(1)",
			categories: "keyspace",
			tips:       "nondeterministic_output",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseLifetime(renderPTTL),
		},
		{
			name: "expiretime", arity: 2, flags: flagReadonly | flagFast, group: "generic", since: "7.0.0",
			usage:      "key",
			summary:    "When the key expires in Unix seconds; -1 is never, -2 no key",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseLifetime(renderExpireAt),
		},
		{
			name: "pexpiretime", arity: 2, flags: flagReadonly | flagFast, group: "generic", since: "7.0.0",
			usage:      "key",
			summary:    "When the key expires in Unix milliseconds; -1 is never, -2 no key",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RO access"},
			needsCache: true,
			parse:      parseLifetime(renderPExpireAt),
		},
		{
			name: "persist", arity: 2, flags: flagWrite | flagFast, group: "generic", since: "2.2.0",
			usage:      "key",
			summary:    "Take the expiry away",
			complexity: "O(1)",
			categories: "keyspace",
			keys:       keySpec{first: 1, last: 1, step: 1, flags: "RW update"},
			needsCache: true,
			parse:      parsePersist,
		},
	}
}
