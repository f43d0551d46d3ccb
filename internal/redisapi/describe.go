package redisapi

import (
	"slices"
	"strings"

	"github.com/felix-go/felix/internal/resp"
)

// categoryOrder is the order of Redis's ACL categories in its replies, those
// that commands here are of.
var categoryOrder = [...]string{
	"keyspace", "read", "write", "string", "admin", "fast", "slow", "dangerous", "connection", "transaction",
}

// aclCategories are the command's own and those that its flags imply.
func (c *command) aclCategories() []string {
	has := strings.Fields(c.categories)
	imply := func(f flag, names ...string) {
		if c.flags&f != 0 {
			has = append(has, names...)
		}
	}
	imply(flagWrite, "write")
	imply(flagReadonly, "read")
	imply(flagAdmin, "admin", "dangerous")
	imply(flagFast, "fast")
	if c.flags&flagFast == 0 {
		has = append(has, "slow")
	}
	var ordered []string
	for _, name := range categoryOrder {
		if slices.Contains(has, name) {
			ordered = append(ordered, name)
		}
	}
	return ordered
}

// appendWords appends a set of words as simple strings.
func appendWords(b []byte, v resp.Version, words []string) []byte {
	b = resp.AppendSet(b, v, len(words))
	for _, word := range words {
		b = resp.AppendSimple(b, word)
	}
	return b
}

// appendCommandInfo appends the ten elements of COMMAND INFO.
func appendCommandInfo(b []byte, v resp.Version, c *command) []byte {
	b = resp.AppendArray(b, 10)
	b = resp.AppendBulkString(b, c.name)
	b = resp.AppendInt(b, int64(c.arity))
	b = appendWords(b, v, c.flags.names())
	b = resp.AppendInt(b, int64(c.keys.first))
	b = resp.AppendInt(b, int64(c.keys.last))
	b = resp.AppendInt(b, int64(c.keys.step))
	categories := c.aclCategories()
	for i, name := range categories {
		categories[i] = "@" + name
	}
	b = appendWords(b, v, categories)
	tips := strings.Fields(c.tips)
	b = resp.AppendSet(b, v, len(tips))
	for _, tip := range tips {
		b = resp.AppendBulkString(b, tip)
	}
	b = appendKeySpecs(b, v, &c.keys)
	if len(c.subs) == 0 {
		return resp.AppendSet(b, v, 0)
	}
	b = resp.AppendArray(b, len(c.subs))
	for _, sub := range c.subs {
		b = appendCommandInfo(b, v, sub)
	}
	return b
}

// appendKeySpecs appends the key specifications: one, or none.
func appendKeySpecs(b []byte, v resp.Version, k *keySpec) []byte {
	if k.first == 0 {
		return resp.AppendSet(b, v, 0)
	}
	b = resp.AppendSet(b, v, 1)
	if k.notes != "" {
		b = resp.AppendMap(b, v, 4)
		b = resp.AppendBulkString(b, "notes")
		b = resp.AppendBulkString(b, k.notes)
	} else {
		b = resp.AppendMap(b, v, 3)
	}
	b = resp.AppendBulkString(b, "flags")
	b = appendWords(b, v, strings.Fields(k.flags))
	b = resp.AppendBulkString(b, "begin_search")
	b = appendSpec(b, v, "index", map[string]int{"index": k.first}, "index")
	lastKey := k.last
	if lastKey > 0 {
		lastKey -= k.first
	}
	b = resp.AppendBulkString(b, "find_keys")
	return appendSpec(b, v, "range", map[string]int{"lastkey": lastKey, "keystep": k.step, "limit": 0},
		"lastkey", "keystep", "limit")
}

// appendSpec appends a search of a key specification; order is that of fields.
func appendSpec(b []byte, v resp.Version, kind string, fields map[string]int, order ...string) []byte {
	b = resp.AppendMap(b, v, 2)
	b = resp.AppendBulkString(b, "type")
	b = resp.AppendBulkString(b, kind)
	b = resp.AppendBulkString(b, "spec")
	b = resp.AppendMap(b, v, len(order))
	for _, name := range order {
		b = resp.AppendBulkString(b, name)
		b = resp.AppendInt(b, int64(fields[name]))
	}
	return b
}

// appendCommandDocs appends the map of COMMAND DOCS; the arguments are left out.
func appendCommandDocs(b []byte, v resp.Version, c *command) []byte {
	pairs := [][2]string{{"summary", c.summary}, {"since", c.since}, {"group", c.group}, {"complexity", c.complexity}}
	pairs = slices.DeleteFunc(pairs, func(p [2]string) bool { return p[1] == "" })
	n := len(pairs)
	if len(c.subs) > 0 {
		n++
	}
	b = resp.AppendMap(b, v, n)
	for _, p := range pairs {
		b = resp.AppendBulkString(b, p[0])
		b = resp.AppendBulkString(b, p[1])
	}
	if len(c.subs) > 0 {
		b = resp.AppendBulkString(b, "subcommands")
		b = resp.AppendMap(b, v, len(c.subs))
		for _, sub := range c.subs {
			b = resp.AppendBulkString(b, sub.name)
			b = appendCommandDocs(b, v, sub)
		}
	}
	return b
}
