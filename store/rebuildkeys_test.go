package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// loseCatalog has the next open make the catalog from the devices alone.
func loseCatalog(t *testing.T, o Options) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	_, err := Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
}

// requireRefused requires that the store is opened neither without keys nor with wrong ones.
func requireRefused(t *testing.T, o Options) {
	t.Helper()
	for _, ring := range []map[string][]EncryptionKey{nil, oneKey("t", 2), oneKey("another", 1)} {
		_, err := reopened(t, o, ring)
		requireKind(t, skep.Denied, err)
		require.ErrorContains(t, err, key(1).ID(), "it says which key")
	}
}

// Of a tenant nothing that is encrypted is on the devices at the moment. A rebuild knows all the same that it is
// encrypted: what follows would be written as it is put.
func TestARebuildKnowsWhoEncryptsThoughNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, cleaned := range map[string]bool{"deleted": false, "deleted and cleaned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			o, s, sc, keys := openSealed(t)
			_, err := s.Delete(ctx, sc, keys)
			require.NoError(t, err)
			if cleaned { // of the groups there were then none is left, nor their logs
				last := s.root.Last()
				other := openSpaceOf(t, s, "u")
				for n := uint32(0); s.space.OldestBeside(nil) <= last; n++ {
					require.Less(t, n, uint32(10_000))
					putRun(t, s, other, []skep.Key{keyOf(n)}, 60_000)
				}
			}
			require.NoError(t, s.Close())
			for range 2 { // and so does the rebuild after it
				loseCatalog(t, o)
				requireRefused(t, o)
			}
			s, err = reopened(t, o, oneKey("t", 2, 1))
			require.NoError(t, err, "a new key above the old one is right")
			require.NoError(t, s.Close())
			loseCatalog(t, o)
			s, err = reopened(t, o, oneKey("t", 2))
			require.NoError(t, err, "it was given above the old one, which the devices know")
			require.NoError(t, s.Close())
		})
	}
}

// openSpaceOf makes a namespace of another tenant, in which the last writer wins.
func openSpaceOf(t *testing.T, s *Store, tenant string) skep.Scope {
	t.Helper()
	info, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: tenant, Name: "churn", Model: "m",
		Class: skep.Cache, Copies: 1, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16}})
	require.NoError(t, err)
	return skep.Scope{Namespace: info.ID}
}

// A purge of all that a tenant encrypted is what it is where the catalog was not lost: then nothing asks for a key.
func TestARebuildAsksForNoKeyOfWhatIsPurged(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(s *Store, sc skep.Scope) error{
		"purged":  func(s *Store, sc skep.Scope) error { return s.Purge(testContext(t), skep.Purge{Tenant: "t"}) },
		"deleted": func(s *Store, sc skep.Scope) error { return s.DeleteNamespace(testContext(t), sc.Namespace) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, s, sc, _ := openSealed(t)
			require.NoError(t, gone(s, sc))
			require.NoError(t, s.Close())
			loseCatalog(t, o)
			s, err := reopened(t, o, nil)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		})
	}
}

// The devices know which key is in use before a put says that a block is stored, wherever that is then: a cut takes
// what the drives were not asked to flush, and the catalog with it.
func TestTheDevicesKnowTheKeyBeforeAPutIsAnswered(t *testing.T) {
	t.Parallel()
	for _, ack := range []skep.Ack{skep.AckAccepted, skep.AckCommitted} {
		t.Run(fmt.Sprint(ack), func(t *testing.T) {
			t.Parallel()
			ctx, drives := testContext(t), &rig{}
			o := small(tempRoot(t, "store"))
			o.EncryptionKeys, o.OpenDevice, o.CacheBytes = oneKey("t", 1), drives.open, 1<<20
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "secrets", skep.Cache, 1, false)
			for _, f := range drives.faults {
				require.NoError(t, f.Record(ctx))
			}
			_, err = s.Put(ctx, &skep.PutRequest{Scope: sc, Ack: ack,
				Blocks: []skep.Block{{Key: keyOf(1), Parts: []skep.Part{{Bytes: marked(5000)}}}}})
			require.NoError(t, err)
			var left []*device.Memory
			for _, f := range drives.faults {
				left = append(left, f.CrashDevice(f.Events(), nil, device.CrashOptions{}))
			}
			require.NoError(t, s.Close())

			o.Dir = tempRoot(t, "cut")
			require.NoError(t, os.MkdirAll(o.Dir, 0o755))
			o.OpenDevice = func(i int, _ string, create bool, _ int64) (device.Device, error) {
				if create || i >= len(left) {
					return nil, os.ErrNotExist
				}
				left[i] = left[i].Clone() // the one before was closed
				return left[i], nil
			}
			_, err = Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			requireRefused(t, o)
		})
	}
}

// A store from before the devices knew keys has them say it at the next open that has the catalog; a scrub writes it
// again where no log has it any more.
func TestDevicesOfAnOlderStoreAreTold(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, s, sc, keys := openSealed(t)
	_, err := s.Delete(ctx, sc, keys)
	require.NoError(t, err)
	older := func(s *Store) { // as a program wrote it that did not tell them
		rows, err := s.catalog.Sealings(ctx)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		rows[0].Said = false
		b := s.catalog.NewBatch()
		b.PutSealing(rows[0])
		require.NoError(t, s.catalog.Commit(ctx, b, true))
	}
	older(s)
	require.NoError(t, s.Close())
	told := func(s *Store) (n int) {
		for _, g := range s.space.Groups() {
			require.NoError(t, s.space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
				if e.Kind == segment.KindSealing {
					n++
				}
				return nil
			}))
		}
		return n
	}
	s, err = reopened(t, o, oneKey("t", 1))
	require.NoError(t, err)
	require.Equal(t, 4, told(s), "the put said it on both drives, and so did this open")
	rows, err := s.catalog.Sealings(ctx)
	require.NoError(t, err)
	require.True(t, rows[0].Said)
	require.NoError(t, s.Close())
	s, err = reopened(t, o, oneKey("t", 1))
	require.NoError(t, err)
	require.Equal(t, 4, told(s), "it is known now")

	info, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "another", Model: "m", Class: skep.Cache,
		Copies: 1, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16}})
	require.NoError(t, err)
	b := s.catalog.NewBatch()
	b.PutSealing(catalog.Sealing{Instance: s.names.Get(info.ID).Instance, Key: [16]byte{1}, Said: true})
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	rep, err := s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, rep.LogsMended)
	require.GreaterOrEqual(t, told(s), 6, "who mends logs in the background may have met it, too")
	require.NoError(t, s.Close())
}
