package resp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// lockstep is a connection whose client reads replies of the lengths it expects.
func (f *fixture) lockstep() *client {
	f.t.Helper()
	return lockstepTo(f.t, f.server)
}

func lockstepTo(t testing.TB, s *Server) *client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	s.begin(there, true)
	require.NoError(t, here.SetDeadline(time.Now().Add(5*time.Minute)))
	t.Cleanup(func() { here.Close() })
	return &client{t, here, bufio.NewReader(here)}
}

// exactly sends a command and gives so many bytes of what comes back.
func (c *client) exactly(n int, args ...string) string {
	c.t.Helper()
	c.send(args...)
	b := make([]byte, n)
	_, err := io.ReadFull(c.r, b)
	require.NoError(c.t, err)
	return string(b)
}

// hungUp says that a command is answered by nothing but the end of the connection.
func (c *client) hungUp(args ...string) {
	c.t.Helper()
	c.send(args...)
	c.ended(strings.Join(args, " ")[:min(len(args[0])+20, len(strings.Join(args, " ")))])
}

func (c *client) ended(what string) {
	c.t.Helper()
	b, err := c.r.Peek(1)
	if !errors.Is(err, io.EOF) && err != nil { // what the server did not read has the connection reset
		assert.ErrorContains(c.t, err, "reset by peer", what)
	}
	assert.Empty(c.t, string(b), what)
}

func (f *fixture) counted(result string) int64 {
	return map[string]*atomic.Int64{"declined": &f.server.stats.declined, "nil": &f.server.stats.padded, "hangup": &f.server.stats.hungUp}[result].Load()
}

// Of what other connections are told as an error, a lockstep connection is told nothing: it ends.
func TestLockstepHangsUpInPlaceOfErrors(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	require.Equal(t, "+OK", f.dial().words("SET k v"))
	long := strings.Repeat("k", MaxKeyBytes+1)
	for _, args := range [][]string{
		{"APPEND", "k", "v"}, {"GET"}, {"SET", "k"}, {"SET", "k", "v", "EX", "0"}, {"SET", "k", "v", "FOO"}, {"SET", long, "v"}, {"EXPIRE", "k", "x"},
		{"DEL"}, {"CONFIG", "SET", "a", "b"}, {"AUTH", "wrong-token-0123456789"}, {"SELECT", "99"}, {"BLOB.RDMA_HELLO", "00"}, {"HELLO", "9"},
		{"GET", "none"}, {"MSET", long, "v"},
	} {
		before := f.counted("hangup")
		f.lockstep().hungUp(args...)
		assert.Equal(t, before+1, f.counted("hangup"), args[0])
	}
	for _, raw := range []string{"*1\r\n$-2\r\n", "POST / HTTP/1.1\r\n", "*999999\r\n", "SET k \"v\r\n"} {
		before := f.counted("hangup")
		c := f.lockstep()
		_, err := io.WriteString(c, raw)
		require.NoError(t, err)
		c.ended(raw)
		assert.Equal(t, before+1, f.counted("hangup"), raw)
	}
	c := f.lockstep()
	_, err := c.Write(append(encode("SET", "k", "v"), encode("APPEND", "k", "v")...))
	require.NoError(t, err)
	got, err := io.ReadAll(c.r)
	require.NoError(t, err)
	assert.Equal(t, "+OK\r\n", string(got), "what came before is answered")
	assert.Equal(t, `"v"`, f.dial().words("GET k"))
}

func TestLockstepConnectionsThatAreOneTooMany(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{Connections: 1})
	c := f.lockstep()
	require.Equal(t, "+PONG", c.words("PING"))
	f.lockstep().ended("all connections taken")

	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, map[string]auth.Limits{"a": {Connections: 1}}, nil)
	require.NoError(t, err)
	f = serve(t, nil, Options{Auth: d})
	require.Equal(t, "+OK", f.lockstep().do("AUTH", tokenOwner))
	f.lockstep().hungUp("AUTH", tokenOwner)
}

func TestLockstepEndsWhenTheServerDrains(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.lockstep()
	require.Equal(t, "+OK", c.words("SET k v"))
	require.NoError(t, f.server.Shutdown(context.Background()))
	c.ended("drain")
}

// A SET that is declined is OK, and counted; what was there under its key is not any more.
func TestLockstepSetsThatAreDeclined(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var reason atomic.Int32
	st := &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		if kind := skep.Kind(reason.Load()); kind != 0 && len(r.Blocks[0].Parts[0].Bytes) > 10_000 {
			return []skep.PutResult{{Outcome: skep.Declined, Reason: kind}}, nil
		}
		return nil, nil
	}}
	f := serve(t, st, Options{})
	c, plain := f.lockstep(), f.dial()
	for i, kind := range []skep.Kind{skep.Denied, skep.Full, skep.ReadOnly, skep.Quota, skep.Admission} {
		for j, size := range []int{inlineBytes, 3*pieceBytes + 20_000} {
			reason.Store(0)
			require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", "what was there"))
			require.Equal(t, ":1\r\n", c.exactly(4, "EXISTS", "k"))
			reason.Store(int32(kind))
			require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", string(randomBytes(size))), kind)
			assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "k"), kind)
			assert.Equal(t, "nil", plain.words("GET k"), kind)
			assert.Equal(t, int64(2*i+j+1), f.counted("declined"))
		}
	}
	assert.Equal(t, "+OK", plain.words("SET k v"))
	assert.True(t, strings.HasPrefix(plain.do("SET", "k", string(randomBytes(inlineBytes))), "-OOM "), "others are told")
	assert.Equal(t, `"v"`, plain.words("GET k"), "and keep what was there")

	// In one run, a SET that is declined takes nothing of the one behind it.
	_, err := c.Write(append(encode("SET", "k", string(randomBytes(inlineBytes))), encode("SET", "k", "w")...))
	require.NoError(t, err)
	assert.Equal(t, []string{"+OK", "+OK"}, []string{c.reply(), c.reply()})
	assert.Equal(t, `"w"`, plain.words("GET k"))

	for _, kind := range []skep.Kind{skep.DeviceFailed, skep.NoMemory, skep.Overloaded, skep.Deadline} {
		reason.Store(int32(kind))
		f.lockstep().hungUp("SET", "k", string(randomBytes(inlineBytes)))
	}
	assert.Equal(t, `"w"`, plain.words("GET k"), "nobody was told that this was replaced")
}

// A SET that is declined is not told as OK where what was there before cannot be taken away.
func TestLockstepSetsOverWhatStays(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	st := &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		if len(r.Blocks[0].Parts[0].Bytes) > 10_000 {
			return []skep.PutResult{{Outcome: skep.Declined, Reason: skep.Full}}, nil
		}
		return nil, nil
	}, delete: func(skep.Scope, []skep.Key) error { return &skep.Error{Kind: skep.DeviceFailed} }}
	f := serve(t, st, Options{})
	c := f.lockstep()
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", "v"))
	c.hungUp("SET", "k", string(randomBytes(inlineBytes)))
	assert.Zero(t, f.counted("declined"))
}

// SET NX that finds the key there says so in as many bytes as OK has, whatever version the client speaks.
func TestLockstepSetThatIsNotDone(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{}).lockstep()
	require.Contains(t, c.words("HELLO 3"), "%[")
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", "v"))
	require.Equal(t, "$-1\r\n", c.exactly(5, "SET", "k", "v", "NX"))
}

// A bubble of time: a SET that finds no memory, or is over its tenant's rate, waits five seconds at most.
func TestLockstepSetsWait(t *testing.T) {
	t.Parallel()
	bubble := func(t *testing.T, limits auth.Limits) (*Server, *client) {
		d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, map[string]auth.Limits{"a": limits}, time.Now)
		require.NoError(t, err)
		s := bubbled(t, Options{Auth: d, ReceiveBytes: 2 << 20, Clock: time.Now})
		here, there := net.Pipe()
		s.begin(there, true)
		t.Cleanup(func() { here.Close() })
		c := &client{t, here, bufio.NewReader(here)}
		require.Equal(t, "+OK", c.do("AUTH", tokenOwner))
		return s, c
	}
	value := string(randomBytes(3 * inlineBytes))
	took := func(do func()) time.Duration {
		began := time.Now()
		do()
		return time.Since(began)
	}
	ok := func(c *client, args ...string) func() {
		return func() { assert.Equal(t, "+OK\r\n", c.exactly(5, args...)) }
	}
	end := func(c *client, args ...string) func() {
		return func() {
			_, _ = c.Write(encode(args...)) // it may be over before all is sent
			b, err := io.ReadAll(c.r)
			assert.Empty(t, b)
			assert.NoError(t, err)
		}
	}
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, c := bubble(t, auth.Limits{})
			by := s.receiving.of(nil)
			n := s.receiving.pool.Limit - s.receiving.pool.Used()
			require.NoError(t, s.receiving.Acquire(t.Context(), by, n))
			time.AfterFunc(4*time.Second, func() { s.receiving.Release(by, n) })
			assert.Equal(t, 4*time.Second, took(ok(c, "SET", "k", value)))
			require.NoError(t, s.receiving.Acquire(t.Context(), by, n))
			defer s.receiving.Release(by, n)
			assert.Equal(t, 5*time.Second, took(end(c, "SET", "k", value)))
		})
	})
	t.Run("bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, c := bubble(t, auth.Limits{BytesPerSecond: float64(len(value)) / 2})
			assert.Zero(t, took(ok(c, "SET", "k", value)))
			assert.Equal(t, 2*time.Second, took(ok(c, "SET", "k", value)).Round(time.Second))
			time.Sleep(time.Minute)
			assert.Zero(t, took(ok(c, "SET", "k", strings.Repeat(value, 6))))
			assert.Equal(t, 5*time.Second, took(end(c, "SET", "k", value)))
		})
	})
	t.Run("requests", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, c := bubble(t, auth.Limits{RequestsPerSecond: 1})
			assert.Zero(t, took(ok(c, "SET", "k", "v")))
			assert.Equal(t, time.Second, took(ok(c, "SET", "k", "v")))
			assert.Zero(t, took(func() { assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "k"), "it waits for nothing") }))
			assert.Equal(t, time.Second, took(ok(c, "SET", "k", "v")), "what it has not spent another one has")
		})
	})
	t.Run("requests, too few", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, c := bubble(t, auth.Limits{RequestsPerSecond: 0.01})
			assert.Zero(t, took(ok(c, "SET", "k", "v")))
			assert.Equal(t, 5*time.Second, took(end(c, "GET", "k")))
		})
	})
}

// EXISTS in any trouble is 0.
func TestLockstepExistsIsZero(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenWriter, auth.Write)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	c := f.lockstep()
	assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "k"), "nobody")
	require.Equal(t, "+OK", c.do("AUTH", tokenWriter))
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", "v"))
	assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "k"), "may not read")
	assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS"), "no key")
	_, err = c.Write(append(append(encode("EXISTS", "k"), encode("EXISTS", "k")...), encode("EXISTS")...))
	require.NoError(t, err)
	assert.Equal(t, []string{"0", "0", "0"}, []string{c.reply(), c.reply(), c.reply()}, "a run of them")

	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	f = serve(t, mem, Options{})
	c = f.lockstep()
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", "v"))
	_, err = c.Write(append(append(encode("EXISTS", "k"), encode("EXISTS", "k")...), encode("EXISTS")...))
	require.NoError(t, err)
	assert.Equal(t, []string{"1", "1", "0"}, []string{c.reply(), c.reply(), c.reply()})
	f = serve(t, closedStore{mem}, Options{})
	c = f.lockstep()
	assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "k"), "no answer of the store")
}

// closedStore lists nothing.
type closedStore struct{ skep.Store }

func (closedStore) Namespaces(context.Context) ([]skep.NamespaceInfo, error) {
	return nil, &skep.Error{Kind: skep.Overloaded}
}

// A GET that finds nothing is answered by as many bytes as the header of the value would have, where that is known.
func TestLockstepMisses(t *testing.T) {
	t.Parallel()
	creds := []auth.Credential{credential(t, "a", tokenOwner, auth.All), credential(t, "b", tokenOther, auth.All)}
	d, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	login := func(token string) *client {
		c := f.lockstep()
		require.Equal(t, "+OK", c.do("AUTH", token))
		return c
	}
	value := func(n int) string { return string(randomBytes(n)) }
	other := login(tokenOther)
	require.Equal(t, "+OK\r\n", other.exactly(5, "SET", "k", value(100)))
	login(tokenOwner).hungUp("GET", "none") // what another credential has says nothing

	c := login(tokenOwner)
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", value(20_000)))
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "l", value(99_999)))
	for range 3 {
		assert.Equal(t, "$-0001\r\n", c.exactly(len("$20000\r\n"), "GET", "none"))
	}
	assert.Equal(t, "$-0001\r\n", login(tokenOwner).exactly(8, "GET", "none"), "another connection of the credential")
	assert.Equal(t, int64(4), f.counted("nil"))
	_, err = c.Write(append(encode("GET", "none"), encode("GET", "nor this")...))
	require.NoError(t, err)
	assert.Equal(t, []string{"nil", "nil"}, []string{c.reply(), c.reply()}, "a run of them")
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "m", value(9_999)))
	c.hungUp("GET", "none") // several lengths
	c = login(tokenOwner)
	require.Equal(t, "3", c.words("DEL k l m"))
	assert.Equal(t, "$-0001\r\n", c.exactly(8, "GET", "k"), "what this key's value had")
	assert.Equal(t, "$-001\r\n", c.exactly(7, "GET", "m"))
	require.Equal(t, "+OK", c.words("SELECT 1"))
	c.hungUp("GET", "m") // of another database

	require.Equal(t, "+OK\r\n", other.exactly(5, "SET", "k", value(512)))
	assert.Equal(t, "$-01\r\n", other.exactly(6, "GET", "none"))
}

// What EXISTS and GET find says how long a credential's values are, too: after a restart nothing else may.
func TestLockstepLearnsFromWhatIsThere(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	c := serve(t, mem, Options{}).dial()
	for _, n := range []int{3, 20_000, 2_000_000} {
		require.Equal(t, "+OK", c.do("SET", fmt.Sprint(n), string(randomBytes(n))))
	}
	for n, header := range map[int]string{20_000: "$-0001\r\n", 2_000_000: "$-000001\r\n"} {
		c := serve(t, mem, Options{}).lockstep()
		require.Equal(t, ":1\r\n", c.exactly(4, "EXISTS", fmt.Sprint(n)))
		assert.Equal(t, header, c.exactly(len(header), "GET", "none"))
		c = serve(t, mem, Options{}).lockstep()
		require.Len(t, c.exactly(n+len(header)+2, "GET", fmt.Sprint(n)), n+len(header)+2)
		assert.Equal(t, header, c.exactly(len(header), "GET", "none"))
	}
	f := serve(t, mem, Options{})
	c = f.lockstep()
	require.Equal(t, "2", c.words("EXISTS 20000 2000000"))
	require.Equal(t, "2", f.dial().words("DEL 20000 2000000"))
	assert.Equal(t, "$-000001\r\n", c.exactly(10, "GET", "2000000"), "found, and gone since")
	c = serve(t, mem, Options{}).lockstep()
	require.Equal(t, "$3\r\n", c.exactly(9, "GET", "3")[:4])
	c.hungUp("GET", "none") // no nil is as short
}

// A GET whose value has lost a piece has the length of that value for its nil, whatever others there are; one that fails
// after its header was sent ends the connection.
func TestLockstepDamage(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var bad atomic.Int32
	bad.Store(-1)
	st := &wrapped{Store: mem, restored: func(ch skep.Chunk) skep.Chunk {
		if ch.Err == nil && ch.Bytes == pieceBytes && ch.Block == int(bad.Load()) {
			ch.Release()
			return skep.Chunk{Chain: ch.Chain, Block: ch.Block, Err: &skep.Error{Kind: skep.Damaged}}
		}
		return ch
	}}
	f := serve(t, st, Options{})
	c := f.lockstep()
	value := string(randomBytes(4 * pieceBytes))
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", value))
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "l", value[:4*pieceBytes-1]))
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "short", "v"))
	bad.Store(0)
	assert.Equal(t, "$-000001\r\n", c.exactly(10, "GET", "k"))

	db := f.database()
	h, err := db.head(t.Context(), []byte("l"))
	require.NoError(t, err)
	_, err = mem.Delete(t.Context(), skep.Scope{Namespace: db.data}, h.pieceKeys(1, 2))
	require.NoError(t, err)
	assert.Equal(t, "$-000001\r\n", c.exactly(10, "GET", "l"))
	assert.Equal(t, ":0\r\n", c.exactly(4, "EXISTS", "l"))
	require.Equal(t, "$1\r\nv\r\n", c.exactly(7, "GET", "short"), "it is in step")

	bad.Store(2)
	c.send("GET", "k")
	got, err := io.ReadAll(c.r)
	require.NoError(t, err)
	assert.Equal(t, "$4194304\r\n"+value[:2*pieceBytes], string(got))
}

// A GET that finds no memory to send from, or is over its tenant's rate of bytes, is a miss.
func TestLockstepGetsThatAreRefused(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d, err := auth.New(nil, map[string]auth.Limits{auth.DefaultTenant: {BytesPerSecond: 30_000}}, clock.read)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d, Clock: clock.read, ShedAfter: time.Millisecond})
	c := f.lockstep()
	require.Equal(t, "+OK\r\n", c.exactly(5, "SET", "k", string(randomBytes(20_000))))
	assert.Equal(t, "$-0001\r\n", c.exactly(8, "GET", "k"), "over the rate")
	clock.advance(time.Second)
	s := f.server
	by := s.sending.of(nil)
	require.NoError(t, s.sending.Acquire(t.Context(), by, s.sending.pool.Limit))
	assert.Equal(t, "$-0001\r\n", c.exactly(8, "GET", "k"), "no memory")
	s.sending.Release(by, s.sending.pool.Limit)
	clock.advance(time.Second)
	assert.Equal(t, "$20000\r\n", c.exactly(20_010, "GET", "k")[:8])
}

func TestLockstepMetrics(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	f.lockstep().hungUp("GET", "none")
	reg := prometheus.NewRegistry()
	reg.MustRegister(f.server)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "skep_resp_lockstep_total" {
			for _, m := range family.Metric {
				got[m.Label[0].GetValue()] = m.Counter.GetValue()
			}
		}
	}
	assert.Equal(t, map[string]float64{"declined": 0, "nil": 0, "hangup": 1}, got)
}
