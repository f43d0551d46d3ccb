package redisapi

import (
	"strings"

	"github.com/felix-go/felix/internal/netloop"
)

// flag is a set of command flags, with Redis's meanings. The order is that of
// Redis's replies.
type flag uint32

const (
	flagWrite flag = 1 << iota
	flagReadonly
	flagDenyOOM
	flagAdmin
	flagNoScript
	flagLoading
	flagStale
	flagSkipSlowlog
	flagFast
	flagNoAuth
	flagNoAsyncLoading
	flagAllowBusy
)

// flagNames are in the order of the bits.
var flagNames = [...]string{
	"write", "readonly", "denyoom", "admin", "noscript", "loading", "stale", "skip_slowlog", "fast",
	"no_auth", "no_async_loading", "allow_busy",
}

// names lists the flags of the set.
func (f flag) names() []string {
	var names []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// keySpec says where the keys among a command's arguments are. The zero value
// is: there are none.
type keySpec struct {
	first int    // index of the first key; the command's name is 0
	last  int    // index of the last one; -1 is the last argument
	step  int    // from key to key
	flags string // what is done with them, in Redis's words
	notes string
	// flagsOf is set where the flags depend on the arguments.
	flagsOf func(args [][]byte) string
}

// outcome is what became of a request that was parsed.
type outcome uint8

const (
	// done: its reply, or the operations for it, are in the turn.
	done outcome = iota
	// last: the same, and nothing may follow it in this turn.
	last
	// postponed: it must be alone in a turn and is not. Nothing has changed.
	postponed
)

// parseFunc turns a request, whose arity is right, into what it needs.
type parseFunc func(s *session, cmd *command, args [][]byte, t *netloop.Turn) outcome

// command is one row of the table: dispatch, arity errors, COMMAND and
// docs/redis.md all come from it.
type command struct {
	name  string // lower case; of a subcommand, container|name
	arity int    // arguments with the name; negative is "at least"
	flags flag
	group string
	since string // the Redis version that brought it
	// usage is what follows the name, for people.
	usage   string
	summary string
	// felix is what is different here, for the documentation.
	felix      string
	complexity string
	categories string // ACL categories that the flags do not imply
	tips       string
	keys       keySpec
	parse      parseFunc
	// needsCache: the parse function makes operations, so the connection's
	// cache must be open. Such a command is never slow.
	needsCache bool
	// unqueued: done at once also within a transaction. queued: it may wait for
	// EXEC, as all that needsCache may: it is short and changes no session.
	unqueued, queued bool
	subs             []*command

	// Set by newTable.

	index int    // of its counts
	base  string // name without the container
}

// table finds commands by name. It never changes once made.
type table struct {
	commands []*command // in the order of the documentation
	all      []*command // with subcommands; command.index is the position
	unknown  *command   // stands for unknown names in the counts
	// slots is an open hash of the folded names: a lookup costs no allocation
	// and hardly ever a second probe.
	slots [256]slot
}

// slot holds a name folded to lower case, in two words.
type slot struct {
	low, high uint64
	cmd       *command
}

// maxFolded is the longest name that the hash can hold.
const maxFolded = 16

// newTable makes the table of all commands.
func newTable() *table {
	t := &table{unknown: &command{name: "unknown"}}
	for _, group := range [][]*command{
		stringCommands(), swapCommands(), counterCommands(), increxCommands(), manyCommands(), keyCommands(), listCommands(),
		expiryCommands(), lifetimeCommands(),
		connectionCommands(), serverCommands(), transactionCommands(),
	} {
		t.commands = append(t.commands, group...)
	}
	for _, cmd := range t.commands {
		t.add(cmd, cmd.name)
		low, high, _ := fold([]byte(cmd.name))
		at := hash(low, high)
		for t.slots[at].cmd != nil {
			at++
		}
		t.slots[at] = slot{low, high, cmd}
		for _, sub := range cmd.subs {
			sub.group = cmd.group
			name := sub.name
			sub.name = cmd.name + "|" + name
			t.add(sub, name)
		}
	}
	t.add(t.unknown, t.unknown.name)
	return t
}

func (t *table) add(cmd *command, base string) {
	cmd.index, cmd.base = len(t.all), base
	t.all = append(t.all, cmd)
}

// find looks a command up, ignoring case; nil if there is none.
func (t *table) find(name []byte) *command {
	low, high, ok := fold(name)
	if !ok {
		return nil
	}
	for at := hash(low, high); t.slots[at].cmd != nil; at++ {
		if s := &t.slots[at]; s.low == low && s.high == high {
			return s.cmd
		}
	}
	return nil
}

// lookUp finds the command, or subcommand, of a request. What is wrong with the
// name or the number of arguments is the refusal; cmd is then what it counts as.
func (t *table) lookUp(args [][]byte) (cmd *command, refusal string) {
	cmd = t.find(args[0])
	if cmd == nil {
		return t.unknown, unknownCommand(args)
	}
	if cmd.subs != nil && len(args) > 1 {
		sub := cmd.sub(args[1])
		if sub == nil {
			return cmd, unknownSubcommand(cmd, args[1])
		}
		cmd = sub
	}
	if !cmd.arityOK(len(args)) {
		return cmd, arityError(cmd)
	}
	return cmd, ""
}

// findFull looks up "command" or "container|subcommand".
func (t *table) findFull(name []byte) *command {
	container, sub, has := strings.Cut(string(name), "|")
	cmd := t.find([]byte(container))
	if cmd == nil || !has {
		return cmd
	}
	return cmd.sub([]byte(sub))
}

// sub finds a subcommand, ignoring case; nil if there is none.
func (c *command) sub(name []byte) *command {
	for _, sub := range c.subs {
		if equalFold(name, sub.base) {
			return sub
		}
	}
	return nil
}

// arityOK says whether a request may have n arguments, the name included.
func (c *command) arityOK(n int) bool {
	return n == c.arity || c.arity < 0 && n >= -c.arity
}

// fold packs a name, with bit 5 set in every byte, which makes letters lower
// case. Command names are all letters, and only a letter folds to a letter, so
// that equal words mean equal names.
func fold(name []byte) (low, high uint64, ok bool) {
	if len(name) == 0 || len(name) > maxFolded {
		return 0, 0, false
	}
	for i, c := range name {
		if i < 8 {
			low |= uint64(c|0x20) << (8 * i)
		} else {
			high |= uint64(c|0x20) << (8 * (i - 8))
		}
	}
	return low, high, true
}

// hash is an index of the slots; a byte, so that it wraps around by itself.
func hash(low, high uint64) uint8 {
	return uint8((low*0x9E3779B97F4A7C15 ^ high*0xC2B2AE3D27D4EB4F) >> 56)
}

// equalFold compares a word of a request with a lower-case name, ignoring the
// case of ASCII letters.
func equalFold(word []byte, name string) bool {
	if len(word) != len(name) {
		return false
	}
	for i, c := range word {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// eachKey calls f with the index of every key among args.
func (k *keySpec) eachKey(args [][]byte, f func(at int)) {
	if k.first == 0 {
		return
	}
	end := k.last
	if end < 0 {
		end += len(args)
	}
	for at := k.first; at <= end; at += k.step {
		f(at)
	}
}
