package store

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/pinned"
	"github.com/skepkv/skep/store/memory"
)

// Others have all memory for reads, and no drive is involved: a chain that is given up is back at once, whether its
// chunk waits for memory or is behind another chain's that does. What was not given up comes once there is memory.
func TestWhatIsGivenUpWaitsForNoMemory(t *testing.T) {
	t.Parallel()
	stop := func(chains ...int) func(*testing.T, context.Context, skep.Session) {
		return func(t *testing.T, ctx context.Context, ses skep.Session) {
			for _, i := range chains {
				require.NoError(t, ses.Stop(ctx, i), "chain %d", i)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		giveUp func(t *testing.T, ctx context.Context, ses skep.Session)
		come   int
	}{
		{"the one that waits", stop(0), 1},
		{"the one behind it", stop(1), 1},
		{"first the one behind it", stop(1, 0), 0},
		{"by their deadlines", func(t *testing.T, ctx context.Context, ses skep.Session) {
			for i := range 2 {
				require.NoError(t, ses.Reprioritise(ctx, i, 0, skep.Steady().Add(-time.Second)))
			}
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, _, _ := openRig(t, func(o *Options) { o.OpTimeout = time.Hour })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			r := &skep.RestoreRequest{}
			for i := range 2 {
				keys := chainKeys(i, 1)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4096))
				r.Chains = append(r.Chains, skep.Chain{Scope: sc, Keys: keys})
			}
			require.NoError(t, s.Flush(ctx))
			bufs := holdMemory(s.arena)
			defer func() { memory.ReleaseAll(bufs) }()
			ses, err := s.Restore(ctx, r)
			require.NoError(t, err)
			eventually(t, "a chunk waits for memory", func() bool { return s.arena.Stats().Waiters > 0 })
			tt.giveUp(t, ctx, ses)
			if tt.come > 0 {
				memory.ReleaseAll(bufs)
				bufs = nil
			}
			came, into := 0, make([]skep.Chunk, 4)
			for {
				n, err := ses.Next(ctx, into)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				for i := range into[:n] {
					if into[i].Err == nil {
						came++
						into[i].Release()
					}
				}
			}
			require.Equal(t, tt.come, came)
			require.NoError(t, ses.Close(ctx))
		})
	}
}

// holdMemory takes all memory that there is for reads and writes.
func holdMemory(arena *pinned.Arena) (bufs []*memory.Buffer) {
	for n := arena.MaxBlock(); n > 0; {
		b, err := arena.TryAlloc(n, memory.BudgetIO)
		if err != nil {
			n /= 2
			continue
		}
		bufs = append(bufs, b)
	}
	return bufs
}
