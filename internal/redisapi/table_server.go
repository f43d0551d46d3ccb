package redisapi

import "slices"

// connectionCommands are the commands about the connection itself.
func connectionCommands() []*command {
	return []*command{
		{
			name: "ping", arity: -1, flags: flagFast, group: "connection", since: "1.0.0",
			usage:      "[message]",
			summary:    "Answer PONG, or the message",
			complexity: "O(1)",
			categories: "connection",
			tips:       "request_policy:all_shards response_policy:all_succeeded",
			parse:      parsePing, queued: true,
		},
		{
			name: "echo", arity: 2, flags: flagLoading | flagStale | flagFast, group: "connection", since: "1.0.0",
			usage:      "message",
			summary:    "Answer the message",
			complexity: "O(1)",
			categories: "connection",
			parse:      parseEcho, queued: true,
		},
		{
			name: "hello", arity: -1, flags: flagNoScript | flagLoading | flagStale | flagFast | flagNoAuth | flagAllowBusy, group: "connection", since: "6.0.0",
			usage:      "[2|3 [AUTH user token] [SETNAME name]]",
			summary:    "Choose the protocol version and authenticate",
			felix:      "AUTH as the command AUTH.",
			complexity: "O(1)",
			categories: "connection",
			parse:      parseHello,
		},
		{
			name: "auth", arity: -2, flags: flagNoScript | flagLoading | flagStale | flagFast | flagNoAuth | flagAllowBusy, group: "connection", since: "1.0.0",
			usage:      "user token",
			summary:    "Authenticate and select the cache that the user name says",
			felix:      "The user is tenant/namespace/cache, or default. Any token is accepted while authentication is off.",
			categories: "connection",
			parse:      parseAuth,
		},
		{
			name: "select", arity: 2, flags: flagLoading | flagStale | flagFast, group: "connection", since: "1.0.0",
			usage:      "0",
			summary:    "Select the database; there is only 0",
			felix:      "Any other database is out of range.",
			complexity: "O(1)",
			categories: "connection",
			parse:      parseSelect, queued: true,
		},
		{
			name: "reset", arity: 1, flags: flagNoScript | flagLoading | flagStale | flagFast | flagNoAuth | flagAllowBusy, group: "connection", since: "6.2.0",
			summary:    "Go back to how a connection starts",
			complexity: "O(1)",
			categories: "connection",
			unqueued:   true,
			parse:      parseReset,
		},
		{
			name: "quit", arity: -1, flags: flagNoScript | flagLoading | flagStale | flagFast | flagNoAuth | flagAllowBusy, group: "connection", since: "1.0.0",
			summary:    "Close the connection",
			complexity: "O(1)",
			categories: "connection",
			unqueued:   true,
			parse:      parseQuit,
		},
		{
			name: "client", arity: -2, flags: 0, group: "connection", since: "2.4.0",
			summary: "About connections",
			parse:   parseNever,
			subs:    slices.Concat(clientCommands(), ownClientCommands(), trackingCommands()),
		},
	}
}

// serverCommands are the commands about the server.
func serverCommands() []*command {
	return []*command{
		{
			name: "info", arity: -1, flags: flagLoading | flagStale, group: "server", since: "1.0.0",
			usage:      "[section ...]",
			summary:    "State and statistics of the server",
			felix:      "Says redis_version, for clients, and felix_version.",
			complexity: "O(1)",
			categories: "dangerous",
			tips:       "nondeterministic_output request_policy:all_shards response_policy:special",
			parse:      parseInfo,
		},
		{
			name: "time", arity: 1, flags: flagLoading | flagStale | flagFast, group: "server", since: "2.6.0",
			summary:    "The wall clock of the server",
			felix:      "Expiry follows the shard's clock, not this one.",
			complexity: "O(1)",
			tips:       "nondeterministic_output",
			parse:      parseTime, queued: true,
		},
		{
			name: "flushdb", arity: -1, flags: flagWrite, group: "server", since: "1.0.0",
			usage:      "[ASYNC|SYNC]",
			summary:    "Delete every key of the cache",
			felix:      "Atomic per shard. ASYNC and SYNC are the same.",
			categories: "keyspace dangerous",
			tips:       "request_policy:all_shards response_policy:all_succeeded",
			parse:      parseFlush,
		},
		{
			name: "flushall", arity: -1, flags: flagWrite, group: "server", since: "1.0.0",
			usage:      "[ASYNC|SYNC]",
			summary:    "Delete every key of the cache",
			felix:      "As FLUSHDB: a connection sees one cache.",
			categories: "keyspace dangerous",
			tips:       "request_policy:all_shards response_policy:all_succeeded",
			parse:      parseFlush,
		},
		{
			name: "wait", arity: 3, flags: flagNoScript, group: "generic", since: "3.0.0",
			usage:      "numreplicas timeout",
			summary:    "Wait for Redis replicas, of which there are none",
			felix:      "Answers 0 when the time is up, as a Redis without replicas, or the broker stops. Durability needs no WAIT.",
			complexity: "O(1)",
			categories: "connection",
			tips:       "request_policy:all_shards response_policy:agg_min",
			parse:      parseWait,
		},
		{
			name: "command", arity: -1, flags: flagLoading | flagStale, group: "server", since: "2.8.13",
			summary:    "About the commands",
			categories: "connection",
			tips:       "nondeterministic_output_order",
			parse:      parseCommand,
			subs:       commandCommands(),
		},
		{
			name: "config", arity: -2, flags: 0, group: "server", since: "2.0.0",
			summary: "Settings",
			parse:   parseNever,
			subs:    configCommands(),
		},
		{
			name: "cluster", arity: -2, flags: 0, group: "cluster", since: "3.0.0",
			summary: "Redis Cluster, which is off",
			felix:   "Answers that cluster support is disabled.",
			parse:   parseNever, subs: clusterCommands(),
		},
	}
}

// clientCommands are the subcommands of CLIENT about connections.
func clientCommands() []*command {
	return []*command{
		{
			name: "id", arity: 2, flags: flagNoScript | flagLoading | flagStale, since: "5.0.0",
			summary:    "The id of the connection",
			categories: "connection",
			parse:      parseClientID, queued: true,
		},
		{
			name: "info", arity: 2, flags: flagNoScript | flagLoading | flagStale, since: "6.2.0",
			summary:    "About this connection",
			categories: "connection",
			tips:       "nondeterministic_output",
			parse:      parseClientInfo,
		},
		{
			name: "list", arity: -2, flags: flagAdmin | flagNoScript | flagLoading | flagStale, since: "2.4.0",
			usage:      "[TYPE type | ID id ...]",
			summary:    "About all connections",
			categories: "connection",
			tips:       "nondeterministic_output",
			parse:      parseClientList,
		},
		{
			name: "kill", arity: -3, flags: flagAdmin | flagNoScript | flagLoading | flagStale, since: "2.4.0",
			usage:      "ip:port | [ID id] [ADDR ip:port] [TYPE type] [USER user] [SKIPME YES|NO]",
			summary:    "Close connections",
			felix:      "A killed connection is closed when it sends its next request.",
			categories: "connection",
			parse:      parseClientKill,
		},
	}
}

// ownClientCommands are the subcommands of CLIENT about the own connection.
func ownClientCommands() []*command {
	return []*command{
		{
			name: "getname", arity: 2, flags: flagNoScript | flagLoading | flagStale, since: "2.6.9",
			summary:    "The name of the connection",
			categories: "connection",
			parse:      parseClientGetname, queued: true,
		},
		{
			name: "setname", arity: 3, flags: flagNoScript | flagLoading | flagStale, since: "2.6.9",
			usage:      "name",
			summary:    "Name the connection",
			categories: "connection",
			parse:      parseClientSetname,
		},
		{
			name: "reply", arity: 3, flags: flagNoScript | flagLoading | flagStale, since: "3.2.0",
			usage:      "ON|OFF|SKIP",
			summary:    "Whether commands are answered",
			categories: "connection",
			parse:      parseClientReply,
		},
		{
			name: "no-evict", arity: 3, flags: flagAdmin | flagNoScript | flagLoading | flagStale, since: "7.0.0",
			usage:      "ON|OFF",
			summary:    "Accepted, no effect",
			categories: "connection",
			parse:      parseClientFlag(func(a *about, on bool) { a.noEvict = on }),
		},
		{
			name: "setinfo", arity: 4, flags: flagNoScript | flagLoading | flagStale, since: "7.2.0",
			usage:      "LIB-NAME name | LIB-VER version",
			summary:    "Name the client library",
			categories: "connection",
			parse:      parseClientSetinfo,
		},
		{
			name: "no-touch", arity: 3, flags: flagNoScript | flagLoading | flagStale, since: "7.2.0",
			usage:      "ON|OFF",
			summary:    "Accepted, no effect",
			categories: "connection",
			parse:      parseClientFlag(func(*about, bool) {}),
		},
	}
}

// trackingCommands are the subcommands of CLIENT about client-side caching, and its help.
func trackingCommands() []*command {
	return []*command{
		{
			name: "tracking", arity: -3, flags: flagNoScript | flagLoading | flagStale, since: "6.0.0",
			usage:      "ON|OFF [OPTIN] [NOLOOP]",
			summary:    "Client-side caching",
			felix:      "Only OFF and ON OPTIN, under which nothing is cached unless CLIENT CACHING YES, which is refused, allows it.",
			categories: "connection",
			parse:      parseClientTracking,
		},
		{
			name: "trackinginfo", arity: 2, flags: flagNoScript | flagLoading | flagStale, since: "6.2.0",
			summary:    "The state of client-side caching",
			categories: "connection",
			parse:      parseClientTrackinginfo,
		},
		{
			name: "caching", arity: 3, flags: flagNoScript | flagLoading | flagStale, since: "6.0.0",
			usage:      "YES|NO",
			summary:    "Track the keys of the next command",
			felix:      "Refused: client-side caching is not supported.",
			categories: "connection",
			parse:      parseClientCaching,
		},
		{
			name: "getredir", arity: 2, flags: flagNoScript | flagLoading | flagStale, since: "6.0.0",
			summary:    "Where invalidations are redirected to",
			categories: "connection",
			parse:      parseClientGetredir,
		},
		{
			name: "unblock", arity: -3, flags: flagAdmin | flagNoScript | flagLoading | flagStale, since: "5.0.0",
			usage:      "id [TIMEOUT|ERROR]",
			summary:    "End a blocking command, of which there are none",
			categories: "connection",
			parse:      parseClientUnblock,
		},
		{
			name: "help", arity: 2, flags: flagLoading | flagStale, since: "5.0.0",
			summary:    "The subcommands",
			categories: "connection",
			parse:      parseHelp,
		},
	}
}

// commandCommands are the subcommands of COMMAND.
func commandCommands() []*command {
	return []*command{
		{
			name: "count", arity: 2, flags: flagLoading | flagStale, since: "2.8.13",
			summary:    "How many commands there are",
			categories: "connection",
			parse:      parseCommandCount,
		},
		{
			name: "info", arity: -2, flags: flagLoading | flagStale, since: "2.8.13",
			usage:      "[name ...]",
			summary:    "Properties of commands",
			categories: "connection",
			tips:       "nondeterministic_output_order",
			parse:      parseCommandInfo,
		},
		{
			name: "docs", arity: -2, flags: flagLoading | flagStale, since: "7.0.0",
			usage:      "[name ...]",
			summary:    "Documentation of commands",
			categories: "connection",
			tips:       "nondeterministic_output_order",
			parse:      parseCommandDocs,
		},
		{
			name: "list", arity: -2, flags: flagLoading | flagStale, since: "7.0.0",
			usage:      "[FILTERBY MODULE name|ACLCAT category|PATTERN pattern]",
			summary:    "Names of commands",
			categories: "connection",
			tips:       "nondeterministic_output_order",
			parse:      parseCommandList,
		},
		{
			name: "getkeys", arity: -4, flags: flagLoading | flagStale, since: "2.8.13",
			usage:      "command [arg ...]",
			summary:    "The keys among the arguments of a command",
			categories: "connection",
			parse:      parseCommandGetkeys(false),
		},
		{
			name: "getkeysandflags", arity: -4, flags: flagLoading | flagStale, since: "7.0.0",
			usage:      "command [arg ...]",
			summary:    "The keys among the arguments of a command, and their use",
			categories: "connection",
			parse:      parseCommandGetkeys(true),
		},
		{
			name: "help", arity: 2, flags: flagLoading | flagStale, since: "5.0.0",
			summary:    "The subcommands",
			categories: "connection",
			parse:      parseHelp,
		},
	}
}

// configCommands are the subcommands of CONFIG.
func configCommands() []*command {
	return []*command{
		{
			name: "get", arity: -3, flags: flagAdmin | flagNoScript | flagLoading | flagStale, since: "2.0.0",
			usage:   "pattern [pattern ...]",
			summary: "The values of settings",
			felix:   "A few settings that clients ask for.",
			parse:   parseConfigGet,
		},
		{
			name: "help", arity: 2, flags: flagLoading | flagStale, since: "5.0.0",
			summary: "The subcommands",
			parse:   parseHelp,
		},
	}
}

// clusterCommands are the subcommands of CLUSTER: known, so that wrong ones are
// told apart as Redis does, and all answered the same.
func clusterCommands() []*command {
	const admin = flagNoAsyncLoading | flagAdmin | flagStale
	subs := []*command{
		{name: "addslots", arity: -3, flags: admin, since: "3.0.0"},
		{name: "addslotsrange", arity: -4, flags: admin, since: "7.0.0"},
		{name: "bumpepoch", arity: 2, flags: admin, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "count-failure-reports", arity: 3, flags: flagAdmin | flagStale, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "countkeysinslot", arity: 3, flags: flagStale, since: "3.0.0"},
		{name: "delslots", arity: -3, flags: admin, since: "3.0.0"},
		{name: "delslotsrange", arity: -4, flags: admin, since: "7.0.0"},
		{name: "failover", arity: -2, flags: admin, since: "3.0.0"},
		{name: "flushslots", arity: 2, flags: admin, since: "3.0.0"},
		{name: "forget", arity: 3, flags: admin, since: "3.0.0"},
		{name: "getkeysinslot", arity: 4, flags: flagStale, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "help", arity: 2, flags: flagLoading | flagStale, since: "5.0.0"},
		{name: "info", arity: 2, flags: flagStale, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "keyslot", arity: 3, flags: flagStale, since: "3.0.0"},
		{name: "links", arity: 2, flags: flagStale, since: "7.0.0", tips: "nondeterministic_output"},
		{name: "meet", arity: -4, flags: admin, since: "3.0.0"},
		{name: "myid", arity: 2, flags: flagStale, since: "3.0.0"},
		{name: "nodes", arity: 2, flags: flagStale, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "replicas", arity: 3, flags: flagAdmin | flagStale, since: "5.0.0", tips: "nondeterministic_output"},
		{name: "replicate", arity: 3, flags: admin, since: "3.0.0"},
		{name: "reset", arity: -2, flags: flagAdmin | flagNoScript | flagStale, since: "3.0.0"},
		{name: "saveconfig", arity: 2, flags: admin, since: "3.0.0"},
		{name: "set-config-epoch", arity: 3, flags: admin, since: "3.0.0"},
		{name: "setslot", arity: -4, flags: admin, since: "3.0.0"},
		{name: "shards", arity: 2, flags: flagStale, since: "7.0.0", tips: "nondeterministic_output"},
		{name: "slaves", arity: 3, flags: flagAdmin | flagStale, since: "3.0.0", tips: "nondeterministic_output"},
		{name: "slots", arity: 2, flags: flagStale, since: "3.0.0", tips: "nondeterministic_output"},
	}
	for _, sub := range subs {
		sub.summary, sub.parse = "Answers that cluster support is disabled", parseCluster
	}
	return subs
}
