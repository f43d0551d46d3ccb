package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

// guard is outermost: it turns away what there is no room for; and a panic
// anywhere becomes an internal error and a line in the log, and never ends the
// process or goes unseen.
func (d *door) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { // net/http's own way to drop a connection
				panic(p)
			}
			d.log.Error("panic in a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			// If the answer had begun already this does nothing, and the
			// client sees a broken answer without our code.
			w.Header().Set(errorCodeHeader, felix.Internal.String())
			writeText(w, http.StatusInternalServerError, hiddenError().Message)
		}()
		probe := r.URL.Path == "/livez" || r.URL.Path == "/readyz"
		if isRefused(r.Context()) {
			w.Header().Set("Connection", "close")
			if !probe {
				d.turnAway(w, r, errConnections)
				return
			}
		}
		held := d.admit(probe)
		if held == nil {
			d.turnAway(w, r, errBusy)
			return
		}
		defer held.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), shareKey{}, held)))
	})
}

// rpc stands before the methods of one service. It reads the whole body,
// bounded in size and time, before anything is evaluated; it answers methods
// and media types that do not exist in our words; and it sees to it that errors
// which connect itself makes carry our code too.
func (d *door) rpc(prefix string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.callable(w, r, prefix) {
			return
		}
		held := shareOf(r.Context())
		body, err := readBody(w, r, held)
		if err != nil {
			w.Header().Set("Connection", "close") // the rest of the body is not worth reading
			d.unreadable(w, r, err)
			return
		}
		// Making messages is all in memory and takes no time, but what a small
		// body unpacks to is large: so not too many at once.
		room := d.decoding
		if r.URL.Path == felixv1connect.BatchServiceDoProcedure {
			room = d.batching
		}
		if held.decoded, err = place(r.Context(), room); err != nil {
			panic(http.ErrAbortHandler) // the client has gone
		}
		answer := &codedWriter{ResponseWriter: w, timeout: d.answerTimeout}
		answer.writeWithin(d.timeout + d.answerTimeout)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(answer, r)
	})
}

// unreadable answers a request whose body could not be read.
func (d *door) unreadable(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errBusy) {
		d.turnAway(w, r, errBusy)
		return
	}
	status := http.StatusBadRequest
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		status = http.StatusRequestEntityTooLarge
		err = fmt.Errorf("it has more than %d bytes", felix.MaxHTTPBodyBytes)
	}
	d.refuse(w, r, connect.CodeInvalidArgument, status, "the request body cannot be read: "+err.Error())
}

// callable says whether connect has something to do with this request, and
// otherwise answers it.
func (d *door) callable(w http.ResponseWriter, r *http.Request, prefix string) bool {
	if !hasMethod(prefix, strings.TrimPrefix(r.URL.Path, prefix)) {
		d.notFound(w, r)
		return false
	}
	if r.Method == http.MethodGet && r.URL.Query().Has("message") {
		return true // connect's GET, for methods without side effects
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		d.refuse(w, r, connect.CodeUnimplemented, http.StatusMethodNotAllowed, "use POST with a JSON body and Content-Type: application/json")
		return false
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	known := media == "application/json" || media == "application/proto" || strings.HasPrefix(media, "application/grpc")
	if err != nil || !known {
		d.refuse(w, r, connect.CodeInvalidArgument, http.StatusUnsupportedMediaType, fmt.Sprintf(
			"Content-Type %.100q: send application/json (curl -H 'Content-Type: application/json'), application/proto or gRPC",
			r.Header.Get("Content-Type")))
		return false
	}
	return true
}

// readBody reads the body whole. The deadline is on the connection (or the
// HTTP/2 stream) and is taken off afterwards, because net/http reads on to
// learn of a client that hangs up.
func readBody(w http.ResponseWriter, r *http.Request, held *share) ([]byte, error) {
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines (httptest's has none).
	if err := control.SetReadDeadline(time.Now().Add(felix.HTTPBodyTimeout)); err == nil {
		defer func() { _ = control.SetReadDeadline(time.Time{}) }() // fails only on a connection that is gone
	}
	return io.ReadAll(counted{http.MaxBytesReader(w, r.Body, felix.MaxHTTPBodyBytes), held})
}

// hasMethod says whether the schema's service at prefix ("/felix.v1.X/") has the
// method.
func hasMethod(prefix, method string) bool {
	service := protoreflect.FullName(strings.Trim(prefix, "/")).Name()
	for _, file := range []protoreflect.FileDescriptor{felixv1.File_felix_v1_felix_proto, felixv1.File_felix_v1_batch_proto} {
		if descriptor := file.Services().ByName(service); descriptor != nil {
			return descriptor.Methods().ByName(protoreflect.Name(method)) != nil
		}
	}
	return false
}

// codedWriter adds our code to the errors that connect makes itself, such as
// for an unknown compression. All of them arise before a method is called, so
// the code that says "not applied" is true; those of methods carry their own.
// And it bounds the time in which the answer must be read.
type codedWriter struct {
	http.ResponseWriter
	timeout time.Duration
	begun   bool
}

// begin is called before the first byte of the answer.
func (w *codedWriter) begin() {
	if !w.begun {
		w.begun = true
		w.writeWithin(w.timeout)
	}
}

func (w *codedWriter) writeWithin(d time.Duration) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(d)) // httptest's writers have none
}

// WriteHeader implements http.ResponseWriter.
func (w *codedWriter) WriteHeader(status int) {
	if h := w.Header(); status >= 400 && h.Get(errorCodeHeader) == "" {
		h.Set(errorCodeHeader, felix.InvalidArgument.String())
	}
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *codedWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *codedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher: connect calls it when all is in the header,
// trailers included.
func (w *codedWriter) Flush() {
	w.begin()
	w.codeStatus()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush sends when the handler returns
}

// codeStatus does for gRPC what WriteHeader does for HTTP: its status is a
// trailer, or a header with gRPC-web.
func (w *codedWriter) codeStatus() {
	h := w.Header()
	for _, prefix := range []string{"", http.TrailerPrefix} {
		status := h.Get(prefix + "Grpc-Status")
		if status != "" && status != "0" && h.Get(prefix+errorCodeHeader) == "" {
			h.Set(prefix+errorCodeHeader, felix.InvalidArgument.String())
		}
	}
}
