package limits

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A lone call is admitted however large it is, others as long as there is room; and a tenant beside others leaves
// some.
func TestCalls(t *testing.T) {
	t.Parallel()
	const most = 400
	alone := true
	c := NewCalls(most, func() bool { return alone })
	large, err := c.Enter("put", 1, 10*most)
	require.NoError(t, err, "it is the only one")
	_, err = c.Enter("put", 1, 1)
	var refused *skep.Error
	require.True(t, errors.As(err, &refused))
	require.Equal(t, skep.Overloaded, refused.Kind)
	require.Positive(t, refused.RetryAfter)
	c.Leave(1, large)

	alone = false
	counted, err := c.Enter("put", 1, 10*most)
	require.NoError(t, err)
	require.EqualValues(t, 300, counted, "its share: others find the rest")
	_, err = c.Enter("put", 1, 1)
	require.Equal(t, skep.Overloaded, skep.KindOf(err), "it has its share")
	other, err := c.Enter("restore", 2, 50)
	require.NoError(t, err)
	bytes, n := c.Under()
	require.EqualValues(t, 350, bytes)
	require.EqualValues(t, 2, n)
	require.Equal(t, 2, c.Tenants())
	c.Leave(1, counted)
	c.Leave(2, other)
	bytes, _ = c.Under()
	require.Zero(t, bytes)
	require.Zero(t, c.Tenants())
}
