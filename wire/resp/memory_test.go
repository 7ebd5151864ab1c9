package resp

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// allocated is how many bytes f takes, those included that it lets go of.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Of a key that is refused for its length, nothing is kept until its run of SETs is answered.
//
// Alone: allocations of the whole process are measured.
func TestAKeyThatIsTooLongIsNotKept(t *testing.T) {
	c := &conn{s: serve(t, nil, Options{}).server}
	cmd := command{args: [][]byte{[]byte("SET"), make([]byte, MaxArgBytes-3), nil}, values: []*value{{}}}
	var op *setOp
	took := allocated(func() { op = c.setOp("SET", cmd) })
	require.Equal(t, errKey, op.err)
	assert.Less(t, took, uint64(MaxArgBytes))
	assert.Zero(t, len(op.key))
}

// A key that one command repeats takes no room for all its keys each time.
//
// Alone: allocations of the whole process are measured.
func TestARepeatedKeyTakesNoRoom(t *testing.T) {
	keys := make([][]byte, MaxArgs/2)
	for i := range keys {
		keys[i] = []byte("k")
	}
	n := 0
	took := allocated(func() { n = withoutRepeat(keys) })
	require.Equal(t, 1, n)
	assert.Less(t, took, uint64(64<<10))
}

// bubbled is a server in a bubble of time.
func bubbled(t *testing.T, o Options) *Server {
	mem := memstore.New(memstore.Options{})
	s, err := New(mem, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.Background()))
		require.NoError(t, mem.Close())
	})
	return s
}

// largeCommands are commands of a MiB that are held until they are answered.
func largeCommands() map[string][]byte {
	long := []string{"MGET"}
	for range 17 {
		long = append(long, strings.Repeat("k", 60<<10))
	}
	many := append([]string{"MGET"}, strings.Fields(strings.Repeat("k ", 10_000))...)
	small := []string{"MSET"}
	for range 70 {
		small = append(small, "k", strings.Repeat("v", 15<<10))
	}
	var sets []byte
	for range 20 {
		sets = append(sets, encode("SET", strings.Repeat("k", 60<<10), "v")...)
	}
	return map[string][]byte{
		"long arguments": encode(long...), "many arguments": encode(many...), "values": encode(small...),
		"a run of SETs": sets,
	}
}

// What a connection holds of a large command is charged to the memory that all receive into, until it is answered
// or the connection ends.
func TestLargeCommandsAreCharged(t *testing.T) {
	t.Parallel()
	for name, cmd := range largeCommands() {
		for _, whole := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				d, err := auth.New(nil, nil, nil)
				require.NoError(t, err)
				s := bubbled(t, Options{Auth: d})
				c := pipedTo(t, s)
				_, err = c.Write(cmd[:len(cmd)-1])
				require.NoError(t, err)
				synctest.Wait()
				assert.InDelta(t, 5<<18, s.Held().Receiving, 1<<18+64<<10, name)
				if whole {
					_, err = c.Write(cmd[len(cmd)-1:])
					require.NoError(t, err)
					for range max(1, bytes.Count(cmd, []byte("SET\r\n$61440"))) {
						require.NotContains(t, c.reply(), "-", name)
					}
				} else {
					c.Close()
				}
				synctest.Wait()
				assert.Zero(t, s.Held().Receiving, name)
			})
		}
	}
}

// However many large commands a tenant's connections begin, they get its share, and others find theirs. Who gets
// none is told when to come back.
func TestATenantsLargeCommandsGetItsShare(t *testing.T) {
	t.Parallel()
	cmd := largeCommands()["long arguments"]
	synctest.Test(t, func(t *testing.T) {
		d, err := auth.New([]auth.Credential{
			credential(t, "a", tokenOwner, auth.All), credential(t, "b", tokenOther, auth.All),
		}, nil, nil)
		require.NoError(t, err)
		s := bubbled(t, Options{Auth: d, ReceiveBytes: 8 << 20})
		login := func(token string) *client {
			c := pipedTo(t, s)
			go func() { _, _ = c.Write(encode("AUTH", token)) }()
			require.Equal(t, "+OK", c.reply())
			return c
		}
		var begun []*client
		for refused := false; !refused; {
			c := login(tokenOwner)
			begun = append(begun, c)
			require.Less(t, len(begun), 8)
			ends := make(chan error, 1)
			go func() {
				_, err := c.Write(cmd[:len(cmd)-1])
				ends <- err
			}()
			synctest.Wait()
			s.receiving.mu.Lock()
			refused = len(s.receiving.waiting) > 0
			s.receiving.mu.Unlock()
			if refused {
				assert.Equal(t, "-TRYAGAIN no memory to receive into, retry after 1000 ms", c.reply())
				_, err := c.tryReply()
				require.Error(t, err)
			}
			require.Equal(t, refused, <-ends != nil)
		}
		assert.Greater(t, len(begun), 3)
		other := login(tokenOther)
		go func() { _, _ = other.Write(cmd) }()
		assert.NotContains(t, other.reply(), "-")
		for _, c := range append(begun, other) {
			c.Close()
		}
		synctest.Wait()
		assert.Zero(t, s.Held().Receiving)
	})
}

// A server whose memory to receive into is the least takes the largest command all the same.
func TestTheLargestCommandFitsTheLeastBudget(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{ReceiveBytes: 2 * pieceBytes}).dial()
	args := []string{"MSET"}
	for range 60 {
		args = append(args, strings.Repeat("k", 60<<10), strings.Repeat("v", 16<<10))
	}
	args = append(args, "large", strings.Repeat("v", 2*pieceBytes))
	assert.Equal(t, "+OK", c.do(args...))
}
