package store

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

var rewrite = flag.Bool("rewrite", false, "make the golden images anew")

// goldenImage is a store of format 1, killed: two devices of a MiB and a catalog, not closed.
// It must open for as long as skep reads that format; -rewrite makes it anew, and is for the
// time before its release.
const goldenImage = "testdata/v1.tar.zst"

// golden fills a store, or requires that s is one that was filled.
func golden(t *testing.T, s *Store, fill bool) {
	ctx := testContext(t)
	chain := openSpace(t, s, "chain", skep.Durable, 2, true)
	salted := openSpace(t, s, "salted", skep.Durable, 1, true)
	salted.Salt = "a user's secret"
	single := openSpace(t, s, "keys", skep.Durable, 1, false)
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 2, HeadDim: 16, Element: skep.BF16, BlockTokens: 8}
	n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "u", Name: "attention", Model: "m", Shape: shape, Class: skep.Durable, Chained: true})
	require.NoError(t, err)
	attention := skep.Scope{Namespace: n.ID}
	keys := chainKeys(1, 5)
	goldenValues(t, s, fill)
	goldenSide(t, s, fill)
	n, err = s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "encrypted", Name: "chain", Shape: anySize, Class: skep.Durable, Copies: 2, Chained: true})
	require.NoError(t, err)
	for salt, size := range map[skep.Salt]int{"large": 5000, "small": 300} {
		sc := skep.Scope{Namespace: n.ID, Salt: salt}
		if fill {
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
		}
		requireChain(t, s, sc, keys, size)
	}
	put := func(sc skep.Scope, parent *skep.Key, depth int, b skep.Block) {
		res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Parent: parent, Depth: depth, Blocks: []skep.Block{b}})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	if fill {
		requireOutcome(t, skep.Committed, putRun(t, s, chain, keys, 5000))
		requireOutcome(t, skep.Committed, putRun(t, s, salted, keys, 300)) // these live in their records
		for i, k := range keys {
			for v := range 2 { // the last writer wins
				put(single, nil, 0, skep.Block{Key: k, Name: []byte("name"), Parts: []skep.Part{
					{Bytes: content(k, skep.PartKV, v, 100*i)}, {Name: "state", Bytes: content(k, "state", v, 700)}}})
			}
		}
		put(attention, nil, 0, skep.Block{Key: keys[0], Parts: []skep.Part{{Bytes: content(keys[0], skep.PartKV, 1, 2048)}}})
		put(attention, &keys[0], 1, skep.Block{Key: keys[1], ValidTokens: 3, Parts: []skep.Part{{Bytes: content(keys[1], skep.PartKV, 1, 2048)}}})
		_, err := s.Delete(ctx, single, keys[4:])
		require.NoError(t, err)
		require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &skep.Scope{Namespace: chain.Namespace, Salt: "purged"}}))
	}
	requireChain(t, s, chain, keys, 5000)
	requireChain(t, s, salted, keys, 300)
	for i, k := range keys {
		for part, size := range map[string]int{skep.PartKV: 100 * i, "state": 700} {
			list, err := fetch(ctx, s, skep.Chain{Scope: single, Keys: []skep.Key{k}, Part: part})
			require.NoError(t, err)
			if i == 4 {
				requireKind(t, skep.NotFound, list[0].err)
				continue
			}
			require.NoError(t, list[0].err)
			require.Equal(t, content(k, part, 1, size), list[0].data)
		}
	}
	requireChain(t, s, attention, keys[:2], 2048)
	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: attention, Keys: keys[:2]})
	require.NoError(t, err)
	require.Equal(t, 8+3, found.Tokens)
}

// goldenSide is blocks with side rows, plain and encrypted.
func goldenSide(t *testing.T, s *Store, fill bool) {
	for _, tenant := range []string{"u", "encrypted"} {
		n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: tenant, Name: "side", Model: "m", Shape: anySize, Class: skep.Durable})
		require.NoError(t, err)
		sc, k := skep.Scope{Namespace: n.ID, Salt: "pepper"}, keyOf(5)
		b := content(k, tenant, 1, 9000)
		if fill {
			putOne(t, s, sc, k, b)
		}
		if _, err := s.Sidecar(testContext(t), sc, k); err != nil { // not put yet, or lost with the catalog
			requireKind(t, skep.NotFound, err)
			require.NoError(t, s.PutSidecar(testContext(t), sc, k, piecesOf(b, 4000)))
		}
		got, err := s.Sidecar(testContext(t), sc, k)
		require.NoError(t, err)
		require.Equal(t, piecesOf(b, 4000), got)
	}
}

// goldenValues are small values that were put in two batches, plain and encrypted.
func goldenValues(t *testing.T, s *Store, fill bool) {
	sizes := []int{513, 700, 1024, 1500, 2048, 3000, 3584, 600, 2500, 900, 1300}
	for _, tenant := range []string{"u", "encrypted"} {
		n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: tenant, Name: "values", Shape: anySize, Class: skep.Durable, Copies: 2})
		require.NoError(t, err)
		v := &values{T: t, s: s, sc: skep.Scope{Namespace: n.ID}, bytes: map[skep.Key][]byte{}}
		r := skep.PutRequest{Scope: v.sc}
		for i, size := range sizes {
			k := keyOf(uint32(i))
			v.keys, v.bytes[k] = append(v.keys, k), content(k, tenant, 1, size)
			r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: v.bytes[k]}}})
		}
		for all := r.Blocks; fill && len(all) > 0; all = all[len(r.Blocks):] {
			r.Blocks = all[:min(8, len(all))]
			res, err := s.Put(testContext(t), &r)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, res)
		}
		v.require()
	}
}

func goldenOptions(dir string) Options {
	o := small(dir)
	o.CapacityBytes, o.SegmentBytes, o.EncryptionKeys = 2<<20, 128<<10, oneKey("encrypted", 7)
	return o
}

func TestGoldenImage(t *testing.T) {
	t.Parallel() // it waits
	if *rewrite {
		makeGolden(t)
	}
	for _, lost := range []bool{false, true} {
		t.Run("catalog lost: "+strconv.FormatBool(lost), func(t *testing.T) {
			dir := tempRoot(t, "store")
			unpackImage(t, goldenImage, dir)
			if lost {
				require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog")))
			}
			o := goldenOptions(dir)
			for round := range 3 {
				s, err := Open(context.Background(), o)
				require.NoError(t, err)
				roots, _ := sideRows(t, s)
				require.Equal(t, round == 0 && !lost || round == 1, len(roots) == 2, "round %d", round)
				golden(t, s, false)
				more := chainKeys(99, 3)
				sc := openSpace(t, s, "chain", skep.Durable, 2, true)
				putRun(t, s, sc, more, 5000)
				requireChain(t, s, sc, more, 5000)
				require.NoError(t, s.Close())
				if round == 1 { // the devices say it all
					require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog")))
				}
			}
			rep, err := Verify(context.Background(), o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.Empty(t, rep.Faults)
		})
	}
}

func makeGolden(t *testing.T) {
	dir := tempRoot(t, "store")
	s, err := Open(context.Background(), goldenOptions(dir))
	require.NoError(t, err)
	golden(t, s, true)
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	require.NoError(t, err)
	w := tar.NewWriter(z)
	var paths []string
	require.NoError(t, filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err == nil && i.Mode().IsRegular() && i.Name() != "LOCK" {
			paths = append(paths, path)
		}
		return err
	}))
	sort.Strings(paths)
	for _, path := range paths { // while it is open: it is as if it had been killed
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(b)), Mode: 0o644}))
		_, err = w.Write(b)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	require.NoError(t, s.Close())
	require.Less(t, buf.Len(), 200<<10)
	require.NoError(t, os.MkdirAll(filepath.Dir(goldenImage), 0o755))
	require.NoError(t, os.WriteFile(goldenImage, buf.Bytes(), 0o644))
	t.Logf("%s: %d bytes", goldenImage, buf.Len())
}

func unpackImage(t *testing.T, image, dir string) {
	f, err := os.Open(image)
	require.NoError(t, err)
	defer f.Close()
	z, err := zstd.NewReader(f)
	require.NoError(t, err)
	defer z.Close()
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, b, 0o644))
	}
}
