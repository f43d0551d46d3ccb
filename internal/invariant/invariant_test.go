package invariant_test

import (
	"testing"

	"github.com/felix-go/felix/internal/invariant"
)

func caught(run func()) (v any) {
	defer func() { v = recover() }()
	run()
	return nil
}

func TestCheck(t *testing.T) {
	if v := caught(func() { invariant.Check(true, "never %d", 1) }); v != nil {
		t.Errorf("a check that holds panics with %v", v)
	}
	want := invariant.Violation{Message: "index 7 after 9"}
	if v := caught(func() { invariant.Check(false, "index %d after %d", 7, 9) }); v != want {
		t.Errorf("a check that fails panics with %v, want %v", v, want)
	}
	if v := caught(func() { invariant.Fail("index %d after %d", 7, 9) }); v != want {
		t.Errorf("Fail panics with %v, want %v", v, want)
	}
	if got := want.Error(); got != "felix: broken invariant: index 7 after 9" {
		t.Errorf("the message is %q", got)
	}
}
