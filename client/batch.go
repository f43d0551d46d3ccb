package client

import (
	"context"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// ItemKind says what an Item does.
type ItemKind uint8

// The kinds.
const (
	// ItemAdd adds Number to a counter.
	ItemAdd ItemKind = iota + 1
	// ItemSet makes a counter hold Number.
	ItemSet
	// ItemGet reads a counter.
	ItemGet
	// ItemDelete deletes a counter.
	ItemDelete
	// ItemPutValue stores Value as the key's cache value.
	ItemPutValue
	// ItemGetValue reads it.
	ItemGetValue
	// ItemDeleteValue deletes it.
	ItemDeleteValue
)

// Item is one operation of a batch.
type Item struct {
	Kind   ItemKind
	Key    string // any bytes
	Number int64  // ItemAdd, ItemSet
	Value  []byte // ItemPutValue
	// ExpiresIn and ExpiresAt, of ItemAdd, ItemSet and ItemPutValue, are when the
	// record is to expire; at most one is given. Without them an add leaves the
	// expiry as it is, and the others clear it.
	ExpiresIn time.Duration
	ExpiresAt time.Time
	// Bounds, of ItemAdd, are what the sum may be; nil is any.
	Bounds *felix.Bounds
	// IfAbsent and IfVersion are conditions: of ItemPutValue both, of
	// ItemDeleteValue the latter; 0 is none.
	IfAbsent  bool
	IfVersion uint64
}

// ItemResult is what became of an Item.
type ItemResult struct {
	// Err is why it was not applied, or for outcome_unknown may have been.
	Err *felix.Error
	// Applied says that it took effect: a get never does, nor a deletion of what
	// is not there, nor what does not meet its condition or bounds.
	Applied bool
	// Aborted says that an atomic batch was not applied because of another item.
	Aborted bool
	// Found says that there is a record: which a get read, or which did not meet a
	// condition or bound.
	Found     bool
	Counter   int64  // after an add or a set, or as found
	Value     []byte // as ItemGetValue read it
	ExpiresAt time.Time
	Version   uint64
	Added     int64 // by an add with bounds
}

// Batch does up to felix.MaxBatchItems items of one cache in one request, which is
// sent at most once. Items whose keys share a shard are done in their order. With
// atomic all keys must share a shard ("{tag}"), and it is all or nothing: applied
// says which, and the result of the item that kept it from being applied says why.
// Without it applied is false. An error is of the batch as a whole.
func (c *Client) Batch(ctx context.Context, tenant, namespace, cache string, atomic bool, items ...Item) (results []ItemResult, applied bool, err error) {
	req := &felixv1.BatchRequest{Tenant: tenant, Namespace: namespace, Cache: cache, Atomic: atomic,
		Items: make([]*felixv1.BatchItem, len(items))}
	does := reads
	for i := range items {
		if req.Items[i], err = items[i].message(); err != nil {
			return nil, false, err
		}
		if kind := items[i].Kind; kind != ItemGet && kind != ItemGetValue {
			does = changes
		}
	}
	resp, err := call(ctx, c, does, func(ctx context.Context, b broker) (*connect.Response[felixv1.BatchResponse], error) {
		return b.batches.Do(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, false, err
	}
	results = make([]ItemResult, len(resp.GetResults()))
	for i, m := range resp.GetResults() {
		results[i] = itemResult(m)
	}
	return results, resp.GetApplied(), nil
}

func itemResult(m *felixv1.BatchResult) ItemResult {
	r := ItemResult{Applied: m.GetApplied(), Aborted: m.GetAborted(), Found: m.GetFound(), Counter: m.GetCounter(),
		ExpiresAt: timeOf(m.GetExpiresAtMillis()), Version: m.GetVersion(), Added: m.GetAdded()}
	switch value := m.GetValueForm().(type) {
	case *felixv1.BatchResult_Value:
		r.Value = []byte(value.Value)
	case *felixv1.BatchResult_ValueBytes:
		r.Value = value.ValueBytes
	}
	if e := m.GetError(); e != nil {
		code, known := felix.ParseCode(e.GetInfo().GetCode())
		if !known {
			code = felix.Internal // of a newer broker: it may have been applied
		}
		r.Err = &felix.Error{Code: code, Message: e.GetMessage(), RetryAfter: time.Duration(e.GetInfo().GetRetryAfterMillis()) * time.Millisecond}
	}
	return r
}

// message is the item in the schema's words. The error is invalid_argument.
func (it *Item) message() (*felixv1.BatchItem, error) {
	if err := checkKey(it.Key); err != nil {
		return nil, err
	}
	m := &felixv1.BatchItem{}
	if utf8.ValidString(it.Key) {
		m.KeyForm = &felixv1.BatchItem_Key{Key: it.Key}
	} else {
		m.KeyForm = &felixv1.BatchItem_KeyBytes{KeyBytes: []byte(it.Key)}
	}
	if !it.ExpiresAt.IsZero() && it.ExpiresIn != 0 {
		return nil, felix.Errorf(felix.InvalidArgument, "an item expires in some time or at some time, not both")
	}
	switch it.Kind {
	case ItemAdd:
		m.Op = &felixv1.BatchItem_CounterAdd{CounterAdd: it.add()}
	case ItemSet:
		set := &felixv1.BatchCounterSet{Value: &it.Number}
		switch {
		case it.ExpiresIn != 0:
			set.Expiry = &felixv1.BatchCounterSet_ExpiresInMillis{ExpiresInMillis: it.ExpiresIn.Milliseconds()}
		case !it.ExpiresAt.IsZero():
			set.Expiry = &felixv1.BatchCounterSet_ExpiresAtMillis{ExpiresAtMillis: it.ExpiresAt.UnixMilli()}
		}
		m.Op = &felixv1.BatchItem_CounterSet{CounterSet: set}
	case ItemGet:
		m.Op = &felixv1.BatchItem_CounterGet{CounterGet: &felixv1.BatchCounterGet{}}
	case ItemDelete:
		m.Op = &felixv1.BatchItem_CounterDelete{CounterDelete: &felixv1.BatchCounterDelete{}}
	case ItemPutValue:
		m.Op = &felixv1.BatchItem_ValuePut{ValuePut: it.put()}
	case ItemGetValue:
		m.Op = &felixv1.BatchItem_ValueGet{ValueGet: &felixv1.BatchValueGet{}}
	case ItemDeleteValue:
		del := &felixv1.BatchValueDelete{}
		if it.IfVersion != 0 {
			del.IfVersion = &it.IfVersion
		}
		m.Op = &felixv1.BatchItem_ValueDelete{ValueDelete: del}
	default:
		return nil, felix.Errorf(felix.InvalidArgument, "there is no item kind %d", it.Kind)
	}
	return m, nil
}

func (it *Item) add() *felixv1.BatchCounterAdd {
	m := &felixv1.BatchCounterAdd{Delta: &it.Number}
	switch {
	case it.ExpiresIn != 0:
		m.Expiry = &felixv1.BatchCounterAdd_ExpiresInMillis{ExpiresInMillis: it.ExpiresIn.Milliseconds()}
	case !it.ExpiresAt.IsZero():
		m.Expiry = &felixv1.BatchCounterAdd_ExpiresAtMillis{ExpiresAtMillis: it.ExpiresAt.UnixMilli()}
	}
	if b := it.Bounds; b != nil {
		m.Min, m.Max, m.Saturate = &b.Min, &b.Max, b.Saturate
	}
	return m
}

func (it *Item) put() *felixv1.BatchValuePut {
	m := &felixv1.BatchValuePut{ValueForm: &felixv1.BatchValuePut_ValueBytes{ValueBytes: it.Value}}
	switch {
	case it.ExpiresIn != 0:
		m.Expiry = &felixv1.BatchValuePut_ExpiresInMillis{ExpiresInMillis: it.ExpiresIn.Milliseconds()}
	case !it.ExpiresAt.IsZero():
		m.Expiry = &felixv1.BatchValuePut_ExpiresAtMillis{ExpiresAtMillis: it.ExpiresAt.UnixMilli()}
	}
	switch {
	case it.IfAbsent:
		m.Condition = &felixv1.BatchValuePut_IfAbsent{IfAbsent: true}
	case it.IfVersion != 0:
		m.Condition = &felixv1.BatchValuePut_IfVersion{IfVersion: it.IfVersion}
	}
	return m
}
