package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/fence"
)

// leased is a fence of node 0 whose clock is the test's.
func leased(t *testing.T, silence uint32) (f *fence.Fence, c *council, now *time.Duration) {
	t.Helper()
	m := three(3, 4)
	m.Silence = clustermap.Silence{After: silence, Epoch: m.Epoch}
	c, now = &council{m: m}, new(time.Duration)
	f = fence.New(nil, nil, m.Nodes[0].Name, m.Nodes[0].ID)
	f.Clock = func() time.Duration { return *now }
	require.NoError(t, f.Return(t.Context(), c))
	require.True(t, f.Open())
	return f, c, now
}

func (c *council) silence(t *testing.T, after uint32) {
	t.Helper()
	_, err := c.Propose(t.Context(), &clustermap.Command{Do: clustermap.SetSilence, After: after})
	require.NoError(t, err)
}

// A node serves for half of the silence after it was heard.
func TestALeaseEnds(t *testing.T) {
	t.Parallel()
	f, c, now := leased(t, 20)
	require.EqualValues(t, 20, c.Map().Nodes[0].Lease)
	*now = 10*time.Second - 1
	require.True(t, f.Open())
	*now++
	require.False(t, f.Open())
	_, err := f.Namespaces(t.Context())
	require.ErrorIs(t, err, skep.Behind)
	require.NoError(t, f.Return(t.Context(), c), "it is heard with that")
	require.True(t, f.Open())
}

// A longer lease counts once most voters have noted it, a shorter one from before they do, and it ceases to count once
// they have noted that there is none.
func TestALeaseIsKeptToFromBeforeItIsNoted(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		was, is uint32
		mute    bool          // it is noted, and the node does not hear so
		ends    time.Duration // of the lease, while that is not known
	}{
		"longer":                   {20, 600, false, 10 * time.Second},
		"longer, and noted":        {20, 600, true, 10 * time.Second},
		"shorter":                  {600, 20, false, 10 * time.Second},
		"shorter, and noted":       {600, 20, true, 10 * time.Second},
		"none any more":            {20, 0, false, 10 * time.Second},
		"none any more, and noted": {20, 0, true, 10 * time.Second},
		"the first":                {0, 20, true, 10 * time.Second},
		"the first, not noted":     {0, 20, false, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c, now := leased(t, x.was)
			c.silence(t, x.is)
			require.True(t, f.Heard(c.Map()), "it is to keep to another one")
			c.lost, c.mute = !x.mute, x.mute
			require.ErrorIs(t, f.Return(t.Context(), c), skep.Unavailable)
			*now = x.ends - 1
			require.True(t, f.Open())
			*now = x.ends
			require.False(t, f.Open())
			c.lost, c.mute = false, false
			require.NoError(t, f.Return(t.Context(), c))
			require.Equal(t, x.is, c.Map().Nodes[0].Lease)
			require.False(t, f.Heard(c.Map()))
			*now += 9 * time.Second
			require.True(t, f.Open())
			*now += time.Hour
			require.Equal(t, x.is == 0, f.Open())
		})
	}
}

// A node whose cluster was recovered without it serves nothing any more, with a lease or without.
func TestANodeThatIsLeftBehindServesNoMore(t *testing.T) {
	t.Parallel()
	for _, silence := range []uint32{0, 20} {
		f, c, _ := leased(t, silence)
		c.mu.Lock()
		c.behind = &skep.Error{Op: "cluster", Kind: skep.Behind, Field: "cluster"}
		c.mu.Unlock()
		require.False(t, f.Open())
		_, err := f.Namespaces(t.Context())
		require.ErrorIs(t, err, skep.Behind)
	}
}
