package store

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/observe"
)

// logText is a log that a test reads while it is written.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func stateOfDevice(t testing.TB, s *Store, i int) skep.DeviceStats {
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return st.Devices[i]
}

// A drive that gives only wrong bytes is fenced, and let back in when what is written to it can
// be read again. The log says so in few lines, however many reads were wrong.
func TestADriveThatGivesWrongBytes(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{1, 2} {
		t.Run("copies "+itoa(copies), func(t *testing.T) {
			var log logText
			ctx := testContext(t)
			s, r, _ := openRig(t, func(o *Options) {
				quick(o)
				o.CapacityBytes *= 4 // what is repaired is written a second time: nothing is evicted for it
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, copies, false)
			keys := chainKeys(1, 100)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			events, err := s.Events(ctx, skep.Cursor{}, false)
			require.NoError(t, err)
			defer events.Close()
			r.each(func(i int, d *device.Fault) {
				if i == 1 {
					d.MustInject(device.Rule{Action: device.FlipBit, Kinds: device.Reads})
				}
			})
			eventually(t, "the drive is fenced", func() bool {
				_, reasons := requireRight(t, s, sc, keys, faultBlock)
				if copies == 2 {
					require.Empty(t, reasons, "the other copy is right")
				}
				return strings.HasPrefix(stateOfDevice(t, s, 1).State, "fenced: ")
			})
			require.Contains(t, stateOfDevice(t, s, 1).State, "gives wrong bytes")
			require.NotZero(t, stateOfDevice(t, s, 1).WrongReads)
			require.Equal(t, "ok", stateOfDevice(t, s, 0).State)
			require.Zero(t, stateOfDevice(t, s, 0).WrongReads)
			into, seen := make([]skep.Event, 64), false
			for !seen {
				n, err := events.Next(ctx, into)
				require.NoError(t, err)
				for _, e := range into[:n] {
					seen = seen || e.Kind == skep.EventDevice && e.Depth == 1 && e.Reason == skep.DeviceFailed
				}
			}
			require.LessOrEqual(t, log.count("level=ERROR msg=\"damaged"), 3*observe.SeldomLines)
			r.each(func(_ int, d *device.Fault) { d.Clear() })
			eventually(t, "the drive is let back in", func() bool { return stateOfDevice(t, s, 1).State == "ok" })
		})
	}
}

// The file of a device is removed, or moved, under an open store: the drive takes no new blocks,
// for they would be lost at the close; what it holds is read; when the file is back all is well.
func TestADeviceFileIsRemoved(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	well(&o)
	o.rules.FileEvery, o.rules.ProbeEvery, o.CacheBytes = 5*time.Millisecond, 10*time.Millisecond, -1
	s, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	d := s.members.Opened[0]
	require.NoError(t, os.Rename(d.Path, d.Path+".away"))
	eventually(t, "it is noticed", func() bool { return strings.HasPrefix(stateOfDevice(t, s, 0).State, "fenced: ") })
	require.Contains(t, stateOfDevice(t, s, 0).State, "device failed: "+d.Path+": its file was removed, or moved")
	require.Contains(t, stateOfDevice(t, s, 0).State, "removed, or moved")
	requireChain(t, s, sc, keys, faultBlock)
	more := chainKeys(2, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, more, faultBlock))
	s.space.Inside().Lock()
	for _, g := range s.space.Inside().Open {
		require.False(t, g != nil && g.Has(d), "nothing is written to it")
	}
	s.space.Inside().Unlock()
	require.NoError(t, os.WriteFile(d.Path, nil, 0o600))
	for range 10 {
		time.Sleep(10 * time.Millisecond)
		require.NotEqual(t, "ok", stateOfDevice(t, s, 0).State, "another file is not it")
	}
	require.NoError(t, os.Rename(d.Path+".away", d.Path))
	eventually(t, "it is let back in", func() bool { return stateOfDevice(t, s, 0).State == "ok" })
	requireChain(t, s, sc, append(keys, more...), faultBlock)
}
