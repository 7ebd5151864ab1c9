package wired

import (
	"bytes"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
)

// A client dies in the middle of a put, when a drive has its writes and does not carry them out. Its
// shared memory is not the server's for longer than that, and what it sent through the socket lies in
// memory that nobody else gets while the drive has it. When the drive goes on it writes what was put,
// and nobody holds anything against it.
func TestAClientDiesInTheMiddleOfAPut(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*wire.Options){"through the socket": nil, "shared memory": shared} {
		t.Run(name, func(t *testing.T) {
			if change != nil && runtime.GOOS != "linux" {
				t.Skip("no memfd on this system")
			}
			var f *device.Fault
			o := small()
			o.DeviceCount, o.CatalogFS = 1, vfs.NewMem()
			o.OpenDevice = func(_ int, _ string, _ bool, size int64) (device.Device, error) {
				f = device.NewFault(device.NewMemory(size), 1)
				return f, nil
			}
			r := open(t, o, change)
			c := putChain(t, r, 1) // a group is open
			victim, err := wire.Dial(t.Context(), options(r.addr))
			if change != nil {
				vo := options(r.addr)
				change(&vo)
				victim, err = wire.Dial(t.Context(), vo)
			}
			require.NoError(t, err)
			defer victim.Close()
			regions := r.srv.Stats().Regions
			mem, err := victim.Alloc(t.Context(), blockBytes)
			require.NoError(t, err)
			key := skep.KeyOf([]byte("in the middle"))
			want := storetest.Payload(key, skep.PartKV, blockBytes)
			copy(mem.Bytes(), want)

			var mu sync.Mutex
			var held []*device.Op
			hold := f.MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: func(op *device.Op) bool {
				mu.Lock()
				defer mu.Unlock()
				held = append(held, op)
				return true
			}})
			put := func(st skep.Store, key skep.Key, mem []byte) ([]skep.PutResult, error) {
				return st.Put(t.Context(), &skep.PutRequest{Scope: c.Scope, Parent: &c.Keys[0], Depth: 1, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: mem}}}}})
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = put(victim, key, mem.Bytes())
			}()
			require.NoError(t, f.WaitHeld(t.Context(), 2)) // payload and log
			mu.Lock()
			ops := slices.Clone(held)
			mu.Unlock()
			victim.Close()
			<-gone
			if change != nil {
				require.Eventually(t, func() bool { return r.srv.Stats().Regions < regions }, time.Minute, time.Millisecond, "its memory is unmapped")
			}
			hold.Remove()
			for i := range 4 { // others have use for memory
				other := skep.KeyOf([]byte{byte(i)})
				res, err := put(r, other, storetest.Payload(other, skep.PartKV, blockBytes))
				require.NoError(t, err)
				require.Equal(t, skep.Committed, res[0].Outcome)
			}
			var payload []byte
			for _, op := range ops {
				if op.Len() >= blockBytes/2 {
					payload = append(payload, bytes.Join(op.Bufs, nil)...)
				}
			}
			require.True(t, bytes.Equal(want, payload), "what the drive is going to write")
			f.Release()
			require.Eventually(t, func() bool { return f.Stats().InFlight == 0 }, time.Minute, time.Millisecond)
			require.Zero(t, f.Stats().Errors())
			st, err := r.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, "ok", st.Devices[0].State)
		})
	}
}
