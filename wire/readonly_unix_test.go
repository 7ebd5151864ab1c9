//go:build unix

package wire

import (
	"reflect"
	"runtime/debug"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// pages is memory that can be made one that nobody may write to.
type pages struct {
	mem  []byte
	used uintptr
}

func newPages(t testing.TB, size int) *pages {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return &pages{mem: mem}
}

// room is zeroed memory for a value of type ty.
func (p *pages) room(t testing.TB, ty reflect.Type) reflect.Value {
	t.Helper()
	p.used = (p.used + 15) &^ 15
	require.LessOrEqual(t, p.used+ty.Size(), uintptr(len(p.mem)))
	at := unsafe.Add(unsafe.Pointer(unsafe.SliceData(p.mem)), p.used)
	p.used += ty.Size()
	return reflect.NewAt(ty, at)
}

// copyOf is v, which is a pointer, with all it leads to in these pages.
func (p *pages) copyOf(t testing.TB, v reflect.Value) reflect.Value {
	t.Helper()
	out := p.room(t, v.Type().Elem())
	out.Elem().Set(v.Elem())
	p.moveIn(t, out.Elem())
	return out
}

func (p *pages) moveIn(t testing.TB, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			p.moveIn(t, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			p.moveIn(t, v.Index(i))
		}
	case reflect.Pointer:
		if v.CanSet() && !v.IsNil() {
			v.Set(p.copyOf(t, v))
		}
	case reflect.Slice:
		if v.CanSet() && v.Len() > 0 {
			all := p.room(t, reflect.ArrayOf(v.Len(), v.Type().Elem())).Elem()
			reflect.Copy(all, v)
			p.moveIn(t, all)
			v.Set(all.Slice(0, v.Len()).Convert(v.Type()))
		}
	}
}

// Who encodes a message reads it and nothing else: it is the caller's, and other calls encode it at the same
// time. Here every message of the vectors, and all it leads to, lies in memory that cannot be written to.
//
// Alone: it sets what the whole runtime does.
func TestEncodingOnlyReads(t *testing.T) {
	list := vectors()
	list = append(list, vector{name: "a cost with a boundary", m: &frames.CostedRestoreRequest{
		Compute: []frames.ChainCompute{{Compute: skep.Compute{Boundary: &skep.Boundary{Chain: 1,
			BytesPerToken: 8}}}},
		RestoreRequest: frames.RestoreRequest{Chains: []frames.RestoreChain{{To: frames.ToPages,
			Planes: []frames.Area{{Offset: 1, Len: 2}, {Offset: 3, Len: 4}}, Pages: []int{7,
				8}, Keys: []skep.Key{keyOf(1)}}}}}})
	list = append(list, vector{name: "a block that replaces", m: &frames.PutRequest{Parent: new(skep.Key),
		Blocks: []frames.PutBlock{{Replaces: new(skep.Key), Name: []byte("n"),
			Parts: []frames.PutPart{{Name: "kv"}}}}}})
	for _, v := range list {
		if v.m == nil {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			p := newPages(t, 1<<20)
			m := p.copyOf(t, reflect.ValueOf(v.m)).Interface().(frames.Message)
			require.Equal(t, v.m, m)
			require.NoError(t, unix.Mprotect(p.mem, unix.PROT_READ))
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			want, err := frames.AppendFrame(nil, v.h, v.m)
			require.NoError(t, err)
			require.NotPanics(t, func() {
				got, err := frames.AppendFrame(nil, v.h, m)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}, "it was written to")
		})
	}
}

// One request, shared by many calls at once: the race detector watches.
func TestRequestSharedByManyCalls(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 2)
	ch.Direction, ch.Compute = skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Microsecond}}
	lookup := &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Cost: &ch.Compute.Cost}
	restore := &skep.RestoreRequest{Chains: []skep.Chain{ch}}
	purge := skep.Purge{Salt: &skep.Scope{Namespace: ch.Namespace, Salt: "nobody's"}}
	begin := &skep.BeginRequest{Scope: ch.Scope, Key: skep.KeyOf([]byte("new")), Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}}}
	errs := make([]error, 8)
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() {
			for range 20 {
				if _, errs[i] = c.Lookup(t.Context(), lookup); errs[i] != nil {
					return
				}
				s, err := c.Restore(t.Context(), restore)
				if err == nil {
					err = s.Close(t.Context())
				}
				if errs[i] = err; err != nil {
					return
				}
				if errs[i] = c.Purge(t.Context(), purge); errs[i] != nil {
					return
				}
				if w, err := c.Begin(t.Context(), begin); err == nil {
					_ = w.Abort(t.Context())
				}
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}
