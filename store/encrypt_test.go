package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/store/storetest"
)

// key is the n-th key of the tests.
func key(n byte) EncryptionKey {
	k, err := NewEncryptionKey(bytes.Repeat([]byte{n, 0x5a}, 16))
	if err != nil {
		panic(err)
	}
	return k
}

// oneKey gives a tenant some of the tests' keys, the newest first; "" is every tenant.
func oneKey(tenant string, keys ...byte) map[string][]EncryptionKey {
	var list []EncryptionKey
	for _, n := range keys {
		list = append(list, key(n))
	}
	return map[string][]EncryptionKey{tenant: list}
}

func TestEncryptedStoreIsAStore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("TestRandom has stores that encrypt, too")
	}
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		return openTest(t, Options{CapacityBytes: c.CapacityBytes, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: 32 << 20, EncryptionKeys: oneKey("", 1),
			LeasedBytes: cmp.Or(c.TenantLeaseBytes, 1<<40), PinnedBytes: cmp.Or(c.TenantPinBytes, 1<<40), TenantNamespaces: c.TenantNamespaces})
	})
}

// marked is a value in which every 16 bytes say that they are not encrypted.
func marked(size int) []byte { return bytes.Repeat([]byte("IN PLAIN SIGHT! "), size/16+1)[:size] }

// searchFiles counts the files under dir that have marked bytes in them, and all files.
func searchFiles(t testing.TB, dir string) (found, of int) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		of++
		if bytes.Contains(b, []byte("PLAIN SIGHT")) {
			found++
		}
		return err
	}))
	return found, of
}

// However a block of a tenant with a key is put, of whatever size and class, no byte of it
// is on a device or in the catalog, after cleaning, compaction and a rebuild neither; of a
// tenant without a key they are.
func TestPlaintextReachesNoDevice(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]map[string][]EncryptionKey{"encrypted": oneKey("t", 1), "as put": oneKey("another", 1)} {
		t.Run(name, func(t *testing.T) {
			o := small(tempRoot(t, "store"))
			o.EncryptionKeys = keys
			s, err := Open(t.Context(), o)
			require.NoError(t, err)
			ctx := testContext(t)
			n := byte(0)
			check := func(sc skep.Scope, want []byte, k skep.Key) {
				list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: []skep.Key{k}})
				require.NoError(t, err)
				require.NoError(t, list[0].err)
				require.True(t, bytes.Equal(want, list[0].data))
			}
			classes, sizes := []skep.Class{skep.Cache, skep.Durable}, []int{16, 300, 512, 513, 3000, 4096, 5000, 70_000, 100_000}
			if testing.Short() {
				classes, sizes = classes[:1], []int{300, 3000, 100_000}
			}
			for _, class := range classes {
				for _, chained := range []bool{true, false} {
					sc := openSpace(t, s, fmt.Sprint(class, chained), class, 2, chained)
					for _, size := range sizes {
						for _, ack := range []skep.Ack{skep.AckCommitted, skep.AckAccepted} {
							n++
							b := skep.Block{Key: keyOf(uint32(n)), Parts: []skep.Part{{Bytes: marked(size)}}}
							_, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Ack: ack, Blocks: []skep.Block{b}})
							require.NoError(t, err)
							check(sc, marked(size), b.Key)
						}
					}
					w, err := s.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: keyOf(uint32(n), 1), Manifest: skep.Manifest{{Size: 9000}, {Name: "state", Size: 40}}})
					require.NoError(t, err)
					require.NoError(t, w.Write(ctx, "", 0, marked(9000)))
					require.NoError(t, w.Write(ctx, "state", 0, marked(40)))
					_, err = w.Commit(ctx, skep.AckCommitted)
					require.NoError(t, err)
				}
			}
			require.NoError(t, s.Flush(ctx))
			_, err = s.Compact(ctx, MoveOptions{})
			require.NoError(t, err)
			require.NoError(t, s.Close())
			found, of := searchFiles(t, o.Dir)
			require.Greater(t, of, 4)
			require.Equal(t, name == "as put", found > 0, "in %d of %d files", found, of)
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			o.EncryptionKeys = nil // a rebuild needs no key
			_, err = Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.True(t, rep.Sound, "%+v", rep.Faults)
			found, of = searchFiles(t, o.Dir)
			require.Equal(t, name == "as put", found > 0, "after a rebuild: in %d of %d files", found, of)
		})
	}
}

// Without the key a block is a miss that says which key it wants; what is looked after in
// the background needs none; with the key it is there again.
func TestKeysAreMissedByName(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.EncryptionKeys, o.CacheBytes, o.Clock = oneKey("t", 1), -1, nil
	keys := chainKeys(1, 12)
	reopen := func(ring map[string][]EncryptionKey) (*Store, skep.Scope, skep.Scope) {
		o.EncryptionKeys, o.WithoutKeys = ring, true
		s, err := Open(t.Context(), o)
		require.NoError(t, err)
		return s, openSpace(t, s, "large", skep.Durable, 2, true), openSpace(t, s, "small", skep.Durable, 1, true)
	}
	s, large, small := reopen(oneKey("t", 1))
	requireOutcome(t, skep.Committed, putRun(t, s, large, keys, 9000))
	requireOutcome(t, skep.Committed, putRun(t, s, small, keys, 300))
	requireChain(t, s, large, keys, 9000)
	requireChain(t, s, small, keys, 300)
	require.NoError(t, s.Close())

	for name, ring := range map[string]map[string][]EncryptionKey{"no key": nil, "another key": oneKey("t", 2), "another tenant's": oneKey("u", 1)} {
		t.Run(name, func(t *testing.T) {
			s, large, small := reopen(ring)
			defer func() { require.NoError(t, s.Close()) }()
			for _, sc := range []skep.Scope{large, small} {
				list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
				require.NoError(t, err)
				for _, g := range list {
					requireKind(t, skep.Denied, g.err)
					require.ErrorContains(t, g.err, key(1).ID())
				}
			}
			rep, err := s.Scrub(testContext(t), ScrubOptions{})
			require.NoError(t, err)
			require.True(t, rep.Sound(), "%+v", rep)
			_, err = s.Compact(testContext(t), MoveOptions{})
			require.NoError(t, err)
			res, err := s.Put(testContext(t), &skep.PutRequest{Scope: large, Blocks: []skep.Block{{Key: keys[0], Parts: []skep.Part{{Bytes: content(keys[0], skep.PartKV, 1, 9000)}}}}})
			if s.keys.Newest("t") == nil {
				requireKind(t, skep.Denied, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, skep.Exists, res[0].Outcome)
		})
	}
	s, large, small = reopen(oneKey("t", 2, 1))
	defer func() { require.NoError(t, s.Close()) }()
	requireChain(t, s, large, keys, 9000)
	requireChain(t, s, small, keys, 300)
}

// A setting that was forgotten does not have a tenant's blocks written as they are put: without any key of it the
// store is opened to be looked at, or where puts of it are refused.
func TestForgottenKeysAreRefused(t *testing.T) {
	t.Parallel()
	for name, catalogLost := range map[string]bool{"as it was": false, "catalog lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, o := testContext(t), small(tempRoot(t, "store"))
			o.EncryptionKeys, o.CacheBytes = oneKey("t", 1), -1
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "secrets", skep.Durable, 1, false)
			put := func(s *Store, n uint32) error {
				_, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: keyOf(n), Parts: []skep.Part{{Bytes: marked(5000)}}}}})
				return err
			}
			require.NoError(t, put(s, 1))
			require.NoError(t, s.Close())
			if catalogLost {
				require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			}

			for _, ring := range []map[string][]EncryptionKey{nil, oneKey("another", 1)} {
				o.EncryptionKeys = ring
				_, err = Open(ctx, o)
				requireKind(t, skep.Denied, err)
				require.ErrorContains(t, err, "tenant t is not given")
				require.ErrorContains(t, err, key(1).ID(), "it says which key")
			}
			read := o
			read.ReadOnly = true
			s, err = Open(ctx, read)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.True(t, rep.Sound, "%+v", rep.Faults)

			o.EncryptionKeys, o.WithoutKeys = nil, true
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireKind(t, skep.Denied, put(s, 2))
			_, err = s.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: keyOf(2), Manifest: skep.Manifest{{Size: 5000}}})
			requireKind(t, skep.Denied, err)
			require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2)))
			require.NoError(t, put(s, 2), "any key of it will do")
			require.NoError(t, s.Close())
			found, _ := searchFiles(t, o.Dir)
			require.Zero(t, found)

			o.EncryptionKeys, o.WithoutKeys = oneKey("t", 2), false
			s, err = Open(ctx, o)
			require.NoError(t, err)
			require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
			require.NoError(t, s.Close())
			o.EncryptionKeys = nil
			s, err = Open(ctx, o)
			require.NoError(t, err, "nothing of it is encrypted any more")
			require.NoError(t, put(s, 3))
			require.NoError(t, s.Close())
		})
	}
}

// A key that nothing of a tenant is encrypted with is a mistake, and not one that is noticed at the first miss. So is
// none, though everything that was encrypted is evicted. A new key above the old one is not.
func TestAWrongKeyIsRefused(t *testing.T) {
	t.Parallel()
	ctx, o := testContext(t), small(tempRoot(t, "store"))
	o.CacheBytes = -1
	var sc skep.Scope
	open := func(ring map[string][]EncryptionKey) error {
		o.EncryptionKeys = ring
		s, err := Open(ctx, o)
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	refused := func(n byte, rings ...map[string][]EncryptionKey) {
		t.Helper()
		for _, ring := range rings {
			err := open(ring)
			requireKind(t, skep.Denied, err)
			require.ErrorContains(t, err, key(n).ID(), "it says which key")
			require.ErrorContains(t, err, "encryption key of tenant t")
		}
	}
	o.EncryptionKeys = oneKey("t", 1)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc = openSpace(t, s, "secrets", skep.Cache, 1, true)
	other := openSpace(t, s, "bystander", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	require.NoError(t, s.Close())
	refused(1, nil, oneKey("t", 2), oneKey("", 2), oneKey("another", 1))

	// A catalog from before it noted keys, or one that was rebuilt, has only the blocks to say it.
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	refused(1, nil, oneKey("t", 2))

	o.EncryptionKeys = oneKey("", 1)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	for _, k := range keys { // as an eviction does
		_, err := s.Delete(ctx, sc, []skep.Key{k})
		require.NoError(t, err)
	}
	require.Zero(t, s.index.Stats().Blocks)
	require.NoError(t, s.Close())
	refused(1, nil, oneKey("t", 2))

	require.NoError(t, open(oneKey("t", 2, 1)))
	require.NoError(t, open(oneKey("t", 2)), "it was given above the old one")
	o.EncryptionKeys = oneKey("t", 2)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireKind(t, skep.Denied, s.SetEncryptionKeys(oneKey("t", 3)))
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 3, 2)))
	require.NoError(t, s.Close())
	require.NoError(t, open(oneKey("t", 3)), "so was this, while the store was open")
	refused(3, oneKey("t", 4))

	// The way out where a key is lost.
	o.EncryptionKeys, o.WithoutKeys = nil, true
	s, err = Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.DeleteNamespace(ctx, sc.Namespace))
	require.NoError(t, s.Close())
	o.WithoutKeys = false
	o.EncryptionKeys = nil
	s, err = Open(ctx, o)
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, putRun(t, s, other, keys, 9000))
	rows, err := s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.Empty(t, rows, "what is gone leaves nothing")
	require.NoError(t, s.Close())
}

// A new key is what is put from then on is encrypted with; what was put before is read with
// the old one, and not any more once that is gone.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.EncryptionKeys, o.CacheBytes = oneKey("t", 1), -1
	told := make(chan string, 10)
	out := writes(func(b []byte) {
		if bytes.Contains(b, []byte("encryption key")) { // a busy machine's drives are warned of, too
			told <- string(b)
		}
	})
	o.Logger = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := openTest(t, o)
	sc := openSpace(t, s, "keys", skep.Durable, 1, false)
	older, newer := chainKeys(1, 4), chainKeys(2, 4)
	putRun(t, s, sc, older, 6000)
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2, 1)))
	putRun(t, s, sc, newer, 6000)
	byKey := map[string]int{}
	for _, r := range recordsOf(t, s) {
		byKey[r.Sealed.Key.String()]++
	}
	require.Equal(t, map[string]int{key(1).ID(): 4, key(2).ID(): 4}, byKey)
	requireChain(t, s, sc, older, 6000)
	requireChain(t, s, sc, newer, 6000)
	require.Empty(t, told)
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2)))
	require.Contains(t, <-told, key(1).ID(), "blocks need it")
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2)))
	require.Empty(t, told, "once")
	n, why := requireRight(t, s, sc, append(older, newer...), 6000)
	require.Equal(t, 4, n)
	require.Equal(t, map[skep.Kind]int{skep.Denied: 4}, why)
	requireKind(t, skep.Invalid, s.SetEncryptionKeys(oneKey("u", 1)))
	putRun(t, s, sc, older, 6000) // again, with the new key
	requireChain(t, s, sc, older, 6000)
}

// What was begun, or accepted, before a key was replaced is encrypted with the key of its commit.
func TestTheKeyIsThatOfTheCommit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := admitting(t, func(o *Options) { o.EncryptionKeys = oneKey("t", 1) })
	sc, waits := openSpace(t, s, "n", skep.Durable, 1, true), openSpace(t, s, "waits", skep.Cache, 1, true)
	w, err := s.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: keyOf(1), Manifest: skep.Manifest{{Size: blockSize}}})
	require.NoError(t, err)
	require.NoError(t, w.Write(ctx, "", 0, content(keyOf(1), skep.PartKV, 1, blockSize)))
	requireOutcome(t, skep.Accepted, putRun(t, s, waits, chainKeys(2, 1), blockSize))
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2, 1)))
	require.NoError(t, s.SetEncryptionKeys(oneKey("t", 2)))
	res, err := w.Commit(ctx, skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res.Outcome)
	require.NoError(t, s.Flush(ctx))
	list := recordsOf(t, s)
	require.Len(t, list, 2)
	for _, r := range list {
		require.Equal(t, key(2).ID(), r.Sealed.Key.String())
	}
	requireChain(t, s, sc, []skep.Key{keyOf(1)}, blockSize)
	requireChain(t, s, waits, chainKeys(2, 1), blockSize)
}

// writes is a Writer of a function.
type writes func(b []byte)

func (w writes) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// Who changes a tag, a nonce, an encrypted checksum or the ciphertext of a record and mends
// every checksum gets a miss, and nobody gets bytes that were not put.
func TestForgedSealsAreMisses(t *testing.T) {
	t.Parallel()
	for _, size := range []int{300, 9000} {
		for what, forge := range map[string]func(r *segment.Record){
			"tag":            func(r *segment.Record) { r.Parts[0].Seal[3] ^= 1 },
			"checksums":      func(r *segment.Record) { r.Parts[0].Seal[len(r.Parts[0].Seal)-20] ^= 1 },
			"their tag":      func(r *segment.Record) { r.Parts[0].Seal[len(r.Parts[0].Seal)-1] ^= 1 },
			"nonce":          func(r *segment.Record) { r.Sealed.Nonce[0] ^= 1 },
			"write version":  func(r *segment.Record) { r.Version-- },
			"inline payload": func(r *segment.Record) { r.Parts[0].Inline[0] ^= 1 },
		} {
			if what == "inline payload" && size > appender.MaxInline {
				continue
			}
			t.Run(fmt.Sprint(what, " of ", size, " bytes"), func(t *testing.T) {
				o := small(tempRoot(t, "store"))
				o.EncryptionKeys, o.CacheBytes = oneKey("t", 1), -1
				s := openTest(t, o)
				sc := openSpace(t, s, "chain", skep.Durable, 2, true)
				keys := chainKeys(1, 1)
				putRun(t, s, sc, keys, size)
				b := s.catalog.NewBatch()
				for l, r := range recordsOf(t, s) {
					forge(&r)
					b.PutBlock(l, r.Append(nil))
				}
				require.NoError(t, s.catalog.Commit(testContext(t), b, true))
				list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
				require.NoError(t, err)
				requireKind(t, skep.Damaged, list[0].err)
			})
		}
	}
}

// The checksums a client compares with are those of what was put, whole or in part, from
// drives and out of memory.
func TestEncryptedChunksCarryTheChecksumsOfThePut(t *testing.T) {
	t.Parallel()
	shape := skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 4, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	const size = 3 * 2 * 4 * 16 * 64 * 2
	for name, cache := range map[string]int64{"from drives": -1, "from drives, then from memory": 32 << 20} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: cache, EncryptionKeys: oneKey("t", 1)})
			requireSums(t, s, storedChain(t, s, shape, 5, size))
		})
	}
}

// A key is printed by nothing that options are printed by.
func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	o := Options{EncryptionKeys: oneKey("t", 'K')}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("opened", "options", o)
	all := fmt.Sprintf("%v %+v %#v", o, o, o.EncryptionKeys) + log.String()
	for _, secret := range []string{"KZKZ", "4b5a", "75, 90", "75 90", "0x4b"} {
		require.NotContains(t, strings.ToLower(all), strings.ToLower(secret))
	}
}

// Open and SetEncryptionKeys refuse keys that crypt refuses.
func TestBadEncryptionKeysAreRefused(t *testing.T) {
	t.Parallel()
	s := openTest(t, small(tempRoot(t, "store")))
	for _, bad := range []map[string][]EncryptionKey{{"t": nil}, {"t": {{}}}, oneKey("t", 1, 1)} {
		_, err := Open(context.Background(), Options{Dir: t.TempDir(), EncryptionKeys: bad})
		requireKind(t, skep.Invalid, err)
		requireKind(t, skep.Invalid, s.SetEncryptionKeys(bad))
	}
}
