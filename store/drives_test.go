package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/storetest"
)

// quick judges drives within milliseconds, so that tests need not wait.
func quick(o *Options) {
	o.rules = health.DefaultRules
	o.rules.Tick, o.rules.Hung, o.rules.HungWrites = 5*time.Millisecond, 500*time.Millisecond, 800*time.Millisecond
	o.rules.ProbeEvery, o.rules.Tolerate, o.rules.Floor = 10*time.Millisecond, 100*time.Millisecond, 8*time.Millisecond
	o.rules.HedgeMin, o.rules.HedgeMax = 20*time.Millisecond, 60*time.Millisecond
	o.OpTimeout = hangs // nothing below may depend on it
}

// well is for tests whose drives are well: none is judged, however busy the machine.
func well(o *Options) {
	unjudged(o)
	o.OpTimeout = hangs
}

// A block of several units lies on every drive in every copy.
const (
	smallBlock = 12 << 10
	largeBlock = 2560 << 10
)

type driveFault struct {
	name  string
	rules []device.Rule
	reads bool // it keeps reads from being answered
}

func driveFaults() []driveFault {
	all := func(a device.Action, k device.Kinds) device.Rule { return device.Rule{Action: a, Kinds: k} }
	return []driveFault{
		{"gone", []device.Rule{device.GoneRule()}, true},
		{"EIO", []device.Rule{all(device.Fail, 0)}, true},
		{"reads fail", []device.Rule{all(device.Fail, device.Reads)}, true},
		{"writes fail", []device.Rule{all(device.Fail, device.Writes)}, false},
		{"read-only", []device.Rule{device.ReadOnlyRule()}, false},
		{"hung", []device.Rule{all(device.Hold, 0)}, true},
		{"completions withheld", []device.Rule{all(device.Withhold, 0)}, true},
		{"slow", []device.Rule{{Action: device.Delay, Delay: 30 * time.Millisecond}}, false},
		{"a third of it fails", []device.Rule{{Action: device.Fail, Probability: 0.3, Err: syscall.EIO}}, false},
	}
}

// One drive of three does what drives do, while blocks are put, while they are restored, or
// in between: with two copies nothing is missed; with one its blocks are misses and the
// others come. Nothing is ever wrong, nobody waits for the drive, and when it is well
// again everything acknowledged is there and the drive takes part.
func TestDeviceFaultsUnderLoad(t *testing.T) {
	t.Parallel()
	patterns := 0
	for _, f := range driveFaults() {
		for _, copies := range []int{1, 2} {
			for _, phase := range []string{"before restores", "amid restores", "amid puts"} {
				patterns++
				if testing.Short() && patterns%4 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s, copies %d, %s", f.name, copies, phase), func(t *testing.T) {
					t.Parallel()
					deviceFault(t, f, copies, phase)
				})
			}
		}
	}
	require.GreaterOrEqual(t, patterns, 50)
}

func deviceFault(t *testing.T, f driveFault, copies int, phase string) {
	ctx := testContext(t)
	s, r, o := openRig(t, func(o *Options) {
		quick(o)
		o.DeviceCount, o.SegmentBytes, o.CapacityBytes, o.BlockBytes = 3, 6<<20, 3*(16*6<<20+64<<10), 1<<20
		o.IOBytes = 64 << 20
	})
	sc := openSpace(t, s, "n", skep.Durable, copies, true)
	type run struct {
		keys []skep.Key
		size int
	}
	var mu sync.Mutex
	var acked []run
	put := func(t testing.TB, root, n, size int) int {
		keys := chainKeys(root, n)
		res := putRun(t, s, sc, keys, size)
		for n = 0; n < len(res) && res[n].Outcome == skep.Committed; n++ {
		}
		mu.Lock()
		defer mu.Unlock()
		if n > 0 {
			acked = append(acked, run{keys[:n], size})
		}
		return n
	}
	require.Equal(t, 20, put(t, 1, 20, smallBlock))
	require.Equal(t, 3, put(t, 2, 3, largeBlock))
	bad := r.faults[1]
	struck := make(chan struct{})
	strike := func() {
		defer close(struck)
		for _, rule := range f.rules {
			bad.MustInject(rule)
		}
	}
	dest := device.AlignedBuffer(20 * layout.PageSize * 4)
	canaries := func() {
		for i := range dest {
			dest[i] = canary
		}
	}
	switch phase {
	case "before restores":
		strike()
	case "amid restores":
		time.AfterFunc(3*time.Millisecond, strike)
	case "amid puts":
		wg := storetest.NewCrew(t)
		for w := range 2 {
			wg.Go(func(t testing.TB) {
				for i := range 6 {
					if w == 0 && i == 1 {
						strike()
					}
					put(t, 100*(w+1)+i, 6, smallBlock)
				}
			})
		}
		wg.Wait()
	}
	for round := range 3 {
		for _, a := range acked {
			n, reasons := requireRight(t, s, sc, a.keys, a.size)
			if copies == 2 {
				require.Equal(t, len(a.keys), n, "round %d: the other copy serves: %v", round, reasons)
			}
			for reason := range reasons {
				require.Equal(t, skep.DeviceFailed, reason)
			}
		}
	}
	if copies == 2 { // into the caller's memory, too, which comes back at once
		require.NoError(t, restoreInto(ctx, s, sc, acked[0].keys, dest, acked[0].size))
		canaries()
	}
	if copies == 2 && f.reads {
		eventually(t, "the drive is noticed", func() bool {
			st, err := s.Stats(ctx)
			require.NoError(t, err)
			return st.Devices[1].State != "ok"
		})
	}

	<-struck
	bad.Clear()
	bad.Release()
	if copies == 2 {
		eventually(t, "the drive lets go", func() bool {
			bad.Release() // again: what was under way when the rules went is held after that
			return bad.Stats().InFlight == 0
		})
		require.Equal(t, len(dest), bytes.Count(dest, []byte{canary}), "a late read wrote to memory that was released")
	}
	eventually(t, "the drive is let back in", func() bool {
		st, err := s.Stats(ctx)
		require.NoError(t, err)
		return st.Devices[1].State == "ok"
	})
	eventually(t, "puts are taken by all drives again", func() bool { return put(t, int(time.Now().UnixNano()), 3, smallBlock) == 3 })
	for _, a := range acked { // its last errors may have been noticed only now
		eventually(t, "everything acknowledged is there", func() bool {
			n, _ := requireRight(t, s, sc, a.keys, a.size)
			return n == len(a.keys)
		})
	}
	require.NoError(t, s.Close())
	s, err := Open(ctx, o)
	require.NoError(t, err)
	for _, a := range acked {
		requireChain(t, s, sc, a.keys, a.size)
	}
	require.NoError(t, s.Close())
}

// faultsOk says whether every drive is well.
func (b *rig) faultsOk(s *Store) bool {
	for _, d := range s.members.Opened {
		if d.Condition() != health.Healthy {
			return false
		}
	}
	return true
}

// restoreInto restores a chain into mem and compares, and returns when its memory is
// given back.
func restoreInto(ctx context.Context, s *Store, sc skep.Scope, keys []skep.Key, mem []byte, size int) error {
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem, Stride: int64(size)}}}})
	if err != nil {
		return err
	}
	into := make([]skep.Chunk, 8)
	for {
		n, err := ses.Next(ctx, into)
		for _, c := range into[:n] {
			if c.Err != nil {
				return errors.Join(c.Err, ses.Close(ctx))
			}
			if !bytes.Equal(mem[c.Block*size:(c.Block+1)*size], content(keys[c.Block], skep.PartKV, 1, size)) {
				return fmt.Errorf("block %d is wrong", c.Block)
			}
		}
		if errors.Is(err, io.EOF) {
			return ses.Close(ctx)
		}
		if err != nil {
			return errors.Join(err, ses.Close(ctx))
		}
	}
}
