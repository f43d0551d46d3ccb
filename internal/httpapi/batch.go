package httpapi

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// batchService implements felixv1connect.BatchServiceHandler.
type batchService struct{ *door }

// maxBatchValueBytes bounds the values that one answer carries: the client has to
// read all of it at once, as with a page of a list.
const maxBatchValueBytes = felix.MaxScanPageBytes

var errManyValues = felix.Errorf(felix.ResourceExhausted,
	"the values that the batch reads have more than %d bytes together: this one is left out, get it in another batch", maxBatchValueBytes)

// Do implements the method of the schema.
func (s batchService) Do(ctx context.Context, req *connect.Request[felixv1.BatchRequest]) (*connect.Response[felixv1.BatchResponse], error) {
	scope, err := scopeOf(req.Msg)
	if err != nil {
		return nil, err
	}
	items, atomic := req.Msg.GetItems(), req.Msg.GetAtomic()
	if len(items) < 1 || len(items) > felix.MaxBatchItems {
		return nil, felix.Errorf(felix.InvalidArgument, "the batch has %d items: it has 1 to %d", len(items), felix.MaxBatchItems)
	}
	cache, err := s.service.Cache(ctx, scope)
	if err != nil {
		return nil, err
	}
	b := batch{items: items, errs: make([]*felix.Error, len(items)), group: felix.Group{AllOrNothing: atomic}}
	b.read()
	if atomic && b.failed {
		return connect.NewResponse(b.answer(nil)), nil // as the owner would: nothing is applied
	}
	var groups []felix.Group
	if b.group.To = int32(len(b.ops)); atomic {
		groups = []felix.Group{b.group}
	}
	replies, err := felix.DoGroups(ctx, cache, b.ops, groups)
	if err != nil {
		return nil, err
	}
	if err := b.whole(replies); atomic && err != nil {
		return nil, err
	}
	for i := range replies {
		if e := replies[i].Err; e != nil && e.Code.Info() == felix.Internal.Info() {
			s.log.Error("internal error in a request", "method", req.Spec().Procedure, "error", e.Message)
			break
		}
	}
	return connect.NewResponse(b.answer(replies)), nil
}

// batch is a request under way.
type batch struct {
	items  []*felixv1.BatchItem
	errs   []*felix.Error // of items that are wrong, by position; those have no op
	ops    []felix.Op     // of the others, in order
	group  felix.Group
	failed bool // an item is wrong
}

// read makes the operations.
func (b *batch) read() {
	b.ops = make([]felix.Op, 0, len(b.items))
	for i, item := range b.items {
		op, err := opOf(item)
		if b.errs[i] = felix.AsError(err); err == nil {
			b.errs[i] = felix.ValidateKey(op.Key)
		}
		if b.errs[i] != nil {
			b.failed = true
			continue
		}
		b.ops = append(b.ops, op)
	}
}

// whole is the error of an atomic batch that says nothing about any of its items,
// the one that leaves the outcome open before others.
func (b *batch) whole(replies []felix.Reply) error {
	var worst *felix.Error
	for i := range replies {
		switch e := replies[i].Err; {
		case e == nil || e != felix.ErrCrossShard && (e.Code == felix.InvalidArgument || e.Code == felix.OutOfRange || e.Code == felix.IDReused):
		case worst == nil || e.MayBeApplied() && !worst.MayBeApplied():
			worst = e
		}
	}
	if worst == nil {
		return nil
	}
	return worst
}

// answer is the response; replies are those of b.ops, or nil if they were not
// asked for.
func (b *batch) answer(replies []felix.Reply) *felixv1.BatchResponse {
	out := &felixv1.BatchResponse{Results: make([]*felixv1.BatchResult, len(b.items)), Applied: b.group.AllOrNothing && replies != nil}
	next, room := 0, maxBatchValueBytes
	for i := range b.items {
		switch {
		case b.errs[i] != nil:
			out.Results[i] = failedResult(b.errs[i])
			continue
		case replies == nil:
			out.Results[i] = &felixv1.BatchResult{Aborted: true}
			continue
		}
		op, r := &b.ops[next], &replies[next]
		next++
		out.Applied = out.Applied && !r.Aborted && !b.group.Stops(op, r)
		if room -= len(r.Value); len(r.Value) > 0 && room < 0 {
			out.Results[i] = failedResult(errManyValues)
			continue
		}
		out.Results[i] = resultOf(op, r)
	}
	return out
}

func failedResult(e *felix.Error) *felixv1.BatchResult {
	if e.Code.Info() == felix.Internal.Info() {
		e = hiddenError()
	}
	return &felixv1.BatchResult{Error: &felixv1.BatchError{Message: e.Message,
		Info: &felixv1.ErrorInfo{Code: e.Code.String(), RetryAfterMillis: e.RetryAfter.Milliseconds()}}}
}

func resultOf(op *felix.Op, r *felix.Reply) *felixv1.BatchResult {
	if r.Err != nil {
		return failedResult(r.Err)
	}
	out := &felixv1.BatchResult{Applied: r.Applied, Aborted: r.Aborted, ExpiresAtMillis: r.ExpiresAtMillis, Version: r.Version, Added: r.Delta}
	out.Found = r.Found != felix.NoRecord
	switch {
	case r.Found == felix.CounterRecord, op.Kind == felix.Add && !r.Aborted, op.Kind == felix.Set && op.View == felix.ViewCounter && r.Applied:
		n := r.Int
		if op.Kind == felix.Set && r.Applied {
			n = op.Int
		}
		out.Counter = &n
	case r.Found == felix.ValueRecord && op.Kind == felix.Get && utf8.Valid(r.Value):
		out.ValueForm = &felixv1.BatchResult_Value{Value: string(r.Value)}
	case r.Found == felix.ValueRecord && op.Kind == felix.Get:
		out.ValueForm = &felixv1.BatchResult_ValueBytes{ValueBytes: r.Value}
	}
	return out
}

// opOf reads an item. The error is invalid_argument.
func opOf(item *felixv1.BatchItem) (op felix.Op, err error) {
	switch m := item.GetOp().(type) {
	case *felixv1.BatchItem_CounterAdd:
		op, err = addOf(batchAdd(m.CounterAdd))
	case *felixv1.BatchItem_CounterSet:
		op, err = setOf(m.CounterSet)
	case *felixv1.BatchItem_CounterGet:
		op = felix.Op{Kind: felix.Get}
	case *felixv1.BatchItem_CounterDelete:
		op = felix.Op{Kind: felix.Delete}
	case *felixv1.BatchItem_ValuePut:
		op, err = putOf(batchPut(m.ValuePut))
	case *felixv1.BatchItem_ValueGet:
		op = felix.Op{Kind: felix.Get, View: felix.ViewValue}
	case *felixv1.BatchItem_ValueDelete:
		op = felix.Op{Kind: felix.Delete, View: felix.ViewValue}
		if v := m.ValueDelete.IfVersion; v != nil {
			op.If, op.Version = felix.IfVersion, *v
		}
	default:
		err = felix.Errorf(felix.InvalidArgument, "the item says not what to do: counter_add, counter_set, counter_get, counter_delete, value_put, value_get or value_delete")
	}
	op.NoValue = op.Kind != felix.Get
	if op.Key = item.GetKeyBytes(); len(op.Key) == 0 {
		op.Key = []byte(item.GetKey())
	}
	return op, err
}

// batchAdd is an add as the method of that name takes it.
func batchAdd(m *felixv1.BatchCounterAdd) *felixv1.CounterAddRequest {
	add := &felixv1.CounterAddRequest{Delta: m.Delta, Min: m.Min, Max: m.Max, Saturate: m.GetSaturate(), ExpiryIfNone: m.GetExpiryIfNone()}
	switch expiry := m.GetExpiry().(type) {
	case *felixv1.BatchCounterAdd_ExpiresInMillis:
		add.Expiry = &felixv1.CounterAddRequest_ExpiresInMillis{ExpiresInMillis: expiry.ExpiresInMillis}
	case *felixv1.BatchCounterAdd_ExpiresAtMillis:
		add.Expiry = &felixv1.CounterAddRequest_ExpiresAtMillis{ExpiresAtMillis: expiry.ExpiresAtMillis}
	}
	return add
}

// setOf is the operation of an item, but for its key. The error is
// invalid_argument.
func setOf(m *felixv1.BatchCounterSet) (felix.Op, error) {
	op := felix.Op{Kind: felix.Set}
	if m.Value == nil {
		return op, felix.Errorf(felix.InvalidArgument, "the value is missing: say what the counter is to hold")
	}
	op.Int = *m.Value
	switch expiry := m.GetExpiry().(type) {
	case *felixv1.BatchCounterSet_ExpiresInMillis:
		op.TTL, op.ExpiryMillis = felix.TTLIn, expiry.ExpiresInMillis
	case *felixv1.BatchCounterSet_ExpiresAtMillis:
		op.TTL, op.ExpiryMillis = felix.TTLAt, expiry.ExpiresAtMillis
	case *felixv1.BatchCounterSet_KeepExpiry:
		if expiry.KeepExpiry {
			op.TTL = felix.TTLKeep
		}
	}
	return op, nil
}

// batchPut is a put as the method of that name takes it.
func batchPut(m *felixv1.BatchValuePut) *felixv1.ValuePutRequest {
	put := &felixv1.ValuePutRequest{}
	switch value := m.GetValueForm().(type) {
	case *felixv1.BatchValuePut_Value:
		put.ValueForm = &felixv1.ValuePutRequest_Value{Value: value.Value}
	case *felixv1.BatchValuePut_ValueBytes:
		put.ValueForm = &felixv1.ValuePutRequest_ValueBytes{ValueBytes: value.ValueBytes}
	}
	switch expiry := m.GetExpiry().(type) {
	case *felixv1.BatchValuePut_ExpiresInMillis:
		put.Expiry = &felixv1.ValuePutRequest_ExpiresInMillis{ExpiresInMillis: expiry.ExpiresInMillis}
	case *felixv1.BatchValuePut_ExpiresAtMillis:
		put.Expiry = &felixv1.ValuePutRequest_ExpiresAtMillis{ExpiresAtMillis: expiry.ExpiresAtMillis}
	case *felixv1.BatchValuePut_KeepExpiry:
		put.Expiry = &felixv1.ValuePutRequest_KeepExpiry{KeepExpiry: expiry.KeepExpiry}
	}
	switch condition := m.GetCondition().(type) {
	case *felixv1.BatchValuePut_IfAbsent:
		put.Condition = &felixv1.ValuePutRequest_IfAbsent{IfAbsent: condition.IfAbsent}
	case *felixv1.BatchValuePut_IfVersion:
		put.Condition = &felixv1.ValuePutRequest_IfVersion{IfVersion: condition.IfVersion}
	}
	return put
}
