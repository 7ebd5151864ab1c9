package resp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

const (
	tokenOwner, tokenReader, tokenWriter = "owner-token-0123456789", "reader-token-0123456789", "writer-token-0123456789"
	tokenOther, tokenOld, tokenGone      = "other-token-0123456789", "old-token-0123456789", "gone-token-0123456789"
)

// example is one call of each command, over keys that the owner has.
var example = map[string]string{
	"PING": "PING", "ECHO": "ECHO x", "SELECT": "SELECT 0", "COMMAND": "COMMAND COUNT", "CLIENT": "CLIENT LIST", "CONFIG": "CONFIG GET save", "INFO": "INFO",
	"TIME": "TIME", "GET": "GET secret", "MGET": "MGET secret", "EXISTS": "EXISTS secret", "TOUCH": "TOUCH secret", "STRLEN": "STRLEN secret", "TYPE": "TYPE secret",
	"TTL": "TTL secret", "PTTL": "PTTL secret", "SCAN": "SCAN 0", "DBSIZE": "DBSIZE", "SET": "SET secret changed", "SETNX": "SETNX secret changed",
	"SETEX": "SETEX secret 1 changed", "PSETEX": "PSETEX secret 1 changed", "MSET": "MSET secret changed", "DEL": "DEL secret", "UNLINK": "UNLINK secret",
	"EXPIRE": "EXPIRE secret 0", "PEXPIRE": "PEXPIRE secret 0", "EXPIREAT": "EXPIREAT secret 1", "PEXPIREAT": "PEXPIREAT secret 1", "PERSIST": "PERSIST secret",
	"FLUSHDB": "FLUSHDB", "FLUSHALL": "FLUSHALL", "ROLE": "ROLE", "CLUSTER": "CLUSTER INFO",
	"READONLY": "READONLY", "READWRITE": "READWRITE", "ASKING": "ASKING",
	"BLOB.TCP_SET": "BLOB.TCP_SET secret changed", "BLOB.TCP_GET": "BLOB.TCP_GET secret", "BLOB.INFO": "BLOB.INFO secret",
	"BLOB.RDMA_HELLO": "BLOB.RDMA_HELLO 00", "BLOB.RDMA_SET": "BLOB.RDMA_SET secret 1 2 3 1", "BLOB.RDMA_GET": "BLOB.RDMA_GET secret 2 3 1",
}

// Every command × no, wrong, expired, removed, too weak and another tenant's credential.
func TestAuthMatrix(t *testing.T) {
	t.Parallel()
	clock := newClock()
	creds := []auth.Credential{
		credential(t, "owner", tokenOwner, auth.All), credential(t, "owner", tokenReader, auth.Read), credential(t, "owner", tokenWriter, auth.Write),
		credential(t, "other", tokenOther, auth.All), credential(t, "owner", tokenOld, auth.All), credential(t, "owner", tokenGone, auth.All),
	}
	creds[4].Expires = clock.read().Add(time.Hour)
	d, err := auth.New(creds, nil, clock.read)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d, Clock: clock.read})
	owner := f.dial()
	require.Equal(t, "+OK", owner.do("AUTH", tokenOwner))
	require.Equal(t, "+OK", owner.words("SET secret treasure EX 9999"))

	login := func(token string) *client {
		c := f.dial()
		require.Equal(t, "+OK", c.do("AUTH", token))
		return c
	}
	reader, writer, other, old := login(tokenReader), login(tokenWriter), login(tokenOther), login(tokenOld)
	clock.advance(time.Hour)
	require.NoError(t, d.Replace(creds[:5], nil))
	wrong := f.dial()
	require.Equal(t, "-WRONGPASS invalid username-password pair or user is disabled.", wrong.do("AUTH", "wrong-token-0123456789"))
	require.Equal(t, "-WRONGPASS invalid username-password pair or user is disabled.", wrong.do("AUTH", tokenOld), "expired is told like wrong")
	require.Contains(t, wrong.do("AUTH", "other", tokenOwner), "-WRONGPASS", "a token under another tenant's name")
	require.Contains(t, wrong.do("HELLO", "3", "AUTH", "default", tokenGone), "-WRONGPASS")

	for name, def := range commands {
		if def.stranger || name == "RESET" {
			continue
		}
		line, ok := example[name]
		require.True(t, ok, "no example of %s", name)
		t.Run(name, func(t *testing.T) {
			guesser := f.dial() // of this command: strangers are given little time
			require.Contains(t, guesser.do("AUTH", "wrong-token-0123456789"), "-WRONGPASS")
			for who, c := range map[string]*client{"no credential": f.dial(), "a wrong one": guesser} {
				assert.Equal(t, "-NOAUTH Authentication required.", c.words(line), who)
			}
			require.NoError(t, d.Replace(creds, nil))
			gone := login(tokenGone)
			require.NoError(t, d.Replace(creds[:5], nil))
			for who, c := range map[string]*client{"an expired one": old, "a removed one": gone} {
				_, _ = c.Write(encode(strings.Fields(line)...))
				if r, err := c.tryReply(); err == nil { // else the connection is over already
					assert.Equal(t, "-NOAUTH Authentication required.", r, who)
				}
			}
			for _, weak := range []struct {
				c *client
				r auth.Rights
			}{{reader, auth.Read}, {writer, auth.Write}} {
				if def.need&^weak.r != 0 {
					assert.Contains(t, weak.c.words(line), "-NOPERM", "only %v", weak.r)
				}
			}
			r := other.words(line)
			assert.NotContains(t, r, "treasure", "another tenant")
			if name != "COMMAND" && name != "CONFIG" {
				assert.NotContains(t, r, "secret", "another tenant")
			}
			require.Equal(t, "+OK", other.words("FLUSHDB"))
			require.Equal(t, `"treasure"`, owner.words("GET secret"), "nobody changed it")
			require.NotEqual(t, "-1", owner.words("TTL secret"))
		})
	}
}

// What a stranger may send is small, and it has little time.
func TestStrangersAreKeptShort(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	for name, in := range map[string]string{
		"a large argument": "*2\r\n$4\r\nAUTH\r\n$100000\r\n",
		"many arguments":   "*1000\r\n",
		"a large value":    "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n",
		"a long line":      strings.Repeat("x", readBuffer),
	} {
		c := f.dial()
		_, err := io.WriteString(c, in)
		require.NoError(t, err, name)
		r, err := c.tryReply()
		require.NoError(t, err, name)
		assert.Contains(t, r, "-ERR Protocol error", name)
		_, err = c.tryReply()
		assert.Error(t, err, name)
	}
}

func TestGuessersAreHungUpOn(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	c := f.dial()
	for range maxDenied {
		require.Contains(t, c.do("AUTH", "guess-guess-guess-guess"), "-WRONGPASS")
	}
	_, err = c.tryReply()
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, int64(maxDenied), f.server.stats.denied.Load())
}

func TestSecretsAreNeverLogged(t *testing.T) {
	t.Parallel()
	var log safeBuffer
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	c := f.dial()
	replies := c.do("AUTH", "wrong-"+tokenOwner) + c.do("AUTH", tokenOwner) + c.do("HELLO", "3", "AUTH", "a", tokenOwner) + c.words("CLIENT LIST") + c.words("INFO") + c.do("NOSUCH", tokenOwner)
	assert.NotContains(t, replies, tokenOwner)
	c.send("AUTH")
	_, _ = io.WriteString(c, "*bad\r\n")
	_, _ = io.Copy(io.Discard, c)
	require.NoError(t, f.server.Shutdown(context.Background()))
	assert.Contains(t, log.String(), "connection ended")
	assert.NotContains(t, log.String(), tokenOwner)
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestTenantsRatesAreKept(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)},
		map[string]auth.Limits{"a": {RequestsPerSecond: 100, BytesPerSecond: 3 << 20, Connections: 2}}, clock.read)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d, Clock: clock.read})
	c := f.dial()
	require.Equal(t, "+OK", c.do("AUTH", tokenOwner))
	big := string(randomBytes(2 << 20))
	require.Equal(t, "+OK", c.do("SET", "k", big))
	assert.Equal(t, "-TRYAGAIN over the tenant's rate, retry after 333 ms", c.do("SET", "k", big))
	assert.Contains(t, c.do("GET", "k"), "-TRYAGAIN over the tenant's rate")
	assert.Contains(t, c.do("MGET", "k"), "-TRYAGAIN over the tenant's rate")
	clock.advance(334 * time.Millisecond)
	assert.Equal(t, quoted([]byte(big)), c.do("GET", "k"), "having waited as long as told")
	clock.advance(time.Second)
	refused := 0
	for range 120 {
		if strings.HasPrefix(c.words("PING"), "-TRYAGAIN") {
			refused++
		}
	}
	assert.Equal(t, 20, refused)
	two := f.dial()
	require.Equal(t, "+OK", two.do("AUTH", tokenOwner))
	three := f.dial()
	assert.Contains(t, three.do("AUTH", tokenOwner), "-TRYAGAIN the tenant has all its connections")
	_, err = three.tryReply()
	assert.Error(t, err)
}

func TestSlowPeersAreEndedAndHoldUpNobody(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{IOTimeout: 3 * time.Second, ShedAfter: time.Minute, SendBytes: sendWindow})
	c := f.dial()
	value := randomBytes(12 * pieceBytes)
	require.Equal(t, "+OK", c.do("SET", "k", string(value)))

	slow := f.dial() // asks for more than the sockets buffer, and reads nothing
	for range 20 {
		slow.send("GET", "k")
	}
	loris := f.dial() // a byte now and then
	go func() {
		for _, b := range encode("SET", strings.Repeat("never", 1000), "completed") { // it would take minutes
			if _, err := loris.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	_, err := loris.tryReply()
	assert.Error(t, err, "a command must come within the time")
	require.Equal(t, quoted(value), c.do("GET", "k"), "the budget of the slow reader comes back")
	require.Eventually(t, func() bool { return f.server.count("default") == 1 }, time.Minute, 10*time.Millisecond)
}

// receiving waits until the server is in the middle of taking a large value.
func (f *fixture) receiving() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		if all := f.server.o.ReceiveBytes; f.server.receiving.TryAcquire(f.server.receiving.of(nil), all) {
			f.server.receiving.Release(f.server.receiving.of(nil), all)
			return false
		}
		return true
	}, time.Minute, time.Millisecond)
}

func TestShutdownFinishesWhatWasSent(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	idle, busy := f.dial(), f.dial()
	require.Equal(t, "+PONG", idle.words("PING"))
	value := randomBytes(4 * pieceBytes)
	cmd := encode("SET", "k", string(value))
	_, err := busy.Write(cmd[:pieceBytes])
	require.NoError(t, err)
	f.receiving() // and waits for the rest of the value
	done := make(chan error, 1)
	go func() { done <- f.server.Shutdown(context.Background()) }()
	_, err = idle.tryReply()
	assert.ErrorIs(t, err, io.EOF, "who asks nothing is ended at once")
	_, err = busy.Write(cmd[pieceBytes:])
	require.NoError(t, err)
	assert.Equal(t, "+OK", busy.reply(), "who has begun is heard to the end")
	_, err = busy.tryReply()
	assert.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-done)
	_, err = net.DialTimeout("tcp", f.addr, time.Second)
	assert.Error(t, err)
}

func TestShutdownCutsWhoDoesNotFinish(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	_, err := c.Write(encode("SET", "k", string(randomBytes(2*pieceBytes)))[:pieceBytes])
	require.NoError(t, err)
	f.receiving()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, f.server.Shutdown(ctx), context.DeadlineExceeded)
}

// Connections come and go without leaving anything; -short makes fewer.
//
// Alone: goroutines of the whole process are counted.
func TestConnectionsLeaveNothingBehind(t *testing.T) {
	f := serve(t, nil, Options{Connections: 64})
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	f.dial().words("SET k v")
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for w := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < n; i += 16 {
				if err := visit(f.addr, i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	require.Eventually(t, func() bool { return f.server.count("default") <= 1 && runtime.NumGoroutine() <= before+2 }, time.Minute, 10*time.Millisecond)
	assert.True(t, f.server.sending.TryAcquire(f.server.sending.of(nil), f.server.o.SendBytes), "nothing is held")
	assert.True(t, f.server.receiving.TryAcquire(f.server.receiving.of(nil), f.server.o.ReceiveBytes))
}

// visit connects, does something and leaves, in order or not.
func visit(addr string, i int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	in := [][]byte{encode("GET", "k"), encode("EXISTS", "k"), encode("SET", fmt.Sprint("k", i), "v")[:20], []byte("*1\r\n$1"), nil}[i%5]
	if _, err := c.Write(in); err != nil {
		return err
	}
	if i%5 > 1 {
		return nil
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err
}

func TestTooManyConnectionsAreToldToComeBack(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{Connections: 1})
	require.Equal(t, "+PONG", f.dial().words("PING"))
	r, err := f.dial().tryReply()
	require.NoError(t, err)
	assert.Equal(t, "-ERR max number of clients reached, retry after 1000 ms", r)
}

func TestGlobMatchesAsRedisDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"*", "a/b", true}, {"a*c", "abbc", true}, {"a*c", "abbcd", false}, {"h?llo", "hello", true}, {"h?llo", "hllo", false},
		{"h[ae]llo", "hallo", true}, {"h[^e]llo", "hello", false}, {"h[a-c]llo", "hbllo", true}, {"h[c-a]llo", "hbllo", true}, {`h\?llo`, "h?llo", true},
		{`h\?llo`, "hello", false}, {"[", "a", false}, {"**a", "bba", true}, {"", "", true}, {"", "a", false}, {`[\]]`, "]", true}, {"a[", "a[", false},
	} {
		got, _ := glob([]byte(c.pattern), []byte(c.s))
		assert.Equal(t, c.want, got, "%q on %q", c.pattern, c.s)
	}
	long := bytes.Repeat([]byte("a"), 20_000)
	pattern := []byte(strings.Repeat("a*", 200) + strings.Repeat("[^b]", 20) + "b")
	got, work := glob(pattern, long)
	assert.False(t, got)
	assert.LessOrEqual(t, work, 2*len(pattern)*len(long))
}

// A page that a browser shows can have it send a request to this port; what follows its
// first lines is never taken for commands.
func TestHTTPRequestsAreNotCommands(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	for _, begin := range []string{"POST / HTTP/1.1\r\n", "post /\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n", "OPTIONS * HTTP/1.1\r\nhost: localhost\r\n"} {
		c := f.dial()
		// In pieces a write can meet the end of the connection.
		_, _ = io.WriteString(c, begin+"Content-Length: 18\r\n\r\nSET smuggled in\r\nQUIT\r\n")
		for {
			reply, err := c.tryReply()
			if err != nil {
				break
			}
			assert.Regexp(t, "^-", reply, begin)
		}
		assert.Equal(t, "0", f.dial().do("EXISTS", "smuggled"), begin)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	d, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	for name, o := range map[string]Options{
		"no auth": {}, "send bytes": {Auth: d, SendBytes: 1}, "receive bytes": {Auth: d, ReceiveBytes: 1}, "lease": {Auth: d, ExistsLease: time.Hour},
	} {
		_, err := New(memstore.New(memstore.Options{}), o)
		assert.Error(t, err, name)
	}
	names := make([]string, 0, len(commands))
	for n := range commands {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		require.True(t, (commands[n].do == nil) != (commands[n].run == nil), n)
	}
}
