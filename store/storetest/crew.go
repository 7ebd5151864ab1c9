package storetest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Crew runs parts of a test on goroutines of their own. What fails on one of them is brought home:
// FailNow, and with it require, ends that goroutine, and Wait ends the test on its own.
//
//	crew := storetest.NewCrew(t)
//	crew.Go(func(t testing.TB) { require.NoError(t, s.Flush(ctx)) })
//	crew.Wait()
type Crew struct {
	t      testing.TB
	wg     sync.WaitGroup
	failed atomic.Bool
}

// NewCrew makes a crew without anybody in it.
func NewCrew(t testing.TB) *Crew { return &Crew{t: t} }

// Go runs f on another goroutine, with a t for it alone.
func (c *Crew) Go(f func(t testing.TB)) {
	c.wg.Go(func() { f(&hand{TB: c.t, crew: c}) })
}

// Failed says whether what one of them did failed so far: the others may end early.
func (c *Crew) Failed() bool { return c.failed.Load() }

// Wait waits for all of them, and ends the test when one failed. For the test's goroutine.
func (c *Crew) Wait() {
	c.t.Helper()
	c.wg.Wait()
	if c.failed.Load() {
		c.t.FailNow()
	}
}

// hand is the t of one goroutine.
type hand struct {
	testing.TB
	crew *Crew
}

func (h *hand) FailNow() {
	h.TB.Fail()
	h.crew.failed.Store(true)
	runtime.Goexit()
}

func (h *hand) Fatal(args ...any) {
	h.TB.Helper()
	h.TB.Error(args...)
	h.FailNow()
}

func (h *hand) Fatalf(format string, args ...any) {
	h.TB.Helper()
	h.TB.Errorf(format, args...)
	h.FailNow()
}

func (h *hand) SkipNow()                 { h.Fatal("a goroutine skips no test") }
func (h *hand) Skip(args ...any)         { h.Fatal(append([]any{"a goroutine skips no test: "}, args...)...) }
func (h *hand) Skipf(f string, a ...any) { h.Skip(fmt.Sprintf(f, a...)) }

// hangs is how long what must happen at some time may take, on a machine that has much else to do.
const hangs = 3 * time.Minute

// Eventually polls ok, on the caller's goroutine, until it holds.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hangs); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it never happened: %s", what)
}
