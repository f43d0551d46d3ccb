package redisapi

import (
	"container/list"
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/felix-go/felix"
)

const (
	// maxCursors bounds the scans that can go on.
	maxCursors = 16_384
	// maxCursorBytes bounds what all cursors hold together: keys of pages that
	// were read ahead, and last keys.
	maxCursorBytes = 64 << 20
	// cursorOverhead is what a cursor costs besides, in bytes, roughly.
	cursorOverhead = 256
	// keyOverhead is what a key in a page costs besides, in bytes.
	keyOverhead = 24
	// cursorBits keeps cursors exact in clients that hold them in a double.
	cursorBits = 53
)

// position is where a scan goes on.
type position struct {
	scope  felix.Scope
	after  []byte // what has been looked at: no key up to this one is given again; nil at the start
	prefix []byte // of the keys in page
	page   [][]byte
	more   bool   // whether there may be keys after those of page
	next   []byte // if so, where they begin: the After of the next page
}

func (p *position) bytes() int {
	n := cursorOverhead + len(p.after) + len(p.prefix)
	if len(p.page) > 0 { // otherwise next is after
		n += len(p.next)
	}
	for _, key := range p.page {
		n += len(key) + keyOverhead
	}
	return n
}

// forgetPage makes the position one whose page is yet to be read. There is more
// behind every position that is remembered, or it would not have been.
func (p *position) forgetPage() { p.page, p.more, p.next = nil, true, p.after }

// cursors remembers positions by number, up to a bound; the one not used for
// the longest time is forgotten first. A scan's page moves from cursor to
// cursor: an older cursor still works, it reads its page again.
type cursors struct {
	mu    sync.Mutex
	byID  map[uint64]*list.Element // guarded by mu
	byUse *list.List               // of *cursor, the latest first; guarded by mu
	bytes int                      // of all positions; guarded by mu
}

type cursor struct {
	id uint64
	position
}

func newCursors() *cursors {
	return &cursors{byID: make(map[uint64]*list.Element), byUse: list.New()}
}

// take finds a position, and takes its page: whoever has it stores it again
// under a new number.
func (c *cursors) take(id uint64, scope felix.Scope) (position, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.byID[id]
	if !ok {
		return position{}, false
	}
	at := element.Value.(*cursor)
	if at.scope != scope {
		return position{}, false
	}
	c.byUse.MoveToFront(element)
	taken := at.position
	c.bytes -= at.bytes()
	at.forgetPage()
	c.bytes += at.bytes()
	return taken, true
}

// put remembers a position and gives it a number.
func (c *cursors) put(p position) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.newID()
	c.byID[id] = c.byUse.PushFront(&cursor{id, p})
	c.bytes += p.bytes()
	for c.byUse.Len() > 1 && (c.bytes > maxCursorBytes || len(c.byID) > maxCursors) {
		oldest := c.byUse.Remove(c.byUse.Back()).(*cursor)
		delete(c.byID, oldest.id)
		c.bytes -= oldest.bytes()
	}
	return id
}

// newID is a random number that is not in use: a cursor from before a restart
// is unknown rather than another scan's. mu is held.
func (c *cursors) newID() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails
		id := binary.LittleEndian.Uint64(b[:]) >> (64 - cursorBits)
		if _, used := c.byID[id]; id != 0 && !used {
			return id
		}
	}
}
