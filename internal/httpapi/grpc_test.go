package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/felix-go/felix"
	felixv1 "github.com/felix-go/felix/api/felix/v1"
	"github.com/felix-go/felix/api/felix/v1/felixv1connect"
)

// protocols are all the ways a client may speak to the one listener.
func protocols() map[string][]connect.ClientOption {
	return map[string][]connect.ClientOption{
		"connect":      nil,
		"connect JSON": {connect.WithProtoJSON()},
		"gRPC":         {connect.WithGRPC()},
		"gRPC-web":     {connect.WithGRPCWeb()},
		"gzip":         {connect.WithSendGzip(), connect.WithGRPC()},
	}
}

// h2c is an HTTP/2 client without TLS, as gRPC clients are.
func h2c() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

func TestEveryProtocol(t *testing.T) {
	for name, opts := range protocols() {
		url, _ := start(t, newModel(t), Options{})
		c := felixv1connect.NewCounterServiceClient(h2c(), url, opts...)
		five := int64(5)
		key := &felixv1.CounterAddRequest_KeyBytes{KeyBytes: []byte("\xff\x00")}
		sum, err := c.Add(t.Context(), connect.NewRequest(&felixv1.CounterAddRequest{Cache: "c", KeyForm: key, Delta: &five}))
		if err != nil || sum.Msg.GetValue() != 5 {
			t.Errorf("%s: %v, %v", name, sum, err)
		}
		var listed []*felixv1.Counter
		for token, pages := "", 0; token != "" || pages == 0; pages++ {
			list, err := c.List(t.Context(), connect.NewRequest(&felixv1.CounterListRequest{Cache: "c", PageToken: token}))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			listed = append(listed, list.Msg.GetCounters()...)
			token = list.Msg.GetNextPageToken()
		}
		if len(listed) != 1 || string(listed[0].GetKeyBytes()) != "\xff\x00" {
			t.Errorf("%s: %v", name, listed)
		}
	}
}

// TestEveryCode sends every code through every protocol.
func TestEveryCode(t *testing.T) {
	for _, code := range felix.Codes() {
		sent := felix.Errorf(code, "words of %s", code)
		if code == felix.ResourceExhausted {
			sent.RetryAfter = 1500 * time.Millisecond
		}
		url, _ := start(t, failing{err: sent}, Options{})
		for name, opts := range protocols() {
			c := felixv1connect.NewCounterServiceClient(h2c(), url, opts...)
			req := &felixv1.CounterAddRequest{Cache: "c", KeyForm: &felixv1.CounterAddRequest_Key{Key: "k"}}
			_, err := c.Add(t.Context(), connect.NewRequest(req))
			var ce *connect.Error
			if !errors.As(err, &ce) {
				t.Fatalf("%s over %s: %v", code, name, err)
			}
			if uint32(ce.Code()) != code.Info().Connect || ce.Meta().Get("felix-error-code") != code.String() {
				t.Errorf("%s over %s: %v %v %v", code, name, ce.Code(), ce, ce.Meta())
			}
			if code != felix.Internal && ce.Message() != sent.Message {
				t.Errorf("%s over %s: %q", code, name, ce.Message())
			}
			info := detail(t, ce)
			if info.GetCode() != code.String() || info.GetRetryAfterMillis() != sent.RetryAfter.Milliseconds() {
				t.Errorf("%s over %s: %v", code, name, info)
			}
			if want := map[bool]string{true: "2"}[code == felix.ResourceExhausted]; ce.Meta().Get("Retry-After") != want {
				t.Errorf("%s over %s: Retry-After %q", code, name, ce.Meta().Get("Retry-After"))
			}
		}
		if resp, _ := post(t, url+counter+"Add", asJSON, `{"cache":"c","key":"k"}`); resp.StatusCode != code.Info().HTTPStatus {
			t.Errorf("%s: HTTP %d", code, resp.StatusCode)
		}
	}
}

func detail(t *testing.T, ce *connect.Error) *felixv1.ErrorInfo {
	t.Helper()
	if len(ce.Details()) != 1 {
		t.Fatalf("%v has %d details", ce, len(ce.Details()))
	}
	value, err := ce.Details()[0].Value()
	if err != nil {
		t.Fatal(err)
	}
	info, ok := value.(*felixv1.ErrorInfo)
	if !ok {
		t.Fatalf("%v has detail %T", ce, value)
	}
	return info
}

// TestUnknownFields: a request of a newer client must not be half understood.
func TestUnknownFields(t *testing.T) {
	for name, opts := range protocols() {
		if name == "connect JSON" {
			continue // unknown binary fields have no JSON
		}
		url, _ := start(t, newModel(t), Options{})
		c := felixv1connect.NewCounterServiceClient(h2c(), url, opts...)
		req := &felixv1.CounterAddRequest{Cache: "c", KeyForm: &felixv1.CounterAddRequest_Key{Key: "k"}}
		field := protowire.AppendTag(nil, 99, protowire.BytesType)
		req.ProtoReflect().SetUnknown(protowire.AppendString(field, "an idempotency id"))
		_, err := c.Add(t.Context(), connect.NewRequest(req))
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "field number 99") {
			t.Errorf("%s: %v", name, err)
		}
		get, err := c.Get(t.Context(), connect.NewRequest(&felixv1.CounterGetRequest{Cache: "c", KeyForm: &felixv1.CounterGetRequest_Key{Key: "k"}}))
		if err != nil || get.Msg.GetFound() {
			t.Errorf("%s: it was applied all the same: %v %v", name, get, err)
		}
	}
}

// TestUnreadable: what is not a message at all is our invalid_argument too.
func TestUnreadable(t *testing.T) {
	url, _ := start(t, newModel(t), Options{})
	// Field 1 is a string; this one is not UTF-8.
	for _, body := range []string{"\x0a\x01\xff", "\x0a\x09x", "\xff\xff"} {
		resp, text := post(t, url+counter+"Add", "application/proto", body)
		if resp.StatusCode != 400 || resp.Header.Get("Felix-Error-Code") != "invalid_argument" || !strings.Contains(text, "protobuf") {
			t.Errorf("%q: %d %s", body, resp.StatusCode, text)
		}
		checkDetail(t, text, "invalid_argument")
	}
}

// TestNoSuchMethodInGRPC: the status is in the trailer, with our code.
func TestNoSuchMethodInGRPC(t *testing.T) {
	url, _ := start(t, newModel(t), Options{})
	for name, opts := range map[string][]connect.ClientOption{"gRPC": {connect.WithGRPC()}, "gRPC-web": {connect.WithGRPCWeb()}, "connect": nil} {
		c := connect.NewClient[felixv1.CounterAddRequest, felixv1.CounterAddResponse](h2c(), url+counter+"Increment", opts...)
		_, err := c.CallUnary(t.Context(), connect.NewRequest(&felixv1.CounterAddRequest{}))
		var ce *connect.Error
		if !errors.As(err, &ce) || ce.Code() != connect.CodeUnimplemented || ce.Meta().Get("felix-error-code") != "invalid_argument" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An error that connect makes itself, in gRPC.
	for name, opt := range map[string]connect.ClientOption{"gRPC": connect.WithGRPC(), "gRPC-web": connect.WithGRPCWeb()} {
		c := felixv1connect.NewCounterServiceClient(h2c(), url, opt)
		req := connect.NewRequest(&felixv1.CounterAddRequest{Cache: "c"})
		req.Header().Set("Grpc-Timeout", "nonsense")
		_, err := c.Add(t.Context(), req)
		var ce *connect.Error
		if !errors.As(err, &ce) || ce.Meta().Get("felix-error-code") != "invalid_argument" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
