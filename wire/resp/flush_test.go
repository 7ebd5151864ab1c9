package resp

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
)

// What takes a database's blocks while a value is on its way in, at any place between two of its pieces, before its head
// or after it, takes the value, or the value is not told as set: whatever was answered OK after the flush is there, and
// nothing is left of what was not.
func TestWhatIsFlushedInASetIsNotToldAsSet(t *testing.T) {
	t.Parallel()
	const pieces = 4
	value := string(randomBytes(pieces * pieceBytes))
	head := skep.KeyOf([]byte("k"))
	flushes := map[string]func(t *testing.T, f *fixture){
		"FLUSHDB":  func(t *testing.T, f *fixture) { require.Equal(t, "+OK", f.dial().do("FLUSHDB")) },
		"FLUSHALL": func(t *testing.T, f *fixture) { require.Equal(t, "+OK", f.dial().do("FLUSHALL")) },
		"a purge of the tenant": func(t *testing.T, f *fixture) {
			assert.NoError(t, f.store.Purge(t.Context(), skep.Purge{Tenant: "default"}))
		},
		"a purge of the pieces": func(t *testing.T, f *fixture) {
			assert.NoError(t, f.store.Purge(t.Context(), skep.Purge{Namespace: f.database().data}))
		},
	}
	for name, flush := range flushes {
		for after := 1; after <= pieces; after++ {
			t.Run(fmt.Sprintf("%s after %d pieces", name, after), func(t *testing.T) {
				mem := memstore.New(memstore.Options{})
				defer mem.Close()
				f := serve(t, mem, Options{})
				c := f.dial()
				require.Equal(t, "+OK", c.do("SET", "k", "before"))
				all := encode("SET", "k", value)
				sent := len(all) - len(value) - 2 + after*pieceBytes
				_, err := c.Write(all[:sent])
				require.NoError(t, err)
				data := f.database().data
				count := func() int64 {
					n, err := mem.CountBlocks(t.Context(), data)
					require.NoError(t, err)
					return n
				}
				storetest.Eventually(t, "pieces are stored", func() bool { return count() == int64(after) })
				flush(t, f)
				_, err = c.Write(all[sent:])
				require.NoError(t, err)
				assert.Contains(t, c.reply(), "-TRYAGAIN ")
				if name == "a purge of the pieces" {
					assert.Equal(t, `"before"`, c.do("GET", "k"), "its head is not of that namespace")
					assert.Equal(t, "1", c.do("DBSIZE"))
				} else {
					assert.Equal(t, "nil", c.do("GET", "k"))
					assert.Equal(t, "0", c.do("DBSIZE"))
				}
				f.server.reap.sweep()
				assert.Zero(t, count(), "pieces that no head names")
				require.Equal(t, "+OK", c.do("SET", "k", value))
				assert.Equal(t, quoted([]byte(value)), c.do("GET", "k"))
			})
		}
	}
	flushes["the loss of a piece"] = func(t *testing.T, f *fixture) {
		data := f.database().data
		keys, _, err := f.store.ListKeys(t.Context(), data, 0, 1)
		if assert.NoError(t, err) {
			_, err = f.store.Delete(t.Context(), skep.Scope{Namespace: data}, keys[:1])
			assert.NoError(t, err)
		}
	}
	for _, name := range []string{"a purge of the tenant", "a purge of the pieces", "the loss of a piece"} { // FLUSHDB waits for the head
		t.Run(name+" as the head is stored", func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			defer mem.Close()
			var f *fixture
			var once atomic.Bool
			f = serve(t, &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
				if r.Blocks[0].Key == head && once.CompareAndSwap(false, true) {
					flushes[name](t, f)
				}
				return nil, nil
			}}, Options{})
			c := f.dial()
			assert.Contains(t, c.do("SET", "k", value), "-TRYAGAIN ")
			for _, ask := range []string{"EXISTS k", "STRLEN k", "DBSIZE", "EXPIRE k 100", "DEL k"} {
				assert.Equal(t, "0", c.words(ask), ask)
			}
			assert.Equal(t, "nil", c.do("GET", "k"))
			f.server.reap.sweep()
			n, err := mem.CountBlocks(t.Context(), f.database().data)
			require.NoError(t, err)
			assert.Zero(t, n)
		})
	}
}

// No head is stored while a database is emptied: between its heads and its pieces it would be left without these.
func TestNoHeadIsStoredInAFlush(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	require.Equal(t, "+OK", f.dial().do("SET", "k", "v"))
	served := f.database()
	db := newDatabase(f.server, served.tenant, 0)
	db.open([2]skep.NamespaceID{served.heads, served.data})
	purges := 0
	db.store = &purged{Store: f.store, purge: func() {
		purges++
		for i := range db.locks {
			if db.locks[i].TryLock() {
				db.locks[i].Unlock()
				assert.Fail(t, "not locked", "keys %d", i)
			}
		}
	}}
	require.NoError(t, db.flush(t.Context()))
	assert.Equal(t, 2, purges)
	assert.Equal(t, "nil", f.dial().do("GET", "k"))
}

// purged is a store whose purges tell that they begin.
type purged struct {
	skep.Store
	purge func()
}

func (p *purged) Purge(ctx context.Context, r skep.Purge) error {
	p.purge()
	return p.Store.Purge(ctx, r)
}

// EXPIRE and PERSIST write a head anew that was read before; they do not bring back what was purged in between.
func TestExpireBringsNothingPurgedBack(t *testing.T) {
	t.Parallel()
	for _, cmd := range []string{"EXPIRE k 100", "PERSIST k"} {
		for _, value := range []string{"v", string(randomBytes(2 * inlineBytes))} {
			for at := range 3 { // the moments at which the head is about to be written
				t.Run(fmt.Sprint(cmd, len(value), at), func(t *testing.T) {
					mem := memstore.New(memstore.Options{})
					defer mem.Close()
					st := &writing{Store: mem}
					f := serve(t, st, Options{})
					c := f.dial()
					require.Equal(t, "+OK", c.do("SET", "k", value, "EX", "10"))
					var moment atomic.Int32
					tell := func() {
						if moment.Add(1) == int32(at)+1 {
							assert.NoError(t, mem.Purge(t.Context(), skep.Purge{Tenant: "default"}))
						}
					}
					st.moment.Store(&tell)
					assert.Equal(t, "0", c.words(cmd))
					assert.Greater(t, moment.Load(), int32(at))
					st.moment.Store(nil)
					for _, ask := range []string{"EXISTS k", "STRLEN k", "DBSIZE"} {
						assert.Equal(t, "0", c.words(ask))
					}
				})
			}
		}
	}
}

// writing is a store that tells when a block is about to be written: before it is put, begun, written, committed.
type writing struct {
	skep.Store
	moment atomic.Pointer[func()]
}

func (s *writing) tell() {
	if tell := s.moment.Load(); tell != nil {
		(*tell)()
	}
}

func (s *writing) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	s.tell()
	return s.Store.Put(ctx, r)
}

func (s *writing) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	s.tell()
	w, err := s.Store.Begin(ctx, r)
	return &writingBlock{w, s}, err
}

type writingBlock struct {
	skep.BlockWriter
	s *writing
}

func (w *writingBlock) Write(ctx context.Context, part string, offset int64, p []byte) error {
	w.s.tell()
	return w.BlockWriter.Write(ctx, part, offset, p)
}

func (w *writingBlock) Commit(ctx context.Context, ack skep.Ack) (skep.PutResult, error) {
	w.s.tell()
	return w.BlockWriter.Commit(ctx, ack)
}

// FLUSHALL empties all databases of a tenant, and nobody else's.
func TestFlushAll(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "owner", tokenOwner, auth.All), credential(t, "other", tokenOther, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	own, other := f.dial(), f.dial()
	require.Equal(t, "+OK", own.do("AUTH", tokenOwner))
	require.Equal(t, "+OK", other.do("AUTH", tokenOther))
	for _, db := range []string{"0", "3"} {
		for _, c := range []*client{own, other} {
			require.Equal(t, "+OK", c.do("SELECT", db))
			require.Equal(t, "+OK", c.do("SET", "k", "v"))
		}
	}
	assert.Equal(t, "-ERR syntax error", own.do("FLUSHALL", "NOW"))
	assert.Equal(t, "+OK", own.do("FLUSHALL", "SYNC"))
	for _, db := range []string{"0", "3"} {
		for c, want := range map[*client]string{own: "0", other: "1"} {
			require.Equal(t, "+OK", c.do("SELECT", db))
			assert.Equal(t, want, c.do("DBSIZE"))
		}
	}
}
