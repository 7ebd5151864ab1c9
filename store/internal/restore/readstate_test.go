package restore

import (
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
)

// actors run one at a time, each as far as its next look at a read's state.
type actors struct {
	yield func(struct{}) bool // of the one that runs
	list  []*actor
}

type actor struct {
	next  func() (struct{}, bool)
	stop  func()
	ended bool
}

func (a *actors) add(f func()) {
	x := &actor{}
	x.next, x.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.yield = yield
		f()
	})
	var own func(struct{}) bool
	next := x.next
	x.next = func() (struct{}, bool) {
		a.yield = own
		v, more := next()
		own = a.yield
		return v, more
	}
	a.list = append(a.list, x)
}

// run lets the actors run in the order of schedule's bits, and says how many of them were used.
func (a *actors) run(schedule uint) (used int) {
	for {
		x := a.list[schedule>>used&1]
		if x.ended {
			x = a.list[1-schedule>>used&1]
		}
		if x.ended {
			return used
		}
		used++
		_, more := x.next()
		x.ended = !more
	}
}

// A drive is done with a read while the monitor leaves it to the drive, or thinks better of that: in
// every order of their looks at its state exactly one of them ends it, or, when it was left, exactly
// one lets its memory go.
func TestOneOfTwoEndsARead(t *testing.T) {
	t.Parallel()
	const looks = 12
	met := map[string]int{}
	for _, stays := range []bool{false, true} {
		for schedule := range uint(1) << looks {
			var s readState
			var a actors
			s.step = func() { a.yield(struct{}{}) }
			ends, frees, left := 0, 0, false
			a.add(func() { // the drive
				ended, free := s.came()
				if ended {
					ends++
				}
				if free {
					frees++
				}
			})
			a.add(func() { // the monitor
				if !s.leave() {
					return
				}
				if stays && s.stay() {
					ends++
				}
				if !stays {
					left = true
					if s.part() {
						frees++
					}
				}
			})
			require.LessOrEqual(t, a.run(schedule), looks, "more looks than are tried")
			what := fmt.Sprintf("stays %v, schedule %b", stays, schedule)
			if left {
				require.Equal(t, [2]int{0, 1}, [2]int{ends, frees}, what)
			} else {
				require.Equal(t, [2]int{1, 0}, [2]int{ends, frees}, what)
			}
			met[fmt.Sprint(stays, s.word.Load())]++
		}
	}
	// Every end there is was met.
	for _, end := range []string{fmt.Sprint(true, readDone), fmt.Sprint(false, readDone), fmt.Sprint(false, readBack), fmt.Sprint(false, readLeft)} {
		require.Positive(t, met[end], end)
	}
}

// A read that came back while it was being left, and could not be, ends once.
func TestReadThatStays(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		ch := &chunk{}
		ch.left.Store(2) // another is to come, so that nobody looks at the chunk
		r := &read{ch: ch}
		r.state.word.Store(readLeaving)
		if back {
			require.False(t, r.came())
			require.EqualValues(t, 2, ch.left.Load(), "whoever is leaving it ends it")
		}
		r.stay()
		if !back {
			require.EqualValues(t, 2, ch.left.Load())
			require.True(t, r.came())
			r.end(nil)
		}
		require.EqualValues(t, 1, ch.left.Load())
		require.EqualValues(t, readDone, r.state.is())
	}
}
