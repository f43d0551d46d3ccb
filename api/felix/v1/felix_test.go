package felixv1_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	felixv1 "github.com/felix-go/felix/api/felix/v1"
)

// versions are the lines of generated files that name the tools' versions.
var versions = regexp.MustCompile(`(?m)^//.*\bv\d+\.\d+.*$`)

// TestGeneratedCodeIsCurrent regenerates the code and compares, where protoc is
// installed.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	if _, err := exec.LookPath("protoc"); err != nil {
		t.Logf("protoc is not installed (Debian: protobuf-compiler), so nothing was compared: %v", err)
		return
	}
	fresh := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "../../generate.sh", fresh).CombinedOutput(); err != nil {
		t.Fatalf("generate.sh: %v\n%s", err, out)
	}
	for _, name := range []string{"felix.pb.go", "felixv1connect/felix.connect.go"} {
		want, err := os.ReadFile(filepath.Join(fresh, "api/felix/v1", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(versions.ReplaceAll(got, nil), versions.ReplaceAll(want, nil)) {
			t.Errorf("%s is not what felix.proto generates: run `make generate`", name)
		}
	}
}

// TestRequestsAreFlat: the door looks for unknown fields only at the top of a
// request (httpapi's checkRequest), so no request may have messages inside it.
func TestRequestsAreFlat(t *testing.T) {
	services := felixv1.File_felix_v1_felix_proto.Services()
	seen := 0
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			fields := methods.Get(j).Input().Fields()
			for k := range fields.Len() {
				seen++
				if f := fields.Get(k); f.Kind() == protoreflect.MessageKind {
					t.Errorf("%s is a message: make httpapi's checkRequest look inside it, then allow it here", f.FullName())
				}
			}
		}
	}
	if seen == 0 {
		t.Error("the schema has no requests")
	}
}
