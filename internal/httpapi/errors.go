package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// errorCodeHeader carries the name of our code with every error: in HTTP's
// header, and in gRPC's trailer. Its value is felix.Code's String.
const errorCodeHeader = "Felix-Error-Code"

// connectError renders an error of ours: the status from the table of codes,
// the code in a detail and in the header, and Retry-After where there is one.
func connectError(e *felix.Error) *connect.Error {
	code := e.Code.Info()
	ce := connect.NewError(connect.Code(code.Connect), errors.New(e.Message))
	info := &felixv1.ErrorInfo{Code: code.Name, RetryAfterMillis: e.RetryAfter.Milliseconds()}
	if detail, err := connect.NewErrorDetail(info); err == nil { // it fails only for messages that cannot be marshaled
		ce.AddDetail(detail)
	}
	ce.Meta().Set(errorCodeHeader, code.Name)
	if e.Code == felix.ResourceExhausted || e.RetryAfter > 0 {
		// Whole seconds, rounded up: HTTP has no finer ones.
		seconds := max(1, int64((e.RetryAfter+time.Second-1)/time.Second))
		ce.Meta().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	return ce
}

// intercept surrounds every method: it bounds its time, refuses what could not
// be read, turns panics and errors into ours, and keeps the details of bugs in
// the log.
func (d *door) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		method := req.Spec().Procedure
		defer func() {
			if p := recover(); p != nil {
				d.log.Error("panic in a request", "method", method, "panic", p, "stack", string(debug.Stack()))
				resp, err = nil, connectError(hiddenError())
			}
		}()
		held := shareOf(ctx)
		held.endDecoding()
		if bad := checkRequest(req.Any()); bad != nil {
			return nil, connectError(bad)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("it took longer than %v", d.timeout))
		defer cancel()
		resp, err = next(ctx, req)
		if err == nil && !held.hold(resp.Any(), req.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects) {
			d.refused.Add(1)
			err = errBusy
		}
		if err == nil {
			return resp, nil
		}
		e := felix.AsError(err)
		if e.Code.Info() == felix.Internal.Info() {
			d.log.Error("internal error in a request", "method", method, "error", e.Message)
			e = hiddenError()
		}
		return nil, connectError(e)
	}
}

// hiddenError is what users see of a bug.
func hiddenError() *felix.Error {
	return felix.Errorf(felix.Internal, "internal error: the broker's log has the details; the operation may or may not have been applied")
}

// notFound answers every path that is no path of ours.
func (d *door) notFound(w http.ResponseWriter, r *http.Request) {
	d.refuse(w, r, connect.CodeUnimplemented, http.StatusNotFound, fmt.Sprintf(
		"no such path: %.100q; there are /felix.v1.CounterService/{Add,Get,Set,Delete,List}, "+
			"/felix.v1.BatchService/Do, /felix.v1.CacheService/{Create,Get,List,Update,Delete}, "+
			"/felix.v1.ClusterService/{NodeList,ShardList,Topology,…} (POST JSON or gRPC), /livez, /readyz and /metrics", r.URL.Path))
}

// refuse answers a request that reaches no method, so nothing was applied: an
// error of connect with our code, in the protocol of the request. status is for
// HTTP clients; gRPC's is always 200.
func (d *door) refuse(w http.ResponseWriter, r *http.Request, code connect.Code, status int, message string) {
	ce := connectError(felix.Errorf(felix.InvalidArgument, "%s", message))
	rendered := connect.NewError(code, errors.New(message))
	for _, detail := range ce.Details() {
		rendered.AddDetail(detail)
	}
	rendered.Meta().Set(errorCodeHeader, felix.InvalidArgument.String())
	d.writeError(&statusWriter{ResponseWriter: w, status: status}, r, rendered)
}

// turnAway is refuse for a request for which there is no room.
func (d *door) turnAway(w http.ResponseWriter, r *http.Request, e *felix.Error) {
	d.refused.Add(1)
	d.writeError(w, r, connectError(e))
}

func (d *door) writeError(w http.ResponseWriter, r *http.Request, e *connect.Error) {
	if err := connect.NewErrorWriter().Write(w, r, e); err != nil {
		d.log.Debug("an error answer was not written", "error", err)
	}
}

// statusWriter replaces connect's status of an error by a better one.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader replaces only the statuses of errors: gRPC's is 200.
func (w *statusWriter) WriteHeader(status int) {
	if status >= 400 {
		status = w.status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
