package resp

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A read that took its time brings nothing back: it was given a key's head, the key was set anew or deleted
// and that was acknowledged, and only then the read goes on. The pieces of the value that was are there still,
// or gone where NX would be right only because it finds them.
func TestALateReadBringsNothingBack(t *testing.T) {
	t.Parallel()
	first, second := string(randomBytes(2*inlineBytes)), string(randomBytes(3*inlineBytes))
	for _, c := range []struct{ change, then, want string }{
		{"SET", "GET", quoted([]byte(second))}, {"SET", "STRLEN", "49152"},
		{"SET", "EXPIRE", "1"}, {"SET", "SETNX", "0"},
		{"DEL", "GET", "nil"}, {"DEL", "STRLEN", "0"}, {"DEL", "EXPIRE", "0"}, {"DEL", "SETNX", "1"},
	} {
		t.Run(c.change+" "+c.then, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			defer mem.Close()
			var hold atomic.Bool
			held, goOn := make(chan struct{}), make(chan struct{})
			st := &wrapped{Store: mem}
			st.restored = func(ch skep.Chunk) skep.Chunk {
				if hold.CompareAndSwap(true, false) {
					close(held)
					<-goOn
				}
				return ch
			}
			st.delete = func(_ skep.Scope, keys []skep.Key) error {
				if keys[0] == skep.KeyOf([]byte("k")) || c.change == "SET" && c.then == "SETNX" {
					return nil
				}
				return &skep.Error{Kind: skep.DeviceFailed}
			}
			f := serve(t, st, Options{})
			require.Equal(t, "+OK", f.dial().do("SET", "k", first))
			f = serve(t, st, Options{}) // it has read nothing yet
			reader, writer := f.dial(), f.dial()
			hold.Store(true)
			crew := storetest.NewCrew(t)
			crew.Go(func(testing.TB) {
				_, _ = reader.Write(encode("STRLEN", "k"))
				_, _ = reader.tryReply() // of either value
			})
			<-held
			if c.change == "SET" {
				assert.Equal(t, "+OK", writer.do("SET", "k", second))
			} else {
				assert.Equal(t, "1", writer.do("DEL", "k"))
			}
			close(goOn)
			crew.Wait()

			f.server.reap.sweep()
			switch c.then {
			case "EXPIRE":
				assert.Equal(t, c.want, writer.words("EXPIRE k 100"))
			case "SETNX":
				assert.Equal(t, c.want, writer.words("SETNX k third"))
			default:
				assert.Equal(t, c.want, writer.words(c.then+" k"))
			}
			switch {
			case c.change == "SET":
				assert.Equal(t, quoted([]byte(second)), writer.do("GET", "k"))
			case c.then == "SETNX":
				assert.Equal(t, `"third"`, writer.do("GET", "k"))
			default:
				assert.Equal(t, "nil", writer.do("GET", "k"))
			}
		})
	}
}

// A head that somebody deletes or purges who speaks another protocol is gone for RESP too, although its pieces are
// there.
func TestWhatOthersDeleteIsGone(t *testing.T) {
	t.Parallel()
	value := string(randomBytes(2 * inlineBytes))
	for _, then := range []string{"GET", "MGET", "STRLEN", "EXPIRE", "PERSIST", "EXISTS", "DEL", "SETNX"} {
		t.Run(then, func(t *testing.T) {
			f := serve(t, nil, Options{})
			c := f.dial()
			require.Equal(t, "+OK", c.do("MSET", "a", value, "k", value, "z", value))
			db := f.database()
			_, err := f.store.Delete(t.Context(), skep.Scope{Namespace: db.heads}, []skep.Key{skep.KeyOf([]byte("k"))})
			require.NoError(t, err)
			switch then {
			case "GET":
				assert.Equal(t, "nil", c.words("GET k"))
			case "MGET":
				all := quoted([]byte(value))
				assert.Equal(t, "*["+all+" nil "+all+" nil "+all+"]", c.words("MGET a k z k a"))
			case "EXPIRE":
				assert.Equal(t, "0", c.words("EXPIRE k 100"))
			case "SETNX":
				assert.Equal(t, "1", c.words("SETNX k other"))
				return
			default:
				assert.Equal(t, "0", c.words(then+" k"))
			}
			assert.Equal(t, "nil", c.words("GET k"))
			assert.Equal(t, "2", c.words("DBSIZE"), "nobody has brought it back")
		})
	}
}

// Of a value that lost a piece every command says that there is none, as GET does, and nothing brings its head back.
func TestAValueThatLostAPieceIsNotThere(t *testing.T) {
	t.Parallel()
	value := string(randomBytes(2 * pieceBytes))
	for ask, want := range map[string]string{
		"GET k": "nil", "MGET k": "*[nil]", "EXISTS k": "0", "TOUCH k": "0", "TYPE k": "+none", "STRLEN k": "0", "TTL k": "-2", "PTTL k": "-2",
		"EXPIRE k 100": "0", "PERSIST k": "0", "DEL k": "0", "UNLINK k": "0", "SET k v XX": "nil", "SETNX k v": "1", "SET k v KEEPTTL": "+OK",
	} {
		t.Run(ask, func(t *testing.T) {
			f := serve(t, nil, Options{})
			c := f.dial()
			require.Equal(t, "+OK", c.do("SET", "k", value, "EX", "1000"))
			data := f.database().data
			keys, _, err := f.store.ListKeys(t.Context(), data, 0, 1)
			require.NoError(t, err)
			_, err = f.store.Delete(t.Context(), skep.Scope{Namespace: data}, keys[:1])
			require.NoError(t, err)
			assert.Equal(t, want, c.words(ask))
			switch want {
			case "1", "+OK":
				assert.Equal(t, `"v"`, c.words("GET k"))
				assert.Equal(t, "-1", c.words("TTL k"), "its end of life went with it")
			default:
				assert.Equal(t, "nil", c.words("GET k"))
				assert.Equal(t, "-2", c.words("TTL k"))
			}
		})
	}
}
