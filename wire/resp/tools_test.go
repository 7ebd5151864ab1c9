package resp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// tool runs a program of Debian's redis-tools against the server.
func (f *fixture) tool(stdin []byte, name string, args ...string) []byte {
	f.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		f.t.Skipf("%s is not installed", name)
	}
	host, port, err := net.SplitHostPort(f.addr)
	require.NoError(f.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{"-h", host, "-p", port}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(f.t, err, "%s %v: %s %s", name, args, out, errs.Bytes())
	return out
}

func TestRedisCLI(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{Clock: newClock().read}) // it stands, however long a program takes to start
	value := randomBytes(3*pieceBytes + 5)
	assert.Equal(t, "OK\n", string(f.tool(value, "redis-cli", "-x", "set", "k")))
	got := f.tool(nil, "redis-cli", "--raw", "get", "k")
	assert.True(t, bytes.Equal(append(value, '\n'), got))
	assert.Equal(t, "PONG\n", string(f.tool(nil, "redis-cli", "-3", "ping")))
	assert.Equal(t, "(nil)\n", string(f.tool(nil, "redis-cli", "--no-raw", "-3", "get", "none")))
	assert.Equal(t, "OK\n", string(f.tool(nil, "redis-cli", "set", "e", "v", "ex", "100")))
	assert.Equal(t, "100\n", string(f.tool(nil, "redis-cli", "ttl", "e")))
	assert.ElementsMatch(t, []string{"k", "e"}, strings.Fields(string(f.tool(nil, "redis-cli", "--scan"))))
	info := string(f.tool(nil, "redis-cli", "info"))
	assert.Contains(t, info, "db0:keys=2")
	if runtime.GOOS == "linux" {
		assert.Regexp(t, `used_memory_rss:[1-9]\d{6,}`, info)
	}
	pipe := f.tool(append(encode("SET", "p", "1"), encode("GET", "p")...), "redis-cli", "--pipe")
	assert.Contains(t, string(pipe), "errors: 0, replies: 2")
}

func TestRedisBenchmark(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	for _, args := range [][]string{
		{"-t", "ping,set,get,mset", "-n", "2000", "-c", "10", "-P", "16", "-r", "100"},
		{"-t", "set,get", "-n", "40", "-c", "4", "-d", "1048576"},
	} {
		out := string(f.tool(nil, "redis-benchmark", append(args, "--csv")...))
		assert.Contains(t, out, `"GET"`)
		assert.NotContains(t, strings.ToLower(out), "error")
	}
}

// TestLMCacheNativeClient speaks as LMCache's C++ client does: AUTH once, then SET,
// EXISTS and GET with replies compared byte for byte, values of one length without a
// header, keys of model, rank, object group and chunk hash.
func TestLMCacheNativeClient(t *testing.T) {
	t.Parallel()
	const token = "token-of-a-0123456789"
	d, err := auth.New([]auth.Credential{credential(t, "lmcache", token, auth.Read|auth.Write)}, nil, nil)
	require.NoError(t, err)
	c := serve(t, nil, Options{Auth: d}).dial()
	exactly := func(want string, args ...string) {
		t.Helper()
		c.send(args...)
		got := make([]byte, len(want))
		_, err := ioReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	exactly("+OK\r\n", "AUTH", token)
	const chunk = 2 * pieceBytes
	key := func(i int) string {
		return fmt.Sprintf("meta-llama/Llama-3.1-8B-Instruct@%08x@%x@%064x@salt", 1, 0, i)
	}
	values := map[int]string{}
	for i := range 4 {
		values[i] = string(randomBytes(chunk))
		exactly(":0\r\n", "EXISTS", key(i))
		exactly("+OK\r\n", "SET", key(i), values[i])
		exactly(":1\r\n", "EXISTS", key(i))
	}
	for i := range 4 {
		header := fmt.Sprintf("$%d\r\n", chunk) // it reads exactly so many bytes, whatever comes
		exactly(header+values[i]+"\r\n", "GET", key(i))
	}
	var batch bytes.Buffer // the newer one pipelines
	for i := range 4 {
		batch.Write(encode("GET", key(i)))
	}
	_, err = c.Write(batch.Bytes())
	require.NoError(t, err)
	for i := range 4 {
		require.Equal(t, quoted([]byte(values[i])), c.reply())
	}
	exactly(":1\r\n", "DEL", key(0))
	exactly(":3\r\n", "EXISTS", key(0), key(1), key(2), key(3))
}
