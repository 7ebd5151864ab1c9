package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

type tests func() int

func (f tests) Run() int { return f() }

// Goroutines that end while they are looked for are none that were left, and what an option ignores is none.
//
// Alone: goroutines of the whole process are looked for.
func TestFind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	end := make(chan struct{})
	go stays(end)
	require.ErrorContains(t, find(0, []goleak.Option{before}), "leaks.stays")
	require.NoError(t,
		find(0, []goleak.Option{before, goleak.IgnoreTopFunction("github.com/skepkv/skep/tools/leaks.stays")}))

	go func() { // three looks in vain take three times as long as one that has no patience
		for range 3 {
			_ = goleak.Find(before)
		}
		close(end)
	}()
	require.Zero(t, Run(tests(func() int { return 0 }), before))
	require.Equal(t, 3, Run(tests(func() int { return 3 }), before))
}

//go:noinline
func stays(end <-chan struct{}) { <-end }
