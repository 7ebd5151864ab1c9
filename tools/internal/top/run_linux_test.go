package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

// terminal is one, and who sits at it.
func terminal(t *testing.T) (term, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made here:", err)
	}
	t.Cleanup(func() { person.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	term, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { term.Close() })
	go func() { _, _ = io.Copy(io.Discard, person) }() // ends with the terminal
	return term, person
}

// q ends a view as it should; a signal interrupts it, and the error says so.
func TestWhatEndsAView(t *testing.T) {
	t.Parallel()
	term, person := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{In: term, Out: term, Interval: DefaultInterval, Ask: func(context.Context) (skep.Stats, error) {
		cancel()
		return skep.Stats{}, nil
	}}
	require.ErrorIs(t, Run(ctx, o), context.Canceled)
	o.Ask = func(context.Context) (skep.Stats, error) { return skep.Stats{}, nil }
	_, err := person.WriteString("qq") // whoever read keys before has the first
	require.NoError(t, err)
	require.NoError(t, Run(t.Context(), o))
}
