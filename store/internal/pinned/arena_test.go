package pinned

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// partBytes is the size of each part of the arenas here.
const partBytes = memory.LimitMaxBlock

// registrar is a device that takes memory, until it is to refuse.
type registrar struct {
	device.Device
	mu     sync.Mutex
	refuse error
	asked  int
	taken  int // parts
}

func (r *registrar) RegisterArena(mem []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.refuse != nil {
		return r.refuse
	}
	r.taken++
	return nil
}

func (r *registrar) counts() (asked, taken int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked, r.taken
}

// driveOn is a drive on a device.
func driveOn(dev device.Device) *space.Drive {
	d := &space.Drive{Path: "drive"}
	d.Use(dev)
	return d
}

// arenaOf is an arena of two parts, which runs, and what it logs once it has ended.
func arenaOf(t *testing.T, drives ...*space.Drive) (a *Arena, end func() (logged string)) {
	t.Helper()
	var log bytes.Buffer
	set := members.New(members.Config{Context: t.Context()})
	set.Opened = drives
	a, err := New(memory.Options{IO: 2 * partBytes, MaxBlock: partBytes, SmallPages: true}, set,
		slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	var once sync.Once
	end = func() string {
		once.Do(func() {
			cancel()
			running.Wait()
		})
		return log.String()
	}
	t.Cleanup(func() {
		end()
		require.NoError(t, a.Close(context.Background()))
	})
	return a, end
}

// usePart has a buffer lie in a part that none lay in.
func usePart(t *testing.T, a *Arena) {
	t.Helper()
	b, err := a.Alloc(t.Context(), partBytes, memory.BudgetIO)
	require.NoError(t, err)
	t.Cleanup(b.Release)
}

// registered waits until the parts in use are known to the drives.
func registered(t *testing.T, a *Arena, parts int) {
	t.Helper()
	require.Eventually(t, func() bool { return a.Idle(0) == int64(parts)*partBytes }, time.Minute, time.Millisecond)
}

// A part is registered with every drive when the first buffer lies in it, and not before: what is registered is
// resident.
func TestPartsAreRegisteredAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	one, two := &registrar{Device: device.NewMemory(1 << 20)}, &registrar{Device: device.NewMemory(1 << 20)}
	a, end := arenaOf(t, driveOn(one), driveOn(two))
	require.Equal(t, 2, a.Parts())
	require.Zero(t, a.Idle(0))
	for parts := 1; parts <= 2; parts++ {
		usePart(t, a)
		registered(t, a, parts)
		require.EqualValues(t, parts*partBytes-4096, a.Idle(4096), "what is in use is not idle")
	}
	require.Zero(t, a.Idle(3*partBytes))
	require.Empty(t, end())
	for _, r := range []*registrar{one, two} {
		asked, taken := r.counts()
		require.Equal(t, [2]int{2, 2}, [2]int{asked, taken})
	}
}

// A drive that is added gets what is in use already, once.
func TestADriveThatIsAddedGetsWhatIsInUse(t *testing.T) {
	t.Parallel()
	a, _ := arenaOf(t, driveOn(&registrar{Device: device.NewMemory(1 << 20)}))
	usePart(t, a)
	registered(t, a, 1)
	r := &registrar{Device: device.NewMemory(1 << 20)}
	added := driveOn(r)
	for range 2 {
		a.Register(t.Context(), added)
	}
	asked, taken := r.counts()
	require.Equal(t, [2]int{1, 1}, [2]int{asked, taken})
}

// A drive that has refused memory is left alone, and the others get theirs. The log says so, unless the drive cannot
// take any.
func TestADriveThatRefusesIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		refuse error
		logged string
	}{
		{"it has no room", errors.New("no room"), "no room"},
		{"it cannot take any", errors.ErrUnsupported, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bad := &registrar{Device: device.NewMemory(1 << 20), refuse: c.refuse}
			good := &registrar{Device: device.NewMemory(1 << 20)}
			a, end := arenaOf(t, driveOn(bad), driveOn(good))
			for parts := 1; parts <= 2; parts++ {
				usePart(t, a)
				registered(t, a, parts)
			}
			logged := end()
			asked, _ := bad.counts()
			require.Equal(t, 1, asked)
			_, taken := good.counts()
			require.Equal(t, 2, taken)
			if c.logged == "" {
				require.Empty(t, logged)
			} else {
				require.Equal(t, 1, bytes.Count([]byte(logged), []byte(c.logged)), logged)
			}
		})
	}
}

// Nothing is registered with a drive that was removed, nor with one that is not there yet.
func TestARemovedDriveGetsNoMemory(t *testing.T) {
	t.Parallel()
	r := &registrar{Device: device.NewMemory(1 << 20)}
	gone := driveOn(r)
	gone.Removed.Store(true)
	good := driveOn(&registrar{Device: device.NewMemory(1 << 20)})
	a, _ := arenaOf(t, nil, gone, good)
	usePart(t, a)
	registered(t, a, 1)
	asked, _ := r.counts()
	require.Zero(t, asked)
}

// An error that comes since the store ends is none of the drive's.
func TestTheEndOfTheStoreIsNoRefusal(t *testing.T) {
	t.Parallel()
	a, end := arenaOf(t, driveOn(&registrar{Device: device.NewMemory(1 << 20)}))
	usePart(t, a)
	registered(t, a, 1)
	r := &registrar{Device: device.NewMemory(1 << 20), refuse: device.ErrClosed}
	d := driveOn(r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Register(ctx, d)
	require.Zero(t, d.Pinned)
	require.Empty(t, end())
}
