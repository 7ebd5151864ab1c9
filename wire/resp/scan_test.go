package resp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// counted is a store that tells how often it is asked for all it has, and lists keys as mem does.
type counted struct {
	*memstore.Store
	snapshots, listed atomic.Int64
}

func (c *counted) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	c.snapshots.Add(1)
	return nil, errors.New("a snapshot of the whole store")
}

func (c *counted) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	c.listed.Add(1)
	return c.Store.ListKeys(ctx, space, from, n)
}

// scanAll goes through SCAN and gives each key as often as it was told of, and how large the largest reply was.
func scanAll(t *testing.T, c *client, args ...string) (seen map[string]int, largest int) {
	seen = map[string]int{}
	cursor := "0"
	reply := regexp.MustCompile(`^\*\["(\d+)" \*\[(.*)\]\]$`)
	for {
		r := c.do(append([]string{"SCAN", cursor}, args...)...)
		m := reply.FindStringSubmatch(r)
		require.NotNil(t, m, "%.200s", r)
		largest = max(largest, strings.Count(m[2], " "))
		for _, k := range strings.Fields(m[2]) {
			seen[k]++
		}
		if cursor = m[1]; cursor == "0" {
			return seen, largest
		}
	}
}

// SCAN, DBSIZE and INFO do not look at what the whole store holds. SCAN's steps are bounded, in keys and in bytes.
func TestScanLooksAtItsOwnDatabaseOnly(t *testing.T) {
	t.Parallel()
	st := &counted{Store: memstore.New(memstore.Options{})}
	defer st.Close()
	c := serve(t, st, Options{}).dial()
	const n = 500
	for i := range n {
		require.Equal(t, "+OK", c.do("SET", fmt.Sprint("k", i), "v"))
	}
	assert.Equal(t, fmt.Sprint(n), c.words("DBSIZE"))
	assert.Contains(t, c.words("INFO keyspace"), fmt.Sprintf("db0:keys=%d,", n))
	seen, largest := scanAll(t, c, "COUNT", "100")
	assert.Len(t, seen, n)
	assert.Less(t, largest, 2*100)
	assert.Zero(t, st.snapshots.Load())
	assert.LessOrEqual(t, st.listed.Load(), int64(n/scanStep+n/100+2))

	require.Equal(t, "+OK", c.words("SELECT 1"))
	assert.Equal(t, "0", c.words("DBSIZE"))
	for i := range 100 {
		require.Equal(t, "+OK", c.do("SET", fmt.Sprint(i, strings.Repeat("k", 60<<10)), "v"))
	}
	c.send("SCAN", "0", "COUNT", "1000")
	r, err := c.tryReply()
	require.NoError(t, err)
	assert.Less(t, strings.Count(r, "bytes, "), 100, "a reply does not hold all the long keys there are")
	seen, _ = scanAll(t, c, "COUNT", "1000")
	require.NotEmpty(t, seen)
}

// listsNothing is a Store as one behind a connection is.
type listsNothing struct{ skep.Store }

func (listsNothing) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return skep.UnsupportedStore{}.CountBlocks(ctx, id)
}

func (listsNothing) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	return skep.UnsupportedStore{}.ListKeys(ctx, id, from, n)
}

// A store that cannot list says so.
func TestAStoreThatListsNothing(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	c := serve(t, listsNothing{mem}, Options{}).dial()
	require.Equal(t, "+OK", c.words("SET k v"))
	for cmd, op := range map[string]string{"SCAN 0": "list keys", "DBSIZE": "count blocks"} {
		assert.Regexp(t, "^-ERR .*"+op+": unsupported", c.words(cmd))
	}
	assert.Contains(t, c.words("INFO"), "redis_version")
}

// A pattern is no longer than a kilobyte, so that SCAN goes over no more of it for each byte of each key.
func TestALongPatternIsRefused(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{}).dial()
	for i := range 100 {
		require.Equal(t, "+OK", c.do("SET", fmt.Sprint("k", i), "v"))
	}
	class := "[" + strings.Repeat("a", 1<<20) + "]"
	assert.Equal(t, "-ERR pattern is longer than 1024 bytes", c.do("SCAN", "0", "COUNT", "1000", "MATCH", class))
	seen, _ := scanAll(t, c, "MATCH", "k["+strings.Repeat("z", 1020)+"7]")
	assert.Equal(t, map[string]int{`"k7"`: 1}, seen, "of 1024 bytes")
}

// A pattern that goes far into each of many long keys ends a page early; the cursor goes on.
func TestAScanDoesSoMuchMatching(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{OpTimeout: 5 * time.Minute}).dial() // a page takes seconds under the race detector
	key, n := strings.Repeat("a", 60<<10), 4
	for i := range n {
		require.Equal(t, "+OK", c.do("SET", key+fmt.Sprint(i), "v"))
	}
	require.Equal(t, "+OK", c.do("SET", "last b", "v"))
	hard := "*" + strings.Repeat("a", 500) + "b" // 502 bytes, gone over for each of the key
	pages, cursor := 0, "0"
	for {
		r := c.do("SCAN", cursor, "COUNT", "1000", "MATCH", hard)
		require.Regexp(t, `^\*\["\d+" \*\[\]\]$`, r)
		pages++
		if cursor = strings.Split(r, `"`)[1]; cursor == "0" {
			break
		}
	}
	assert.GreaterOrEqual(t, pages, n/2)
}

// A SCAN whose time is over, or whose server shuts down, looks at no key more.
func TestAScanEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	for i := range 100 {
		require.Equal(t, "+OK", c.do("SET", fmt.Sprint("k", i), "v"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	looked := 0
	db := f.server.database(f.server.tenantOf("default"), 0)
	_, _, err := db.scan(ctx, 0, 100, 0, func([]byte) (bool, int) {
		looked++
		cancel()
		return true, 0
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 1, looked)
}
