package store

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// A block is on its way to another place: its row is there already, and the index still says
// where it was. Who asks meanwhile waits for that moment to pass, and is answered as before it and
// after it.
func TestWhatIsBeingMovedIsThere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ask  func(t *testing.T, s *Store, sc skep.Scope, key skep.Key)
	}{
		{"a put of other bytes differs", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			other := content(key, "other", 1, 9000)
			assert.Equal(t, []skep.PutResult{{Outcome: skep.Exists, Differs: true}}, putAgain(t, s, sc, key, other))
		}},
		{"a put of the same bytes does not", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			same := content(key, "a", 1, 9000)
			assert.Equal(t, []skep.PutResult{{Outcome: skep.Exists}}, putAgain(t, s, sc, key, same))
		}},
		{"it has its sidecar", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			got, err := s.Sidecar(testContext(t), sc, key)
			assert.NoError(t, err)
			assert.Equal(t, piecesOf(content(key, "a", 1, 9000), 4000), got)
		}},
		{"a sidecar can be put", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			assert.NoError(t, s.PutSidecar(testContext(t), sc, key, piecesOf(content(key, "a", 1, 9000), 3000)))
		}},
		{"a stray record beside it dies alone", func(t *testing.T, s *Store, sc skep.Scope, key skep.Key) {
			ns, tag, err := s.names.Resolve("test", sc)
			if !assert.NoError(t, err) {
				return
			}
			// As an append leaves it that was cut off: newer than what is stored, and never committed.
			h := segment.Head{Instance: ns.Instance, SaltTag: segment.SaltTag(tag), Key: key, Seq: s.root.Next()}
			h.Version = uint32(h.Seq)
			s.root.Next()
			assert.True(t, s.logs.Stray(testContext(t), &h).Exact)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, err := Open(ctx, small(t.TempDir()))
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			key := keyOf(1)
			putOne(t, s, sc, key, content(key, "a", 1, 9000))
			require.NoError(t, s.PutSidecar(ctx, sc, key, piecesOf(content(key, "a", 1, 9000), 4000)))

			back := takeRow(t, s, sc, key)
			done := make(chan struct{})
			go func() { defer close(done); c.ask(t, s, sc, key) }()
			eventually(t, "it is answered, or waits", func() bool {
				select {
				case <-done:
					return true
				default:
					buf := make([]byte, 1<<20)
					return strings.Contains(string(buf[:runtime.Stack(buf, true)]), "(*Rows).Await")
				}
			})
			back()
			<-done
		})
	}
}

// takeRow takes a block's row away as one who moves it does, with the changes of rows locked, and
// gives what puts it there again and unlocks.
func takeRow(t *testing.T, s *Store, sc skep.Scope, key skep.Key) (back func()) {
	t.Helper()
	ctx := testContext(t)
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	s.rows.Changes().Lock()
	e, ok := s.index.Resolve(s.names.Fingerprint(ns.Instance, tag, key))
	require.True(t, ok)
	row, err := s.catalog.Block(ctx, layout.Unpack(e.Location), nil)
	require.NoError(t, err)
	b := s.catalog.NewBatch()
	b.DeleteBlock(layout.Unpack(e.Location))
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	return func() {
		defer s.rows.Changes().Unlock()
		b := s.catalog.NewBatch()
		b.PutBlock(layout.Unpack(e.Location), row)
		require.NoError(t, s.catalog.Commit(ctx, b, true))
	}
}

func putAgain(t *testing.T, s *Store, sc skep.Scope, key skep.Key, b []byte) []skep.PutResult {
	t.Helper()
	res, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: b}}}}})
	assert.NoError(t, err)
	return res
}
