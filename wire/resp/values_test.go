package resp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// valuesOf are the values of database 0 of a fixture's default tenant.
func valuesOf(t *testing.T, st skep.Store) *Values {
	t.Helper()
	v, err := NewValues(st, "default", 0)
	require.NoError(t, err)
	return v
}

func (v *Values) bytes(ctx context.Context, key string) ([]byte, error) {
	var b bytes.Buffer
	err := v.Get(ctx, []byte(key), func(int64) (io.Writer, error) { return &b, nil })
	return b.Bytes(), err
}

// What is put without a connection is what GET finds, and the other way round, at every size at which a value is kept
// in another way.
func TestValuesAreThoseOfRedis(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c, v := f.dial(), valuesOf(t, f.store)
	defer func() { require.NoError(t, v.Close()) }()
	_, err := v.bytes(t.Context(), "none")
	require.ErrorIs(t, err, skep.NotFound, "there is no database yet")
	for _, size := range []int{0, 5, inlineBytes, inlineBytes + 1, pieceBytes, pieceBytes + 1, (getAhead+1)*pieceBytes + 7} {
		b := randomBytes(size)
		n, err := v.Put(t.Context(), []byte("ours"), bytes.NewReader(b))
		require.NoError(t, err)
		require.EqualValues(t, size, n)
		require.Equal(t, quoted(b), c.do("GET", "ours"), size)
		require.Equal(t, "+OK", c.do("SET", "theirs", string(b)))
		got, err := v.bytes(t.Context(), "theirs")
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, got), size)
	}
	require.Equal(t, "+OK", c.do("SET", "ends", "x", "PX", "3600000"))
	listed := map[string]Entry{}
	require.NoError(t, v.List(t.Context(), nil, func(e Entry) bool { listed[string(e.Key)] = e; return true }))
	require.Len(t, listed, 3)
	assert.EqualValues(t, (getAhead+1)*pieceBytes+7, listed["ours"].Bytes)
	assert.True(t, listed["ours"].Expires.IsZero())
	assert.False(t, listed["ends"].Expires.IsZero())
	some := 0
	require.NoError(t, v.List(t.Context(), []byte("t"), func(e Entry) bool { some++; return string(e.Key) == "theirs" }))
	assert.Equal(t, 1, some)
	n, err := v.Delete(t.Context(), [][]byte{[]byte("ours"), []byte("none")})
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, "nil", c.do("GET", "ours"))
}

// cutOff gives so many bytes, then calls end, and gives its error.
type cutOff struct {
	left int
	end  func() error
}

func (c *cutOff) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, c.end()
	}
	n := min(len(p), c.left)
	c.left -= n
	return n, nil
}

// A put that does not come to its end changes nothing, and leaves no piece of it.
func TestAPutThatIsCutLeavesNothing(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	v := valuesOf(t, mem)
	_, err := v.Put(t.Context(), []byte("k"), bytes.NewReader([]byte("before")))
	require.NoError(t, err)
	broken := errors.New("the disk broke")
	for name, c := range map[string]struct {
		size int
		end  func(stop func()) error
		want error
	}{
		"a reader that fails at once":    {0, func(func()) error { return broken }, broken},
		"a reader that fails":            {5*pieceBytes + 5, func(func()) error { return broken }, broken},
		"an interrupt":                   {5 * pieceBytes, func(stop func()) error { stop(); return io.EOF }, context.Canceled},
		"an interrupt of a small value":  {5, func(stop func()) error { stop(); return io.EOF }, context.Canceled},
		"a value that is over the limit": {MaxValueBytes + 1, nil, skep.Invalid},
	} {
		if c.size > MaxValueBytes && testing.Short() {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := v.Put(ctx, []byte("k"), &cutOff{c.size, func() error {
			if c.end == nil {
				return io.EOF
			}
			return c.end(cancel)
		}})
		cancel()
		require.ErrorIs(t, err, c.want, name)
		got, err := v.bytes(t.Context(), "k")
		require.NoError(t, err, name)
		assert.Equal(t, "before", string(got), name)
	}
	db := v.s.database(v.tenant, 0)
	require.NoError(t, v.Close())
	n, err := mem.CountBlocks(t.Context(), db.data)
	require.NoError(t, err)
	assert.Zero(t, n, "pieces are left")
}

// A store that takes no more says so, by kind.
func TestAPutIntoAFullStoreSaysFull(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	full := &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		return []skep.PutResult{{Outcome: skep.Declined, Reason: skep.Full}}, nil
	}}
	v := valuesOf(t, full)
	defer func() { require.NoError(t, v.Close()) }()
	for _, size := range []int{5, 3 * pieceBytes} {
		_, err := v.Put(t.Context(), []byte("k"), bytes.NewReader(make([]byte, size)))
		require.ErrorIs(t, err, skep.Full)
	}
}

func TestNamesOfDatabases(t *testing.T) {
	t.Parallel()
	for n := range databases {
		names := NamespacesOf(n)
		got, ok := DatabaseOf(names[0])
		assert.True(t, ok)
		assert.Equal(t, n, got)
		_, ok = DatabaseOf(names[1])
		assert.False(t, ok, "which has no values, but pieces of them")
	}
	for _, name := range []string{"", "resp/", "resp/16", "resp/-1", "resp/01", "chat", "1"} {
		_, ok := DatabaseOf(name)
		assert.False(t, ok, name)
	}
	_, err := NewValues(nil, "default", databases)
	require.ErrorIs(t, err, skep.Invalid)
}

// A server whose setting of copies was changed goes on with the databases that there are.
func TestADatabaseKeepsItsCopies(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	v := valuesOf(t, mem)
	_, err := v.Put(t.Context(), []byte("k"), bytes.NewReader([]byte("one copy")))
	require.NoError(t, err)
	require.NoError(t, v.Close())
	log := &safeBuffer{}
	c := serve(t, mem, Options{Copies: 2, Log: slog.New(slog.NewTextHandler(log, nil))}).dial()
	assert.Equal(t, "+OK", c.do("SET", "other", "x"))
	assert.Equal(t, `"one copy"`, c.do("GET", "k"))
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "%s", log.String())
	assert.Contains(t, log.String(), "namespace=resp/0 copies=1 redis.copies=2")
}

// standing is a writer that stands still at its first byte, until it is let go.
type standing struct {
	bytes.Buffer
	at, on chan struct{}
}

func (p *standing) Write(b []byte) (int, error) {
	if p.Len() == 0 {
		close(p.at)
		<-p.on
	}
	return p.Buffer.Write(b)
}

// A value that a program reads is read to its end though it is replaced meanwhile.
func TestReplacingAValueDoesNotDisturbItsProgram(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{PoisonReleased: true})
	defer mem.Close()
	v, err := NewValues(mem, "default", 0)
	require.NoError(t, err)
	defer v.Close()
	old := bytes.Repeat([]byte{1}, (getAhead+4)<<20)
	_, err = v.Put(t.Context(), []byte("k"), bytes.NewReader(old))
	require.NoError(t, err)
	w := &standing{at: make(chan struct{}), on: make(chan struct{})}
	read := make(chan error, 1)
	go func() { read <- v.Get(t.Context(), []byte("k"), func(int64) (io.Writer, error) { return w, nil }) }()
	<-w.at
	_, err = v.Put(t.Context(), []byte("k"), strings.NewReader("new"))
	require.NoError(t, err)
	v.s.reap.sweep()
	close(w.on)
	require.NoError(t, <-read)
	require.Equal(t, old, w.Bytes())
}

// A value is read to its end though its pieces could not be leased, or their lease ran out while the program that reads
// it stood still: all of it is there.
func TestAValueIsReadWithoutALease(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	value := randomBytes((getAhead + 1) * pieceBytes)
	for name, o := range map[string]memstore.Options{
		"denied":  {TenantLeaseBytes: pieceBytes},
		"run out": {Clock: func() time.Time { return time.Unix(clock.Load(), 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New(o)
			defer mem.Close()
			v := valuesOf(t, mem)
			defer v.Close()
			_, err := v.Put(t.Context(), []byte("k"), bytes.NewReader(value))
			require.NoError(t, err)
			var got bytes.Buffer
			require.NoError(t, v.Get(t.Context(), []byte("k"), func(int64) (io.Writer, error) {
				clock.Add(3600)
				return &got, nil
			}))
			require.True(t, bytes.Equal(value, got.Bytes()))
		})
	}
}
