package peer

import (
	"encoding/binary"

	"github.com/felix-go/felix"
)

const (
	groupAll = 1 << iota
	groupOnce
	groupFields = 1<<iota - 1
)

// eachGroup calls f with the groups that have operations of the call, and which of
// its Positions these are.
func eachGroup(c *Call, f func(g *felix.Group, from, to int)) {
	i := 0
	for n := range c.Batch.Groups {
		g := &c.Batch.Groups[n]
		for ; i < len(c.Positions) && c.Positions[i] < g.From; i++ {
		}
		from := i
		for ; i < len(c.Positions) && c.Positions[i] < g.To; i++ {
		}
		if i > from {
			f(g, from, i)
		}
	}
}

// grouped says whether a call has groups.
func grouped(c *Call) (is bool) {
	if c.Kind == CallOps && len(c.Batch.Groups) > 0 {
		eachGroup(c, func(*felix.Group, int, int) { is = true })
	}
	return is
}

func appendGroups(b []byte, c *Call) []byte {
	n := 0
	eachGroup(c, func(*felix.Group, int, int) { n++ })
	b = binary.AppendUvarint(b, uint64(n))
	end := 0
	eachGroup(c, func(g *felix.Group, from, to int) {
		b = binary.AppendUvarint(b, uint64(from-end))
		b = binary.AppendUvarint(b, uint64(to-from))
		end = to
		b = append(b, flag(g.AllOrNothing, groupAll)|flag(g.Once != nil, groupOnce))
		if g.Once != nil {
			b = binary.AppendVarint(appendBytes(b, g.Once.ID), g.Once.RetentionMillis)
		}
	})
	return b
}

// minGroupBytes is the least that a group takes.
const minGroupBytes = 3

// groups reads the groups of operations that were read before.
func (d *decoder) groups(c *Call) {
	n := d.count(minGroupBytes)
	if d.bad || n == 0 {
		d.fail() // a call without groups is of the kind that has none
		return
	}
	groups, at := make([]felix.Group, n), uint64(0)
	for i := range groups {
		g, left := &groups[i], uint64(len(c.Batch.Ops))-at
		gap, length := d.uvarint(), d.uvarint()
		if gap > left || length < 1 || length > left-gap {
			d.fail()
			return
		}
		at += gap + length
		g.From, g.To = int32(at-length), int32(at)
		fields := d.byte()
		g.AllOrNothing = fields&groupAll != 0
		if fields&groupOnce != 0 {
			g.Once = &felix.Once{ID: d.bytes(), RetentionMillis: d.varint()}
		}
		if fields&^groupFields != 0 {
			d.fail()
		}
	}
	if !d.bad {
		c.Batch.Groups = groups
	}
}

// groupBytes is at least what the groups of a call take on the wire.
func groupBytes(c *Call) (n int) {
	if c.Batch == nil || len(c.Batch.Groups) == 0 {
		return 0
	}
	eachGroup(c, func(g *felix.Group, _, _ int) {
		if n += opOverheadBytes; g.Once != nil {
			n += len(g.Once.ID)
		}
	})
	return n
}
