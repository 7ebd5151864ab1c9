package failpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
)

// Kinds of failpoints.
const (
	Variable = "error"   // an error variable that is compared with nil, or whose kind is asked
	Context  = "context" // a context that is asked whether it has ended
	Channel  = "channel" // a case of a select that gives an error
)

// Point is a failpoint.
type Point struct {
	File string `json:"file"` // from the repository's root
	Line int    `json:"line"`
	Func string `json:"func"`
	Text string `json:"text"` // of the source
	Kind string `json:"kind"`
	Of   string `json:"of"` // what gave the error: the source of a call, "" where that is not known
}

// Return is an error return: where it stands in its file.
type Return struct {
	File         string `json:"file"`
	Line, Column int
}

// List is all there are, by number.
type List struct {
	Points  []Point  `json:"points"`
	Returns []Return `json:"returns"`
}

// Load reads what errpaths wrote.
func Load(name string) (l List, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(b, &l)
}

// limits are how many failpoints and returns there may be.
const limits = 4096

var (
	passed  [limits]atomic.Int64
	reached [limits]atomic.Bool
	armed   atomic.Pointer[arming]
)

// arming is the failpoint that is armed.
type arming struct {
	n      int
	left   atomic.Int64 // passes until it fires, this one included
	err    error
	cancel context.CancelFunc
	fired  atomic.Bool
}

// Arm has failpoint n fire at its pass-th pass from now on, from 1: with err, where it is of
// kind Variable, or by calling cancel, where it is of kind Context or Channel; cancel ends the
// context of what the caller is about to do. It gives a function that disarms it and says
// whether it has fired.
func Arm(n int, pass int64, err error, cancel context.CancelFunc) (disarm func() bool) {
	a := &arming{n: n, err: err, cancel: cancel}
	a.left.Store(pass)
	armed.Store(a)
	return func() bool {
		armed.CompareAndSwap(a, nil)
		return a.fired.Load()
	}
}

// Passed is how often n was passed so far.
func Passed(n int) int64 { return passed[n].Load() }

// Reached notes that error return n is about to be taken.
func Reached(n int) { reached[n].Store(true) }

// fires counts a pass and gives the arming when it is to fire.
func fires(n int) *arming {
	passed[n].Add(1)
	a := armed.Load()
	if a == nil || a.n != n || a.left.Add(-1) != 0 {
		return nil
	}
	a.fired.Store(true)
	return a
}

// Is says whether *err is not nil.
func Is(n int, err *error) bool { return Of(n, err) != nil }

// Of gives *err.
func Of(n int, err *error) error {
	if a := fires(n); a != nil {
		*err = a.err
	}
	return *err
}

// Gave gives err, what a call gave.
func Gave(n int, err error) error { return Of(n, &err) }

// Ended gives ctx.Err().
func Ended(n int, ctx context.Context) error {
	if a := fires(n); a != nil {
		a.cancel()
	}
	return ctx.Err()
}

// Case gives c, or a channel that is ready. Others of its select may be ready too.
func Case[T any](n int, c <-chan T) <-chan T {
	a := fires(n)
	if a == nil {
		return c
	}
	a.cancel()
	ready := make(chan T)
	close(ready)
	return ready
}

// Save writes the error returns that were reached to a file, as lines of a coverage profile;
// module is what paths in it begin with.
func Save(name, module string, l List) error {
	var b []byte
	for i, r := range l.Returns {
		if reached[i].Load() {
			b = fmt.Appendf(b, "%s%s:%d.%d,%d.%d 1 1\n", module, r.File, r.Line, r.Column, r.Line, r.Column+1)
		}
	}
	return os.WriteFile(name, b, 0o644)
}
