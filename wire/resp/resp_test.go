package resp

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
)

// TestScripts runs conversations: "> command" and the replies it must get, one a line.
// "+10s" moves the clock; "> " lines one after the other are sent together.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.resp")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			clock := newClock()
			wall := clock.read
			if !strings.Contains(string(text), "AT ") { // names no moment: the machine's clock may be set all the time
				wall = storetest.NewSteppingClock(1, clock.read).Read
			}
			c := serve(t, nil, Options{Clock: clock.read, Wall: wall}).dial()
			for i, line := range strings.Split(string(text), "\n") {
				switch {
				case line == "" || strings.HasPrefix(line, "#"):
				case strings.HasPrefix(line, "> "):
					c.send(strings.Fields(line[2:])...)
				case strings.HasPrefix(line, ">> "):
					raw, err := strconv.Unquote(`"` + line[3:] + `"`)
					require.NoError(t, err)
					_, err = io.WriteString(c, raw)
					require.NoError(t, err)
				case strings.HasPrefix(line, "@ "):
					d, err := time.ParseDuration(line[2:])
					require.NoError(t, err)
					clock.advance(d)
				default:
					require.Equal(t, line, c.reply(), "%s:%d", f, i+1)
				}
			}
		})
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestValuesOfAllSizesComeBackWhole(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	for _, n := range []int{0, 1, 468, 469, 4096, inlineBytes, inlineBytes + 1, pieceBytes - 1, pieceBytes, pieceBytes + 1, 5*pieceBytes + 7, 20 * pieceBytes} {
		want := randomBytes(n)
		require.Equal(t, "+OK", c.do("SET", "k", string(want)), "%d bytes", n)
		require.Equal(t, quoted([]byte(want)), c.do("GET", "k"), "%d bytes", n)
		require.Equal(t, strconv.Itoa(n), c.do("STRLEN", "k"))
	}
	assert.Equal(t, "1", c.do("DEL", "k"))
	assert.Equal(t, "nil", c.do("GET", "k"))
	f.server.reap.sweep()
	st, err := f.store.Stats(context.Background())
	require.NoError(t, err)
	assert.Zero(t, st.Blocks, "what was replaced and deleted leaves nothing behind")
}

func TestAPipelineIsAnsweredInOrder(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{}).dial()
	const n = 600
	var in bytes.Buffer
	values := make([][]byte, n)
	for i := range n {
		values[i] = randomBytes(i * 131 % 40_000)
		in.Write(encode("SET", fmt.Sprint("k", i), string(values[i])))
		if i%7 == 0 {
			in.Write(encode("GET", fmt.Sprint("k", i)))
		}
	}
	go c.Write(in.Bytes())
	for i := range n {
		require.Equal(t, "+OK", c.reply())
		if i%7 == 0 {
			require.Equal(t, quoted(values[i]), c.reply())
		}
	}
	in.Reset()
	var keys []string
	for i := range n {
		in.Write(encode("GET", fmt.Sprint("k", i)))
		in.Write(encode("GET", fmt.Sprint("none", i)))
		in.Write(encode("EXISTS", fmt.Sprint("k", i), fmt.Sprint("none", i)))
		keys = append(keys, fmt.Sprint("k", i))
	}
	in.Write(encode("EXISTS", keys[0]))
	in.Write(encode(append([]string{"EXISTS"}, keys...)...))
	go c.Write(in.Bytes())
	for i := range n {
		require.Equal(t, quoted(values[i]), c.reply())
		require.Equal(t, "nil", c.reply())
		require.Equal(t, "1", c.reply())
	}
	require.Equal(t, "1", c.reply())
	require.Equal(t, strconv.Itoa(n), c.reply())
}

func TestOneBatchMaySetAKeyTwice(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	big := func() string { return string(randomBytes(pieceBytes + 5)) }
	last := big()
	var in bytes.Buffer
	for _, v := range []string{big(), "small", big(), last} {
		in.Write(encode("SET", "k", v))
	}
	in.Write(encode("SET", "k", "never", "NX"))
	go c.Write(in.Bytes())
	assert.Equal(t, []string{"+OK", "+OK", "+OK", "+OK", "nil"}, []string{c.reply(), c.reply(), c.reply(), c.reply(), c.reply()})
	assert.Equal(t, quoted([]byte(last)), c.do("GET", "k"))
	assert.Equal(t, "+OK", c.do("MSET", "a", big(), "b", "2", "a", "3"))
	assert.Equal(t, `*["3" "2" nil]`, c.words("MGET a b c"))
	assert.Equal(t, "3", c.words("DEL k a b"))
	f.server.reap.sweep()
	st, err := f.store.Stats(context.Background())
	require.NoError(t, err)
	assert.Zero(t, st.Blocks)
}

// Readers never see two values mixed, nor a hole, while others replace the value.
func TestReplacingAValueDoesNotDisturbItsReaders(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	const size = 3*pieceBytes + 11
	value := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), size) }
	whole := map[string]bool{}
	for i := range 26 {
		whole[quoted([]byte(value(i)))] = true
	}
	require.Equal(t, "+OK", f.dial().do("SET", "k", value(0)))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	defer wg.Wait()
	defer close(stop)
	for w := range 2 {
		c := f.dial()
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; ; i += 2 {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.Write(encode("SET", "k", value(i))); !assert.NoError(t, err) {
					return
				}
				if r, err := c.tryReply(); !assert.NoError(t, err) || !assert.Equal(t, "+OK", r) {
					return
				}
			}
		}()
	}
	c := f.dial()
	for range 25 {
		require.Contains(t, whole, c.do("GET", "k"))
	}
}

// A value is replaced after a GET has read its head and before it has noted that it reads the pieces: they are not
// deleted under it. A GET that comes when they are about to be gets the new value.
func TestAValueReplacedAsItsReaderBeginsIsSentWhole(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{PoisonReleased: true})
	defer mem.Close()
	st := &wrapped{Store: mem}
	f := serve(t, st, Options{})
	old, anew := strings.Repeat("a", 64<<20), strings.Repeat("b", 2<<20)
	setter, getter := f.dial(), f.dial()
	require.Equal(t, "+OK", setter.do("SET", "k", old))
	var read atomic.Bool
	replaced := make(chan struct{})
	st.restored = func(ch skep.Chunk) skep.Chunk {
		if ch.Err == nil && ch.Bytes < 1000 && read.CompareAndSwap(false, true) { // the head, by the GET
			if _, err := setter.Write(encode("SET", "k", anew)); err == nil {
				_, _ = setter.tryReply()
			}
			close(replaced)
		}
		return ch
	}
	getter.send("GET", "k")
	<-replaced
	db := f.server.database(f.server.tenantOf("default"), 0)
	require.Eventually(t, func() bool { // it reads, or has read
		db.reading.mu.Lock()
		defer db.reading.mu.Unlock()
		return len(db.reading.m) > 0
	}, time.Minute, time.Millisecond)
	f.server.reap.sweep()
	require.Contains(t, []string{quoted([]byte(old)), quoted([]byte(anew))}, getter.reply())
	require.Eventually(t, func() bool {
		f.server.reap.sweep()
		n, err := mem.CountBlocks(t.Context(), db.data)
		return err == nil && n == 2
	}, time.Minute, time.Millisecond, "and then they are")

	h, err := db.head(t.Context(), []byte("k"))
	require.NoError(t, err)
	require.True(t, db.reading.bury(h.id, h))
	require.False(t, db.reading.begin(h.id))
	require.Equal(t, "nil", f.dial().words("GET k"), "nobody has set it anew")
	db.reading.gone(h.id)
	require.Equal(t, quoted([]byte(anew)), getter.do("GET", "k"))
}

// Commands that came before one that breaks the protocol have their answers, also where they came in one packet.
func TestWhatComesBeforeABrokenCommandIsAnswered(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	for _, kind := range []string{"GET", "EXISTS", "STRLEN", "SET"} {
		c := f.dial()
		require.Equal(t, "+OK", c.do("SET", "k", "v"))
		args := []string{kind, "k"}
		if kind == "SET" {
			args = append(args, "v")
		}
		good := encode(args...)
		bad := append(good[:len(good)-2:len(good)-2], "XX"...)
		_, err := c.Write(append(good[:len(good):len(good)], bad...))
		require.NoError(t, err)
		require.NotContains(t, c.reply(), "Protocol error", kind)
		require.Contains(t, c.reply(), "Protocol error", kind)
	}
}

// What is left to a key that just expires is 0 and no less: -1 is a key that does not expire.
func TestWhatIsLeftIsNeverLessThanNothing(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	now.Store(1_700_000_000_000)
	var step atomic.Int64 // from one look at the clock to the next
	f := serve(t, nil, Options{Clock: func() time.Time { return time.UnixMilli(now.Add(step.Load())) }})
	c := f.dial()
	step.Store(3)
	for px := 100; px < 112; px++ {
		require.Equal(t, "+OK", c.do("SET", "k", "v", "PX", strconv.Itoa(px)))
		for left := ""; left != "-2"; {
			left = c.do("PTTL", "k")
			require.NotEqual(t, "-1", left)
		}
	}
}

func TestExpirySurvivesTheServer(t *testing.T) {
	t.Parallel()
	clock := newClock()
	st := memstore.New(memstore.Options{})
	defer st.Close()
	f := serve(t, st, Options{Clock: clock.read})
	c := f.dial()
	require.Equal(t, "+OK", c.do("SET", "k", string(randomBytes(2*pieceBytes)), "EX", "100"))
	require.NoError(t, f.server.Shutdown(context.Background()))

	c = serve(t, st, Options{Clock: clock.read}).dial()
	assert.Equal(t, "100", c.words("TTL k"))
	clock.advance(100*time.Second - time.Millisecond)
	assert.Equal(t, "1", c.words("EXISTS k"))
	clock.advance(time.Millisecond)
	assert.Equal(t, "0", c.words("EXISTS k"))
	assert.Equal(t, "nil", c.words("GET k"))
	assert.Equal(t, "-2", c.words("TTL k"))
}

func TestScanSeesEveryKeyOnceAndDBSizeCounts(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{}).dial()
	want := map[string]bool{}
	for i := range 500 {
		k := fmt.Sprintf("model/a@%d", i)
		want[k] = true
		require.Equal(t, "+OK", c.do("SET", k, "v"))
	}
	require.Equal(t, "+OK", c.do("SET", "large", string(randomBytes(3*pieceBytes))))
	assert.Equal(t, "501", c.words("DBSIZE"))
	seen := map[string]int{}
	cursor := "0"
	for {
		r := c.do("SCAN", cursor, "MATCH", "model/*", "COUNT", "37")
		r = strings.TrimSuffix(strings.TrimPrefix(r, "*["), "]")
		var keys string
		cursor, keys, _ = strings.Cut(r, " ")
		cursor = strings.Trim(cursor, `"`)
		for _, k := range strings.Fields(strings.TrimSuffix(strings.TrimPrefix(keys, "*["), "]")) {
			seen[strings.Trim(k, `"`)]++
		}
		if cursor == "0" {
			break
		}
		require.Equal(t, "+OK", c.do("SET", "other"+cursor, "v"), "changes meanwhile do no harm")
	}
	for k := range want {
		require.Equal(t, 1, seen[k], k)
	}
	assert.Len(t, seen, len(want))
}

func TestDatabasesAndTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	a, b := "token-of-a-0123456789", "token-of-b-0123456789"
	d, err := auth.New([]auth.Credential{credential(t, "a", a, auth.All), credential(t, "b", b, auth.Read|auth.Write)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	ca, cb := f.dial(), f.dial()
	require.Equal(t, "+OK", ca.do("AUTH", a))
	require.Equal(t, "+OK", cb.do("AUTH", "b", b))
	require.Equal(t, "+OK", ca.words("SET k of-a"))
	assert.Equal(t, "nil", cb.words("GET k"))
	assert.Equal(t, "0", cb.words("EXISTS k"))
	assert.Equal(t, "0", cb.words("DEL k"))
	assert.Equal(t, "0", cb.words("DBSIZE"))
	assert.Equal(t, `*["0" *[]]`, cb.words("SCAN 0"))
	assert.Contains(t, cb.words("FLUSHDB"), "NOPERM")
	assert.NotContains(t, cb.words("CLIENT LIST"), "user=a")
	assert.Equal(t, `"of-a"`, ca.words("GET k"))
	assert.Equal(t, "+OK", ca.words("SELECT 1"))
	assert.Equal(t, "nil", ca.words("GET k"))
}

func credential(t testing.TB, tenant, token string, r auth.Rights) auth.Credential {
	h, err := auth.TokenHash(token)
	require.NoError(t, err)
	return auth.Credential{Name: tenant + "-engine", Tenant: tenant, Rights: r, TokenSHA256: h}
}

// wrapped is a store of which a test changes single calls.
type wrapped struct {
	skep.Store
	restored func(skep.Chunk) skep.Chunk
	put      func(*skep.PutRequest) ([]skep.PutResult, error)
	lookup   func(*skep.LookupRequest) (skep.LookupResult, bool)
	restore  func(*skep.RestoreRequest) error
	delete   func(skep.Scope, []skep.Key) error
}

func (w *wrapped) Delete(ctx context.Context, s skep.Scope, keys []skep.Key) (int, error) {
	if w.delete != nil {
		if err := w.delete(s, keys); err != nil {
			return 0, err
		}
	}
	return w.Store.Delete(ctx, s, keys)
}

func (w *wrapped) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	if w.lookup != nil {
		if res, ok := w.lookup(r); ok {
			return res, nil
		}
	}
	return w.Store.Lookup(ctx, r)
}

func (w *wrapped) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if w.put != nil {
		if res, err := w.put(r); res != nil || err != nil {
			return res, err
		}
	}
	return w.Store.Put(ctx, r)
}

func (w *wrapped) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	if w.restore != nil {
		if err := w.restore(r); err != nil {
			return nil, err
		}
	}
	s, err := w.Store.Restore(ctx, r)
	if err != nil || w.restored == nil {
		return s, err
	}
	return &wrappedSession{s, w}, nil
}

type wrappedSession struct {
	skep.Session
	w *wrapped
}

func (s *wrappedSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	for i := range into[:n] {
		into[i] = s.w.restored(into[i])
	}
	return n, err
}

// A value whose first piece, or whose head, cannot be read is a miss, and the pipeline goes on. Later pieces are read when
// the value's length has been sent already: the connection ends then, with right bytes only.
func TestDamageIsAMissUntilALengthWasSent(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var bad atomic.Int32
	st := &wrapped{Store: mem, restored: func(ch skep.Chunk) skep.Chunk {
		small := bad.Load() < 0 && ch.Bytes < pieceBytes
		if ch.Err == nil && (small || ch.Bytes == pieceBytes && ch.Block == int(bad.Load())) {
			ch.Release()
			return skep.Chunk{Chain: ch.Chain, Block: ch.Block, Err: &skep.Error{Kind: skep.Damaged}}
		}
		return ch
	}}
	f := serve(t, st, Options{})
	c := f.dial()
	value, one := randomBytes(4*pieceBytes), randomBytes(pieceBytes)
	bad.Store(4)
	require.Equal(t, "+OK", c.do("SET", "k", string(value)))
	require.Equal(t, "+OK", c.do("SET", "one", string(one)))
	require.Equal(t, "+OK", c.do("SET", "small", string(one[:inlineBytes])))
	require.Equal(t, "+OK", c.do("SET", "tiny", "v"))

	all := bytes.Join([][]byte{encode("GET", "small"), encode("GET", "tiny"), encode("GET", "one"), encode("PING"), encode("GET", "k"), encode("MGET", "tiny", "one")}, nil)
	for _, which := range []int32{-1, 0} {
		bad.Store(which)
		_, err := c.Write(all)
		require.NoError(t, err)
		got := []string{c.reply(), c.reply(), c.reply(), c.reply(), c.reply(), c.reply()}
		small, tiny := quoted(one[:inlineBytes]), `"v"`
		if which < 0 {
			assert.Equal(t, []string{"nil", "nil", "nil", "+PONG", "nil", "*[nil nil]"}, got, "no head can be read")
		} else {
			assert.Equal(t, []string{small, tiny, "nil", "+PONG", "nil", "*[" + tiny + " nil]"}, got)
		}
	}
	for i := 1; i < 4; i++ {
		bad.Store(int32(i))
		c := f.dial()
		_, err := c.Write(append(encode("GET", "none"), encode("GET", "k")...))
		require.NoError(t, err)
		require.Equal(t, "nil", c.reply(), "what was asked before is answered")
		got, err := io.ReadAll(c.r)
		require.NoError(t, err)
		header := fmt.Sprintf("$%d\r\n", len(value))
		require.Len(t, got, len(header)+i*pieceBytes)
		assert.True(t, bytes.Equal(value[:i*pieceBytes], got[len(header):]), "what was sent is right")
	}
	assert.Equal(t, int64(3), f.server.stats.cut.Load())
}

func TestWhatTheStoreRefusesIsRefusedAndTheConnectionGoesOn(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	st := &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		if len(r.Blocks[0].Parts[0].Bytes) == 1000 { // the last piece
			return []skep.PutResult{{Outcome: skep.Declined, Reason: skep.Full}}, nil
		}
		return nil, nil
	}}
	f := serve(t, st, Options{})
	c := f.dial()
	r := c.do("SET", "k", string(randomBytes(3*pieceBytes+1000)))
	assert.True(t, strings.HasPrefix(r, "-OOM "), r)
	assert.Equal(t, "nil", c.words("GET k"))
	assert.Equal(t, "+OK", c.do("SET", "k", string(randomBytes(3*pieceBytes+999))))
	assert.Equal(t, "1", c.words("DEL k"))
	f.server.reap.sweep()
	stats, err := mem.Stats(context.Background())
	require.NoError(t, err)
	assert.Zero(t, stats.Blocks, "the pieces of a refused value are taken back")
}

func TestExistsLeasesWithinABudget(t *testing.T) {
	t.Parallel()
	clock := newClock()
	mem := memstore.New(memstore.Options{Clock: clock.read, CapacityBytes: 4 * pieceBytes})
	defer mem.Close()
	f := serve(t, mem, Options{Clock: clock.read, ExistsLeaseBytes: pieceBytes * 3 / 2})
	c := f.dial()
	value := func(i int) string { return strings.Repeat(string(rune('a'+i)), pieceBytes-8192) }
	require.Equal(t, "+OK", c.do("SET", "promised", value(0)))
	require.Equal(t, "+OK", c.do("SET", "unpromised", value(1)))
	require.Equal(t, "2", c.words("EXISTS promised unpromised"), "both are there; the budget is for one")
	assert.Equal(t, int64(1), f.server.tenantOf("default").leases.refused())
	for i := range 8 {
		c.do("SET", fmt.Sprint("flood", i), value(2))
	}
	assert.Equal(t, quoted([]byte(value(0))), c.words("GET promised"))
	assert.Equal(t, "nil", c.words("GET unpromised"))
	clock.advance(11 * time.Second)
	for i := range 8 {
		c.do("SET", fmt.Sprint("again", i), value(3))
	}
	assert.Equal(t, "nil", c.words("GET promised"), "the promise has run out")
	assert.Equal(t, "1", c.words("EXISTS again7"))
	assert.Equal(t, int64(1), f.server.tenantOf("default").leases.refused(), "and its bytes are free again")
}

// EXISTS promises the key of the selected database, whatever was promised of its namesakes.
func TestPromisesAreOfOneDatabase(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	c := serve(t, mem, Options{}).dial()
	leases := func() int {
		st, err := mem.Stats(context.Background())
		require.NoError(t, err)
		return st.Leases
	}
	require.Equal(t, "+OK", c.words("SET k v"))
	require.Equal(t, "1", c.words("EXISTS k"))
	require.Equal(t, 1, leases())
	require.Equal(t, "1", c.words("EXISTS k"), "promised already")
	require.Equal(t, 1, leases())
	require.Equal(t, "+OK", c.words("SELECT 1"))
	require.Equal(t, "+OK", c.words("SET k w"))
	require.Equal(t, "1", c.words("EXISTS k"))
	require.Equal(t, 2, leases())
}

// Of the small values of one command as many are held as of its other arguments; the rest is stored
// as it arrives, and all of them come back.
func TestManySmallValuesAreNotAllHeld(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	const n = heldBytes/inlineBytes + 40
	args, get, want := []string{"MSET"}, []string{"MGET"}, []string{}
	for i := range n {
		v := string(randomBytes(inlineBytes))
		args, get, want = append(args, fmt.Sprint("k", i), v), append(get, fmt.Sprint("k", i)), append(want, quoted([]byte(v)))
	}
	for range 2 { // the count begins anew with each command
		require.Equal(t, "+OK", c.do(args...))
		require.Equal(t, "*["+strings.Join(want, " ")+"]", c.do(get...))
		f.server.reap.sweep()
		st, err := f.store.Stats(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, n+40, st.Blocks, "a head each, and a piece where it is not held")
	}
}
