// Package invariant stops the process when something that can only be a bug,
// or a damaged disk, is found. Felix never goes on with doubtful data; bad
// input from outside never ends here, it gets an error.
package invariant

import "fmt"

// Violation is the value that the process panics with.
type Violation struct{ Message string }

// Error makes a Violation readable where a panic is printed.
func (v Violation) Error() string { return "felix: broken invariant: " + v.Message }

// Check panics with a Violation if ok is false.
func Check(ok bool, format string, args ...any) {
	if !ok {
		Fail(format, args...)
	}
}

// Fail panics with a Violation.
func Fail(format string, args ...any) {
	panic(Violation{Message: fmt.Sprintf(format, args...)})
}
