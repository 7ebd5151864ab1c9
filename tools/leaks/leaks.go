// Package leaks looks for goroutines that the tests of a package leave behind.
package leaks

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is how long what is ending may take to end, on a machine that has other work.
const patience = time.Minute

// Main runs the tests of a package and ends the process, as goleak.VerifyTestMain does, which has patience for 0.4 s.
func Main(m goleak.TestingM, options ...goleak.Option) { os.Exit(Run(m, options...)) }

// Run runs the tests of a package and is what the process is to end with.
func Run(m goleak.TestingM, options ...goleak.Option) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := Find(options...); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		return 1
	}
	return 0
}

// Find is goleak.Find with patience: it says which goroutines are there after a minute still.
func Find(options ...goleak.Option) error { return find(patience, options) }

func find(within time.Duration, options []goleak.Option) error {
	err := goleak.Find(options...)
	for end := time.Now().Add(within); err != nil && time.Now().Before(end); {
		err = goleak.Find(options...)
	}
	return err
}
