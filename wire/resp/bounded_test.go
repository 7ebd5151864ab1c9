package resp

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// A client that goes on sending and takes no reply is not read for long, also when each of its sends ends in the
// beginning of the next command.
func TestRepliesAreNotGatheredForWhoDoesNotReadThem(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			creds := []auth.Credential{}
			if !known {
				creds = append(creds, credential(t, "a", tokenOwner, auth.All))
			}
			d, err := auth.New(creds, nil, nil)
			require.NoError(t, err)
			c := piped(t, Options{Auth: d})()
			cmd := encode("ECHO", string(make([]byte, 1000)))
			var sent atomic.Int64
			go func() {
				_, err := c.Write(cmd[:1])
				for err == nil && sent.Load() < 64<<20 {
					var n int
					n, err = c.Write(append(cmd[1:len(cmd):len(cmd)], cmd[0]))
					sent.Add(int64(n))
				}
			}()
			synctest.Wait()
			if known {
				assert.Greater(t, sent.Load(), int64(32<<10))
			}
			assert.Less(t, sent.Load(), int64(4<<20), "known: %v", known)
		})
	}
}

// What is held of one command's small values is what one run of commands may take, however many keys it names.
func TestTheValuesOfOneCommandAreNotAllHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		var restored atomic.Int64
		st := &wrapped{Store: mem, restored: func(ch skep.Chunk) skep.Chunk {
			restored.Add(1)
			return ch
		}}
		d, err := auth.New(nil, nil, nil)
		require.NoError(t, err)
		s, err := New(st, Options{Auth: d})
		require.NoError(t, err)
		defer func() {
			require.NoError(t, s.Shutdown(context.Background()))
			require.NoError(t, mem.Close())
		}()
		db := s.database(s.tenantOf("default"), 0)
		require.NoError(t, db.make(t.Context()))
		const n = 4 * maxRun
		var keys [][]byte
		args := []string{"MGET"}
		for i := range n {
			k := fmt.Sprint("key", i)
			keys, args = append(keys, []byte(k)), append(args, k)
			op := &setOp{key: []byte(k), value: &value{size: inlineBytes, inline: make([]byte, inlineBytes)}}
			db.set(t.Context(), []*setOp{op})
			require.True(t, op.done)
		}
		for _, h := range func() []*head { hs, _ := db.stored(t.Context(), keys, false); return hs }() {
			require.Nil(t, h.inline, "who does not ask for values holds none")
			require.EqualValues(t, inlineBytes, h.size)
		}
		restored.Store(0)
		c := pipedTo(t, s)
		go func() { _, _ = c.Write(encode(args...)) }()
		synctest.Wait()
		assert.LessOrEqual(t, restored.Load(), int64(maxRun), "nobody reads the reply")
		require.Contains(t, c.reply(), "*[")
		assert.EqualValues(t, n, restored.Load())
		require.Equal(t, fmt.Sprint(n), c.do(append([]string{"EXISTS"}, args[1:]...)...))
		c.Close()
		time.Sleep(time.Second)
	})
}
