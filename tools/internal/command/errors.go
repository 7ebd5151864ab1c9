package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
)

// usageError is a mistake on the command line.
type usageError struct {
	program string
	err     error
	next    string
}

// Usage is a mistake on the command line of cmd, and what to do instead.
func Usage(cmd *cobra.Command, err error, next string) error {
	return &usageError{cmd.Root().Name(), err, next}
}

func (e *usageError) Error() string        { return e.program + ": " + e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == skep.Invalid }

// hint is an error that knows what to do next.
type hint struct {
	error
	next string
}

func (h *hint) Unwrap() error { return h.error }

// WithNext has err say what to do next.
func WithNext(err error, next string) error {
	if err == nil {
		return nil
	}
	return &hint{err, next}
}

// passing is an error that may be over when the same command is given again.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// HasNext says whether err says by itself what to do next.
func HasNext(err error) bool {
	var h *hint
	var u *usageError
	return errors.As(err, &h) || errors.As(err, &u)
}

// Passing marks an error that may be over when the same command is given again: its exit code says to try
// again, and not that what was given is wrong.
func Passing(err error) error { return passing{err} }

// Placed is an error of another package than skep that says its field, value and limit.
type Placed interface {
	error
	Place() (field, value, limit string)
}

// Failure is an error as --json prints it.
type Failure struct {
	Error FailureBody `json:"error"` // what went wrong
}

// FailureBody is what is said of an error.
type FailureBody struct {
	// kind of failure, as in package skep: invalid, not found, missing device, …; canceled where it was interrupted
	Kind    string `json:"kind"`
	Message string `json:"message"` // the whole message
	Field   string `json:"field"`   // the flag, file position or option at fault; empty when none is
	Value   string `json:"value"`   // what it was
	Limit   string `json:"limit"`   // what it may be
	Next    string `json:"next"`    // what to do next
}

// fail prints err, with what to do next, and returns the exit code.
func (a *App) fail(err error) int {
	if isCobraUsage(err) {
		err = &usageError{a.Name, err, a.Name + " --help lists the commands"}
	}
	next := NextStep(err)
	// A line after the first is indented: of a message that quotes a name, none looks like one of the command's own.
	fmt.Fprintln(a.Err, strings.ReplaceAll(PrintableLines(err.Error()), "\n", "\n  "))
	if next != "" {
		fmt.Fprintln(a.Err, "next:", Printable(next))
	}
	if a.JSON && (a.Lines || !a.out.some) { // a result that was printed before it stays the one document
		_ = a.Print(Failure{describe(err, next)}, nil) // where it is lost, the text above says so
	}
	return CodeOf(err)
}

// codes are the exit codes of kinds of errors; the first that an error is counts. All others end with Failed.
var codes = []struct {
	code  int
	kinds []error
}{
	{Failed, []error{skep.Damaged}}, // it may lack files, and none that anybody gave
	{Denied, []error{skep.Denied}},
	{Input, []error{skep.Invalid, skep.Foreign, skep.Conflict, skep.Version}},
	{NotFound, []error{skep.NotFound, skep.Missing}},
	{TryAgain, []error{skep.Locked, skep.Unavailable, skep.Overloaded, skep.Deadline, context.DeadlineExceeded, skep.NoMemory, skep.NotReleased, skep.StaleMap, skep.Behind}},
	{Input, []error{os.ErrNotExist}},
	{Denied, []error{os.ErrPermission}},
}

// CodeOf is the exit code of a command that ends with err.
func CodeOf(err error) int {
	var p passing
	switch {
	case err == nil:
		return OK
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.As(err, &p):
		return TryAgain
	}
	err = first(err)
	for _, c := range codes {
		if slices.Contains(c.kinds, error(skep.KindOf(err))) {
			return c.code // whatever that came of
		}
	}
	for _, c := range codes {
		for _, kind := range c.kinds {
			if kind == skep.Damaged && skep.KindOf(err) != skep.Damaged {
				continue // something else went wrong for it
			}
			if errors.Is(err, kind) {
				return c.code
			}
		}
	}
	return Failed
}

// first is what went wrong before memory was not released, where err says that of something else that failed.
func first(err error) error {
	var e *skep.Error
	for errors.As(err, &e) && e.Kind == skep.NotReleased && skep.KindOf(e.Err) != skep.Other {
		err = e.Err
	}
	return err
}

// isCobraUsage recognises what cobra itself returns for unknown commands and missing
// arguments: plain errors, where all of ours are typed.
func isCobraUsage(err error) bool {
	var own *skep.Error
	var usage *usageError
	return skep.KindOf(err) == skep.Other && !errors.As(err, &own) && !errors.As(err, &usage) && !errors.Is(err, skep.Invalid) &&
		errors.Unwrap(err) == nil && !errors.Is(err, context.Canceled) && isPlain(err)
}

// isPlain says that err is a bare errors.New or fmt.Errorf without a cause.
func isPlain(err error) bool {
	s := fmt.Sprintf("%T", err)
	return strings.HasSuffix(s, "errorString") || strings.HasSuffix(s, "fmt.wrapError")
}

func describe(err error, next string) FailureBody {
	f := FailureBody{Kind: skep.KindOf(first(err)).Error(), Message: err.Error(), Next: next}
	if errors.Is(err, context.Canceled) {
		f.Kind = "canceled"
	}
	if code := CodeOf(err); f.Kind == skep.Other.Error() && code != Failed && code != TryAgain {
		f.Kind = skep.Invalid.Error()
	}
	var e *skep.Error
	var p Placed
	switch {
	case errors.As(err, &p):
		f.Field, f.Value, f.Limit = p.Place()
	case errors.As(err, &e):
		f.Field, f.Value, f.Limit = e.Field, text(e.Value), text(e.Limit)
	}
	return f
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
