package httpapi

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// valueService implements felixv1connect.ValueServiceHandler.
type valueService struct{ *door }

// Put implements the method of the schema.
func (s valueService) Put(ctx context.Context, req *connect.Request[felixv1.ValuePutRequest]) (*connect.Response[felixv1.ValuePutResponse], error) {
	op, err := putOf(req.Msg)
	if err != nil {
		return nil, err
	}
	r, err := s.do(ctx, req.Msg, op)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.ValuePutResponse{Applied: r.Applied, Version: r.Version}), nil
}

// putOf is the operation that a ValuePutRequest asks for, but for its key. The
// error is invalid_argument.
func putOf(m *felixv1.ValuePutRequest) (felix.Op, error) {
	op := felix.Op{Kind: felix.Set, View: felix.ViewValue, NoValue: true}
	switch value := m.GetValueForm().(type) {
	case *felixv1.ValuePutRequest_Value:
		op.Value = []byte(value.Value)
	case *felixv1.ValuePutRequest_ValueBytes:
		op.Value = value.ValueBytes
	default:
		return op, felix.Errorf(felix.InvalidArgument, "the value is missing: say what is to be stored, in value or value_bytes")
	}
	switch expiry := m.GetExpiry().(type) {
	case *felixv1.ValuePutRequest_ExpiresInMillis:
		op.TTL, op.ExpiryMillis = felix.TTLIn, expiry.ExpiresInMillis
	case *felixv1.ValuePutRequest_ExpiresAtMillis:
		op.TTL, op.ExpiryMillis = felix.TTLAt, expiry.ExpiresAtMillis
	case *felixv1.ValuePutRequest_KeepExpiry:
		if expiry.KeepExpiry {
			op.TTL = felix.TTLKeep
		}
	}
	switch condition := m.GetCondition().(type) {
	case *felixv1.ValuePutRequest_IfAbsent:
		if condition.IfAbsent {
			op.If = felix.IfAbsent
		}
	case *felixv1.ValuePutRequest_IfVersion:
		op.If, op.Version = felix.IfVersion, condition.IfVersion
	}
	return op, nil
}

// Get implements the method of the schema.
func (s valueService) Get(ctx context.Context, req *connect.Request[felixv1.ValueGetRequest]) (*connect.Response[felixv1.ValueGetResponse], error) {
	r, err := s.do(ctx, req.Msg, felix.Op{Kind: felix.Get, View: felix.ViewValue})
	if err != nil {
		return nil, err
	}
	if r.Found != felix.ValueRecord {
		return connect.NewResponse(&felixv1.ValueGetResponse{}), nil
	}
	out := &felixv1.ValueGetResponse{Found: true, ExpiresAtMillis: r.ExpiresAtMillis, Version: r.Version}
	if utf8.Valid(r.Value) {
		out.ValueForm = &felixv1.ValueGetResponse_Value{Value: string(r.Value)}
	} else {
		out.ValueForm = &felixv1.ValueGetResponse_ValueBytes{ValueBytes: r.Value}
	}
	return connect.NewResponse(out), nil
}

// Delete implements the method of the schema.
func (s valueService) Delete(ctx context.Context, req *connect.Request[felixv1.ValueDeleteRequest]) (*connect.Response[felixv1.ValueDeleteResponse], error) {
	op := felix.Op{Kind: felix.Delete, View: felix.ViewValue, NoValue: true}
	if req.Msg.IfVersion != nil {
		op.If, op.Version = felix.IfVersion, req.Msg.GetIfVersion()
	}
	r, err := s.do(ctx, req.Msg, op)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&felixv1.ValueDeleteResponse{Deleted: r.Applied, Version: r.Version}), nil
}
