package fence

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/clustermap"
)

// slow is most voters, who take a while to answer.
type slow struct{ takes func() }

func (s slow) Map() *clustermap.Map { return nil }

func (s slow) Propose(context.Context, *clustermap.Command) (uint32, error) { return 0, nil }

func (s slow) Renew(context.Context) error { s.takes(); return nil }

func (s slow) LeftBehind() error { return nil }

// A lease that was renewed counts from when that was asked for: who leads counts the silence from when it heard it,
// which may have been at once, and the answer late.
func TestALeaseCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	now := 5 * time.Second
	f := New(nil, nil, "a", 1)
	f.Clock = func() time.Duration { return now }
	f.Alone(slow{func() { now += 2 * time.Second }}, &clustermap.Map{Silence: clustermap.Silence{After: 20}})
	now = 9 * time.Second
	_, down := f.renew(t.Context())
	require.False(t, down)
	require.Equal(t, 11*time.Second, now)
	now = 19*time.Second - 1
	require.True(t, f.Open())
	now = 19 * time.Second
	require.False(t, f.Open(), "ten seconds after it was asked for")
}
