package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/felix-go/felix"
)

// unreadableField is the number of an unknown field in which a codec leaves
// its complaint about a request it cannot read. If the codec answered with an
// error, connect would make its own answer, without our code in it; so the
// request travels on, empty but for this, and checkRequest refuses it. It is
// the largest number there is, which the schema never uses.
const unreadableField = protowire.Number(protowire.MaxValidNumber)

// binaryCodec is protobuf, as connect's own.
type binaryCodec struct{}

func (binaryCodec) Name() string { return "proto" }

func (binaryCodec) Marshal(m any) ([]byte, error) {
	message, err := asMessage(m)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(message)
}

func (binaryCodec) Unmarshal(data []byte, m any) error {
	message, err := asMessage(m)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(data, message); err != nil {
		leaveComplaint(message, "the request is not a protobuf "+messageName(message)+": "+err.Error())
	}
	return nil
}

// jsonCodec is proto3 JSON. Unlike connect's own it shows fields that are zero
// ("value":"0" is news) and refuses fields it does not know (a misspelt
// "delta" would otherwise count 1); and its answers have no spaces.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(m any) ([]byte, error) {
	message, err := asMessage(m)
	if err != nil {
		return nil, err
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	// protojson puts in spaces that differ from build to build, on purpose;
	// here the same answer always has the same bytes.
	var compact bytes.Buffer
	err = json.Compact(&compact, text)
	return compact.Bytes(), err
}

func (jsonCodec) Unmarshal(data []byte, m any) error {
	message, err := asMessage(m)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(data, message); err != nil {
		leaveComplaint(message, "the request is not the JSON of a "+messageName(message)+": "+tidyJSONError(err))
	}
	return nil
}

// tidyJSONError takes out of a protojson error what is no help: its prefix and
// the non-breaking spaces by which that package keeps programs from reading it.
func tidyJSONError(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

func asMessage(m any) (proto.Message, error) {
	message, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", m)
	}
	return message, nil
}

func messageName(m proto.Message) string {
	return string(m.ProtoReflect().Descriptor().Name())
}

func leaveComplaint(m proto.Message, complaint string) {
	proto.Reset(m)
	field := protowire.AppendTag(nil, unreadableField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(field, complaint))
}

// checkRequest refuses a request that its codec could not read, and one with
// fields this broker does not know: ignoring, say, an idempotency id would
// break what the client was promised.
func checkRequest(m any) *felix.Error {
	message, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	unknown, message := unknownIn(message)
	if len(unknown) == 0 {
		return nil
	}
	number, kind, n := protowire.ConsumeTag(unknown)
	if n < 0 {
		return felix.Errorf(felix.InvalidArgument, "the request is not a protobuf %s", messageName(message))
	}
	if number == unreadableField && kind == protowire.BytesType {
		if complaint, m := protowire.ConsumeString(unknown[n:]); m > 0 {
			return felix.Errorf(felix.InvalidArgument, "%s", strings.ToValidUTF8(complaint, "\uFFFD"))
		}
	}
	return felix.Errorf(felix.InvalidArgument,
		"the request has field number %d, which this broker's %s does not have: the broker is older than its client", number, messageName(message))
}

// unknownIn finds what a message, or one inside it, has of fields that this build
// does not know.
func unknownIn(message proto.Message) (unknown []byte, where proto.Message) {
	m := message.ProtoReflect()
	if unknown = m.GetUnknown(); len(unknown) > 0 {
		return unknown, message
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			for i := 0; i < value.List().Len() && len(unknown) == 0; i++ {
				unknown, where = unknownIn(value.List().Get(i).Message().Interface())
			}
		default:
			unknown, where = unknownIn(value.Message().Interface())
		}
		return len(unknown) == 0
	})
	return unknown, where
}
