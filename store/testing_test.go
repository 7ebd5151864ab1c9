package store

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) {
	machineClock = storetest.MachineClock()
	if childMode() { // this process is a test's victim
		os.Exit(runChild())
	}
	if os.Getenv(aloneEnv) != "" {
		os.Exit(m.Run())
	}
	leaks.Main(m)
}

const aloneEnv = "SKEP_TEST_ALONE"

// alone runs the calling test in a process of its own, where goroutines may be left
// behind. It says whether this is that process.
func alone(t *testing.T) bool { return aloneFor(t, hangs) }

// aloneFor is alone for a test that may take as long as limit.
func aloneFor(t *testing.T, limit time.Duration) bool {
	if os.Getenv(aloneEnv) != "" {
		return true
	}
	if end, ok := t.Deadline(); ok { // what hangs shows where, before this process ends without a word
		limit = min(limit, time.Until(end)*9/10)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=0", "-test.short=" + strconv.FormatBool(testing.Short())}
	if dir := os.Getenv("SKEP_COVER_DIR"); dir != "" { // make errpaths
		args = append(args, "-test.coverprofile="+filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".cover"))
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }, 10*time.Second
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	t.Logf("%s", out)
	return false
}

// hangs is how long a test waits for what must happen at some time. Passing it means
// that something hangs, also on a machine that has much other work.
const hangs = 3 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	t.Cleanup(cancel)
	return ctx
}

// testSeed is the seed of a randomised test: drawn, or what SKEP_SEED says; printed.
func testSeed(t testing.TB) uint64 {
	seed := drawn.Seed(t)
	return seed
}

func testNumber(t testing.TB, env string, otherwise int) int {
	if v := os.Getenv(env); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		return n
	}
	return otherwise
}

// small is options of a store that costs little to open.
func small(dir string) Options {
	return Options{Dir: dir, DeviceCount: 2, SegmentBytes: 128 << 10, BlockBytes: 8 << 10, CapacityBytes: 4 << 20,
		IOBytes: 16 << 20, CacheBytes: 4 << 20, CatalogCacheBytes: 1 << 20, EventBuffer: 256, LeasedBytes: 1 << 40, PinnedBytes: 1 << 40}
}

// rig is a set of memory devices with faults that outlive a store: what Options.OpenDevice
// opens again is what was there.
type rig struct {
	mu     sync.Mutex
	faults []*device.Fault
	mems   []*device.Memory
	seed   uint64
}

// open is Options.OpenDevice.
func (b *rig) open(i int, _ string, create bool, size int64) (device.Device, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.faults) <= i {
		b.faults, b.mems = append(b.faults, nil), append(b.mems, nil)
	}
	switch {
	case create:
		b.mems[i] = device.NewMemory(size)
	case b.mems[i] == nil:
		return nil, os.ErrNotExist
	default:
		b.mems[i] = b.mems[i].Clone() // the one before was closed
	}
	b.faults[i] = device.NewFault(b.mems[i], b.seed+uint64(i))
	b.faults[i].SetCloseTimeout(time.Second)
	return b.faults[i], nil
}

// each calls f with every device.
func (b *rig) each(f func(i int, d *device.Fault)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, d := range b.faults {
		f(i, d)
	}
}

// content is size bytes that only this key, part and version have.
func content(key skep.Key, part string, version, size int) []byte {
	var seed [32]byte
	b := append(append(key[:len(key):len(key)], part...), byte(version), byte(version>>8))
	k := skep.KeyOf(b)
	copy(seed[:], k[:])
	p := make([]byte, size)
	rand.NewChaCha8(seed).Read(p)
	return p
}

func keyOf(words ...uint32) skep.Key {
	b := make([]byte, 0, 4*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return skep.KeyOf(b)
}

// anySize is a shape of blocks of any size.
var anySize = skep.Shape{Kind: skep.Opaque, BlockTokens: 1}

// halfShape is a shape of blocks of any size, some of which are partial.
var halfShape = skep.Shape{Kind: skep.Opaque, BlockTokens: 2}

func openSpace(t testing.TB, s skep.Store, name string, class skep.Class, copies int, chained bool) skep.Scope {
	t.Helper()
	n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: name, Shape: anySize, Class: class, Copies: copies, Chained: chained})
	require.NoError(t, err)
	return skep.Scope{Namespace: n.ID}
}

// chainKeys are the keys of a prompt.
func chainKeys(root, n int) []skep.Key {
	keys := make([]skep.Key, n)
	for i := range keys {
		keys[i] = keyOf(uint32(root), uint32(i))
	}
	return keys
}

// putRun puts a whole chain of blocks of size bytes.
func putRun(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key, size int) []skep.PutResult {
	t.Helper()
	r := &skep.PutRequest{Scope: sc}
	for _, k := range keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, size)}}})
	}
	res, err := s.Put(testContext(t), r)
	err, _ = skep.Held(err) // nobody else has the memory
	require.NoError(t, err)
	return res
}

func requireOutcome(t testing.TB, want skep.Outcome, res []skep.PutResult) {
	t.Helper()
	for i, r := range res {
		require.Equal(t, want, r.Outcome, "block %d: %v", i, r.Reason)
	}
}

// got is what a restore said of one block.
type got struct {
	data []byte
	err  error
	tier skep.Tier
}

// fetch restores one chain into the store's own memory, or into dest when it is not nil,
// and gives what came of each block.
func fetch(ctx context.Context, s skep.Store, c skep.Chain) ([]got, error) {
	list, err := fetchAll(ctx, s, []skep.Chain{c})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// fetchAll restores chains in one session. Blocks not asked for have neither data nor
// error.
func fetchAll(ctx context.Context, s skep.Store, chains []skep.Chain) ([][]got, error) {
	out := make([][]got, len(chains))
	for i := range chains {
		out[i] = make([]got, len(chains[i].Keys))
	}
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: chains})
	if err != nil {
		return nil, err
	}
	defer ses.Close(ctx)
	into := make([]skep.Chunk, 16)
	for {
		n, err := ses.Next(ctx, into)
		for i := range into[:n] {
			c := &into[i]
			g := &out[c.Chain][c.Block]
			g.err, g.tier = c.Err, c.Tier
			ch := &chains[c.Chain]
			switch {
			case c.Err != nil:
			case ch.Dest.Memory != nil:
				blocks, _ := ch.Blocks.In(len(ch.Keys))
				at := int64(c.Block-blocks.From) * ch.Dest.Stride
				g.data = append([]byte{}, ch.Dest.Memory[at:at+c.Bytes]...)
			default:
				g.data = []byte{}
				for _, d := range c.Data {
					g.data = append(g.data, d...)
				}
			}
			c.Release()
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// requireChain requires that all blocks of a chain are there with the bytes putRun gave.
func requireChain(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key, size int) {
	t.Helper()
	list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
	require.NoError(t, err)
	for i, g := range list {
		require.NoError(t, g.err, "block %d", i)
		require.True(t, string(content(keys[i], skep.PartKV, 1, size)) == string(g.data), "bytes of block %d", i)
	}
}

// requireRight requires that no block has other bytes than putRun gave, and says how
// many are there.
func requireRight(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key, size int) (n int, reasons map[skep.Kind]int) {
	t.Helper()
	list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
	require.NoError(t, err)
	reasons = map[skep.Kind]int{}
	for i, g := range list {
		if g.err != nil {
			reasons[skep.KindOf(g.err)]++
			continue
		}
		require.True(t, string(content(keys[i], skep.PartKV, 1, size)) == string(g.data), "bytes of block %d", i)
		n++
	}
	return n, reasons
}

func requireKind(t testing.TB, want skep.Kind, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, skep.KindOf(err), "%v", err)
}

func tempRoot(t testing.TB, name string) string {
	return filepath.Join(t.TempDir(), name)
}

// eventually polls f, for what happens behind the caller's back.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	storetest.Eventually(t, what, f)
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// syncParents makes the way to dir durable.
func syncParents(t testing.TB, fs vfs.FS, dir string) {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		d, err := fs.OpenDir(filepath.Dir(dir))
		require.NoError(t, err)
		require.NoError(t, d.Sync())
		require.NoError(t, d.Close())
	}
}

// problemOfHeader says what is wrong with a page that should be the header want.
func problemOfHeader(page []byte, want *segment.Header) string {
	h, wrong := segment.DecodeHeader(page)
	return scrub.HeaderProblem(&h, wrong, want)
}

// openedBy is the group that a stream writes to; nil: it has none.
func openedBy(s *Store, st space.Stream) *space.Group {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	return s.space.Inside().Open[st]
}
