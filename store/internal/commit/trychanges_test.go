package commit

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A delete that the catalog would refuse waits for the lock of changes for 20 ms at most, and no longer than its
// context: who has the lock may wait for the catalog.
func TestARefusedDeleteHardlyWaitsForTheLock(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	for name, c := range map[string]struct {
		held, ends, waits time.Duration
		takes             bool
	}{
		"free":                   {0, never, 0, true},
		"free soon":              {5*time.Millisecond - 1, never, 5 * time.Millisecond, true},
		"held":                   {never / 2, never, 20 * time.Millisecond, false},
		"held, and given up":     {never / 2, 3*time.Millisecond - 1, 3*time.Millisecond - 1, false},
		"free, but given up":     {0, 0, 0, true},
		"free after its context": {10 * time.Millisecond, 5*time.Millisecond - 1, 5*time.Millisecond - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := New(slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					if c.held > 0 {
						r.changes.Lock()
						defer r.changes.Unlock()
						time.Sleep(c.held)
					}
				}()
				synctest.Wait() // it has the lock
				began := time.Now()
				require.Equal(t, c.takes, r.tryChanges(ctx))
				require.Equal(t, c.waits, time.Since(began))
				if c.takes {
					r.changes.Unlock()
				}
				<-done
			})
		})
	}
}
