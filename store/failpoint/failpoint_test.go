package failpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A failpoint fires once, at the pass it is armed for.
func TestFiresAtItsPass(t *testing.T) {
	t.Parallel()
	was := Passed(7)
	broken := errors.New("broken")
	disarm := Arm(7, 2, broken, func() {})
	var err error
	require.False(t, Is(7, &err))
	require.False(t, Is(8, &err), "another")
	require.True(t, Is(7, &err))
	require.Equal(t, broken, err)
	err = nil
	require.NoError(t, Of(7, &err))
	require.True(t, disarm())
	require.EqualValues(t, 3, Passed(7)-was)

	disarm = Arm(7, 1, broken, func() {})
	require.False(t, disarm(), "nobody came by")
	require.False(t, Is(7, &err), "it is not armed any more")
}

// Of a context and a channel the failpoint ends the operation.
func TestEndsTheOperation(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	disarm := Arm(9, 1, nil, cancel)
	require.ErrorIs(t, Ended(9, ctx), context.Canceled)
	require.True(t, disarm())
	ctx, cancel = context.WithCancel(context.Background())
	disarm = Arm(10, 1, nil, cancel)
	never := make(chan int)
	<-Case(10, never)
	require.True(t, disarm())
	require.Error(t, ctx.Err())
	select {
	case <-Case(10, never):
		require.Fail(t, "it fired twice")
	default:
	}
}

// What was reached is told as a coverage profile.
func TestSaves(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "cover")
	Reached(1)
	require.NoError(t, Save(name, "m/", List{Returns: []Return{{"a.go", 5, 3}, {"b.go", 7, 2}}}))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "m/b.go:7.2,7.3 1 1\n", string(b))
}
