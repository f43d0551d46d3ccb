package httpapi

import (
	"bytes"
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
)

// guard is outermost: a panic anywhere becomes an internal error and a line in
// the log, and never ends the process or goes unseen.
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
		next.ServeHTTP(w, r)
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
		body, err := readBody(w, r)
		if err != nil {
			w.Header().Set("Connection", "close") // the rest of the body is not worth reading
			status := http.StatusBadRequest
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				status = http.StatusRequestEntityTooLarge
				err = fmt.Errorf("it has more than %d bytes", maxBodyBytes)
			}
			d.refuse(w, r, connect.CodeInvalidArgument, status, "the request body cannot be read: "+err.Error())
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(codedWriter{w}, r)
	})
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
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines (httptest's has none).
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err == nil {
		defer func() { _ = control.SetReadDeadline(time.Time{}) }() // fails only on a connection that is gone
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
}

// hasMethod says whether the schema's service at prefix ("/felix.v1.X/") has the
// method.
func hasMethod(prefix, method string) bool {
	service := protoreflect.FullName(strings.Trim(prefix, "/")).Name()
	descriptor := felixv1.File_felix_v1_felix_proto.Services().ByName(service)
	return descriptor != nil && descriptor.Methods().ByName(protoreflect.Name(method)) != nil
}

// codedWriter adds our code to the errors that connect makes itself, such as
// for an unknown compression. All of them arise before a method is called, so
// the code that says "not applied" is true; those of methods carry their own.
type codedWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w codedWriter) WriteHeader(status int) {
	if h := w.Header(); status >= 400 && h.Get(errorCodeHeader) == "" {
		h.Set(errorCodeHeader, felix.InvalidArgument.String())
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w codedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher: connect calls it when all is in the header,
// trailers included.
func (w codedWriter) Flush() {
	w.codeStatus()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush sends when the handler returns
}

// codeStatus does for gRPC what WriteHeader does for HTTP: its status is a
// trailer, or a header with gRPC-web.
func (w codedWriter) codeStatus() {
	h := w.Header()
	for _, prefix := range []string{"", http.TrailerPrefix} {
		status := h.Get(prefix + "Grpc-Status")
		if status != "" && status != "0" && h.Get(prefix+errorCodeHeader) == "" {
			h.Set(prefix+errorCodeHeader, felix.InvalidArgument.String())
		}
	}
}
