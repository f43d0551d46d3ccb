package record

import (
	"encoding/binary"
	"fmt"
)

// Chain is a hash over log entries, one after the other: those that a state is
// the result of, as far back as it goes. Two states that end with the same entry
// and have chains of the same Base have the same Sum, or are not of one log.
type Chain struct {
	// Base is the entry after which the chain begins; 0 says that nothing is
	// known, and that it begins after the entry at which it was found.
	Base uint64
	Sum  uint64 // 0 for no entries
}

// appendChain is the stored form.
func appendChain(b []byte, c Chain) []byte {
	b = binary.AppendUvarint(b, c.Base)
	return binary.BigEndian.AppendUint64(b, c.Sum)
}

// chain reads the stored form.
func (d *decoder) chain() Chain {
	c := Chain{Base: d.uvarint()}
	if len(d.rest) < 8 {
		d.fail()
		return Chain{}
	}
	c.Sum, d.rest = binary.BigEndian.Uint64(d.rest), d.rest[8:]
	return c
}

// check says what is wrong with a stored chain of a state that ends with index.
func (c Chain) check(index uint64) error {
	if c.Base == 0 || c.Base > index || c.Base == index && c.Sum != 0 {
		return fmt.Errorf("%w: a chain of the entries %d to %d", ErrCorrupt, c.Base, index)
	}
	return nil
}
