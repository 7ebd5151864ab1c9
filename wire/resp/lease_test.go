package resp

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// held is what a tenant's promises hold now.
func (l *leases) held(now time.Time) int64 {
	_, _ = l.find(promised{}, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// What an EXISTS said is there is there for the whole time from that EXISTS on, whatever the key went through before and
// however often it was asked; a value that takes the place of a promised one is there for what is left. Then it goes, and
// the budget is free again.
func TestExistsKeepsWhatItPromises(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]string{
		"asked once":                  "EXISTS",
		"asked late in a promise":     "EXISTS +4s EXISTS",
		"asked later in a promise":    "EXISTS +9s EXISTS",
		"asked again and again":       "EXISTS +4s EXISTS +4s EXISTS +4s EXISTS",
		"set again":                   "EXISTS SET EXISTS",
		"set again, not asked again":  "EXISTS SET",
		"deleted and set":             "EXISTS DEL SET EXISTS",
		"expiry set":                  "EXISTS EXPIRE",
		"expiry set and asked again":  "EXISTS +4s EXPIRE EXISTS",
		"expiry taken":                "EXISTS EXPIRE PERSIST",
		"flushed and set":             "EXISTS FLUSHDB SET EXISTS",
		"deleted by others and set":   "EXISTS delete SET EXISTS",
		"set again after it ran out":  "EXISTS +11s SET EXISTS",
		"touched":                     "TOUCH",
		"set and deleted and set":     "SET EXISTS SET DEL SET EXISTS +2s EXISTS",
		"asked with others' promises": "EXISTS others EXISTS",
	} {
		for _, size := range []int{3, inlineBytes, inlineBytes + 1, pieceBytes + 1} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				t.Parallel()
				clock := newClock()
				mem := memstore.New(memstore.Options{Clock: clock.read, CapacityBytes: 4 << 20})
				defer mem.Close()
				f := serve(t, mem, Options{Clock: clock.read, ExistsLease: 10 * time.Second})
				c := f.dial()
				version := 0
				value := func() string { return strings.Repeat(string(rune('a'+version)), size) }
				flood := func() {
					for i := range 10 {
						c.do("SET", fmt.Sprint("flood", i), strings.Repeat("f", 900<<10))
					}
				}
				require.Equal(t, "+OK", c.do("SET", "k", value()))
				for _, step := range strings.Fields(story) {
					switch step {
					case "SET":
						version++
						require.Equal(t, "+OK", c.do("SET", "k", value()))
					case "EXPIRE":
						require.Equal(t, "1", c.words("EXPIRE k 1000"))
					case "FLUSHDB":
						require.Equal(t, "+OK", c.words("FLUSHDB"))
					case "delete":
						heads := f.database().heads
						_, err := mem.Delete(t.Context(), skep.Scope{Namespace: heads}, []skep.Key{skep.KeyOf([]byte("k"))})
						require.NoError(t, err)
					case "others":
						require.Equal(t, "+OK", c.do("SET", "other", "v"))
						require.Equal(t, "1", c.words("EXISTS other"))
					default:
						if d, err := time.ParseDuration(step); err == nil {
							clock.advance(d)
							continue
						}
						require.Equal(t, "1", c.do(step, "k"), step)
					}
				}
				clock.advance(9 * time.Second)
				flood()
				assert.Equal(t, quoted([]byte(value())), c.words("GET k"), "promised")
				clock.advance(62 * time.Second) // GET holds it for a minute
				flood()
				assert.Equal(t, "nil", c.words("GET k"), "promised no more")
				require.Equal(t, "0", c.words("EXISTS none"))
				l := &f.server.tenantOf("default").leases
				assert.Zero(t, l.held(clock.read()))
				assert.Empty(t, l.of)
				assert.Zero(t, l.refused())
			})
		}
	}
}

// A promise that the store does not make is counted, costs nothing of the budget, and is asked for anew.
func TestAPromiseTheStoreDenies(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{TenantLeaseBytes: 3 << 20})
	defer mem.Close()
	f := serve(t, mem, Options{})
	c := f.dial()
	for _, k := range []string{"a", "b"} {
		require.Equal(t, "+OK", c.do("SET", k, string(randomBytes(2*pieceBytes))))
	}
	l := &f.server.tenantOf("default").leases
	require.Equal(t, "1", c.words("EXISTS a"))
	used := l.held(skep.Steady())
	for n := range 3 {
		require.EqualValues(t, n, l.refused())
		require.Equal(t, "1", c.words("EXISTS b"), "it is there all the same")
		require.Equal(t, used, l.held(skep.Steady()))
	}
	require.Contains(t, c.words("INFO stats"), "exists_leases_denied:3")
	require.Equal(t, "1", c.words("DEL a"))
	require.Equal(t, "1", c.words("EXISTS b"))
	require.EqualValues(t, 3, l.refused(), "there is room now")
}

// A key whose value is replaced while EXISTS looks at it is there, and what is promised is of the new value.
func TestAPromiseOfAValueThatIsBeingReplaced(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{CapacityBytes: 8 << 20})
	defer mem.Close()
	first, second := string(randomBytes(pieceBytes+1)), string(randomBytes(pieceBytes+2))
	var writer *client
	var change atomic.Bool
	var f *fixture
	f = serve(t, &wrapped{Store: mem, restored: func(ch skep.Chunk) skep.Chunk {
		if change.CompareAndSwap(true, false) {
			_, err := writer.Write(encode("SET", "k", second))
			assert.NoError(t, err)
			said, err := writer.tryReply()
			assert.NoError(t, err)
			assert.Equal(t, "+OK", said)
			f.server.reap.sweep() // the first value's pieces are gone
		}
		return ch
	}}, Options{})
	c := f.dial()
	writer = f.dial()
	require.Equal(t, "+OK", c.do("SET", "k", first))
	change.Store(true)
	require.Equal(t, "1", c.words("EXISTS k"), "it was there all the time")
	require.Equal(t, "1", c.words("EXISTS k"))
	for i := range 20 {
		c.do("SET", fmt.Sprint("flood", i), strings.Repeat("f", 900<<10))
	}
	assert.Equal(t, quoted([]byte(second)), c.words("GET k"))
}

// What is promised for longer counts for longer.
func TestAPromiseCountsAsLongAsItLasts(t *testing.T) {
	t.Parallel()
	clock := newClock()
	mem := memstore.New(memstore.Options{Clock: clock.read})
	defer mem.Close()
	f := serve(t, mem, Options{Clock: clock.read, ExistsLease: 10 * time.Second})
	c := f.dial()
	l := &f.server.tenantOf("default").leases
	require.Equal(t, "+OK", c.do("MSET", "a", "v", "b", "v"))
	require.Equal(t, "2", c.words("EXISTS a b"))
	clock.advance(6 * time.Second)
	require.Equal(t, "1", c.words("EXISTS a"))
	both := l.held(clock.read())
	clock.advance(6 * time.Second)
	assert.Equal(t, both/2, l.held(clock.read()))
	clock.advance(6 * time.Second)
	assert.Zero(t, l.held(clock.read()))
}
