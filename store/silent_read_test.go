package store

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
)

// leaveInDoubt makes a closed store one whose machine crashed before anything was flushed.
func leaveInDoubt(t testing.TB, o Options) {
	ctx := context.Background()
	c, err := catalog.Open(filepath.Join(o.Dir, "catalog"), catalog.Options{})
	require.NoError(t, err)
	root, err := c.Store(ctx)
	require.NoError(t, err)
	groups, err := c.Groups(ctx)
	require.NoError(t, err)
	b := c.NewBatch()
	for _, g := range groups {
		g.State = catalog.GroupSealed
		b.PutGroup(&g)
	}
	root.Clean, root.FlushedSeq = false, 0
	b.PutStore(root)
	require.NoError(t, c.Commit(ctx, b, true))
	require.NoError(t, c.Close())
}

// A read that is not answered keeps no store from opening after a crash: what it was to tell is read
// from the other copy, and where there is none the block may be right: reads will tell.
func TestUncleanOpenReadsAroundASilentDrive(t *testing.T) {
	t.Parallel()
	for copies := 1; copies <= 2; copies++ {
		o := small(tempRoot(t, "store"))
		o.FlushInterval = time.Hour
		s, err := Open(context.Background(), o)
		require.NoError(t, err)
		keys := chainKeys(1, 30)
		putRun(t, s, openSpace(t, s, "n", skep.Durable, copies, true), keys, 5000)
		require.NoError(t, s.Close())
		leaveInDoubt(t, o)
		c := o
		c.OpTimeout, c.CacheBytes = 3*time.Second, -1
		var faults []*device.Fault
		c.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
			d, err := device.Open(path, device.Options{})
			if err != nil {
				return nil, err
			}
			f := device.NewFault(d, 1)
			if i == 0 {
				first := layout.SegmentOffset(0, o.SegmentBytes) + layout.PageSize
				f.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, From: first, To: first + 8*layout.PageSize})
			}
			faults = append(faults, f)
			return f, nil
		}
		s, err = Open(context.Background(), c)
		for _, f := range faults {
			f.Clear()
			f.Release()
		}
		require.NoError(t, err, "%d copies", copies)
		requireChain(t, s, openSpace(t, s, "n", skep.Durable, copies, true), keys, 5000)
		require.NoError(t, s.Close())
	}
}
