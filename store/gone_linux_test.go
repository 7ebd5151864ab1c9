package store

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/restore"
)

// mapped is a file in memory that is mapped: whoever has it may cut it short.
func mapped(t *testing.T, n int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("destination", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "destination")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, f.Truncate(int64(n)))
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return f, mem
}

// A destination is a file that is cut short: before the restore, or while it is under way. Blocks whose memory is
// there arrive, the others' chunks say so, and that is no fault of the drive's or of the blocks.
func TestADestinationIsCutShort(t *testing.T) {
	t.Parallel()
	const n, block = 16, 16 << 10
	for name, cache := range map[string]int64{"from the drive": -1, "from memory": 8 << 20} {
		for place, shift := range map[string]int{"read in place": 0, "copied": 64} {
			t.Run(name+", "+place, func(t *testing.T) {
				ctx := testContext(t)
				file, mem := mapped(t, 2*n*block) // unmapped when the store is closed
				o := small(t.TempDir())
				o.CacheBytes = cache
				s, err := Open(ctx, o)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close()) })
				space, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n",
					Shape: skep.Shape{BlockTokens: 1, Bytes: block}, Chained: true})
				require.NoError(t, err)
				sc, keys := skep.Scope{Namespace: space.ID}, chainKeys(1, n)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, block))
				if cache > 0 {
					requireChain(t, s, sc, keys, block) // what is lent stays in memory
					require.Equal(t, n, inMemory(t, s, sc, keys))
				}
				restore := func(into []byte, each func(*skep.Chunk)) {
					d := skep.Destination{Memory: into[shift : shift+n*block], Stride: block}
					deliverAll(ctx, t, s, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: d}}}, each)
				}
				whole := func(c *skep.Chunk, into []byte) {
					require.Equal(t, content(keys[c.Block], skep.PartKV, 1, block), into[shift+c.Block*block:][:block])
				}
				require.NoError(t, file.Truncate(n*block/2))
				there := 0
				restore(mem, func(c *skep.Chunk) {
					if shift+(c.Block+1)*block <= n*block/2 {
						require.NoError(t, c.Err)
						whole(c, mem)
						there++
						return
					}
					requireKind(t, skep.Invalid, c.Err)
					require.ErrorContains(t, c.Err, "destination")
				})
				require.InDelta(t, n/2, there, 1)
				for round := range 20 {
					require.NoError(t, file.Truncate(2*n*block))
					cut := false
					restore(mem, func(c *skep.Chunk) {
						if !cut {
							cut = true
							require.NoError(t, file.Truncate(int64(round)<<13))
						}
						if c.Err != nil {
							requireKind(t, skep.Invalid, c.Err)
						}
					})
				}
				own := make([]byte, 2*n*block)
				restore(own, func(c *skep.Chunk) {
					require.NoError(t, c.Err)
					whole(c, own)
				})
				st, err := s.Stats(ctx)
				require.NoError(t, err)
				for _, d := range st.Devices {
					require.Zero(t, d.Errors)
					require.Equal(t, "ok", d.State)
				}
			})
		}
	}
}

// The memory of one of several chains that are found together is cut off before it is written to: the others come.
func TestNeighboursOfADestinationThatIsGone(t *testing.T) {
	t.Parallel()
	file, mem := mapped(t, 3*faultBlock)
	const unaligned = 64 // it is copied to: a drive in memory writes as this process does
	cut := mem[faultBlock+unaligned:][:faultBlock]
	err := neighbours(t, [3][]byte{make([]byte, faultBlock), cut, make([]byte, faultBlock)},
		func(context.Context, *Store, *rig, skep.Session, skep.Scope, *restore.Located) {
			require.NoError(t, file.Truncate(faultBlock))
		})
	requireKind(t, skep.Invalid, err)
}
