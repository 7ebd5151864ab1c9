package monitor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// host is a store of one drive that notes what it is told.
type host struct {
	drive    Drive
	excluded []health.State
	included int
	lost     []bool
}

func (h *host) Drives(from int) []Drive { return []Drive{h.drive}[from:] }

func (h *host) Exclude(_ int, s health.State, _ error) {
	h.excluded = append(h.excluded, s)
	h.drive.Standing.Set(s)
}

func (h *host) Include(_ int, s health.State) {
	h.included++
	h.drive.Standing.Set(s)
}

func (h *host) Changed(int, health.State)              {}
func (h *host) Hedge(int, time.Duration, health.State) {}
func (h *host) Lost(_ int, lost bool)                  { h.lost = append(h.lost, lost) }

// watching is a monitor of one drive on a memory device, whose file is at path.
func watching(t *testing.T, path string, removed *atomic.Bool) (*Monitor, *host) {
	t.Helper()
	flush := &segio.Flusher{}
	dev := flush.Use(device.NewMemory(1 << 20))
	h := &host{drive: Drive{Dev: dev, Flush: flush, Standing: &health.Standing{}, Path: path, File: true,
		Removed: removed.Load}}
	rules := health.DefaultRules
	rules.LostAfter, rules.FileEvery = 0, 0
	var background sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		background.Wait()
		require.NoError(t, dev.Close())
	})
	return New(Config{Host: h, Rules: rules, Context: ctx, Closing: ctx.Done(), Background: &background,
		Log: slog.New(slog.DiscardHandler)}), h
}

// look has the monitor look, and waits until the look at the drive's file has ended.
func look(t *testing.T, m *Monitor) {
	t.Helper()
	m.Look()
	require.Eventually(t, func() bool { return !m.list[0].file.looking.Load() }, time.Minute, time.Millisecond)
}

// A drive whose file is removed under the store is out of use; one that was taken out in order is nobody's concern.
func TestAFileThatIsGone(t *testing.T) {
	t.Parallel()
	for _, out := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "device")
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		var removed atomic.Bool
		m, h := watching(t, path, &removed)
		look(t, m)
		require.Empty(t, h.excluded)
		removed.Store(out)
		require.NoError(t, os.Remove(path))
		for range 5 {
			look(t, m)
		}
		require.Equal(t, out, len(h.excluded) == 0, "taken out: %v", out)
		require.Equal(t, out, len(h.lost) == 0, "taken out: %v", out)
	}
}

// A drive that was fenced for a write that failed is probed, and let back in once it answers.
func TestAFencedDriveIsProbed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	var removed atomic.Bool
	m, h := watching(t, path, &removed)
	h.drive.Standing.Force(errors.New("a write failed"))
	require.Eventually(t, func() bool { m.Look(); return h.included > 0 }, time.Minute, time.Millisecond)
	require.Equal(t, []health.State{health.Fenced}, h.excluded)
	require.Equal(t, health.Healthy, h.drive.Standing.State())
}
