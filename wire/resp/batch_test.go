package resp

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
)

// Batches as clients make them: tens of thousands of keys, megabytes of them.
func TestLargeBatches(t *testing.T) {
	t.Parallel()
	c := serve(t, nil, Options{}).dial()
	const n = 40_000
	key := func(i int) string { return fmt.Sprintf("%s%06d", strings.Repeat("k", 120), i) }
	set, keys := []string{"MSET"}, []string{}
	for i := range n {
		keys = append(keys, key(i))
		set = append(set, key(i), fmt.Sprint(i))
	}
	require.Equal(t, "+OK", c.do(set...))
	got := c.do(append([]string{"MGET"}, keys...)...)
	require.True(t, strings.HasPrefix(got, `*["0" "1" "2" `))
	require.True(t, strings.HasSuffix(got, fmt.Sprintf(`"%d"]`, n-1)))
	require.Equal(t, fmt.Sprint(n), c.do(append([]string{"EXISTS"}, keys...)...))
	require.Equal(t, fmt.Sprint(n), c.do(append([]string{"DEL"}, keys...)...))
	require.Equal(t, "0", c.words("DBSIZE"))
	assert.Equal(t, "-ERR unknown command 'APPEND'", c.do("APPEND", "k", strings.Repeat("v", 5<<20)))
}

// Who sends more than may be sent is told so, with the limit, although the server reads no further: it is not reset.
func TestWhoSendsTooMuchIsTold(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{ReceiveBytes: 16 << 20}) // a quarter of that is arguments
	large := strings.Repeat("k", 2<<20)
	for want, cmd := range map[string][]byte{
		"-ERR Protocol error: arguments over 4194304 bytes":                    encode("DEL", large, large, large, large),
		"-ERR Protocol error: invalid multibulk length: over 131072 arguments": append([]byte("*131073\r\n"), encode(strings.Fields(strings.Repeat("k ", 1<<18))...)...),
		"-ERR Protocol error: too big inline request":                          []byte(strings.Repeat("x", 4<<20)),
		"-ERR Protocol error: HTTP is not spoken on this port":                 []byte("POST / HTTP/1.1\r\n" + strings.Repeat("x", 4<<20)),
	} {
		c := f.dial()
		crew := storetest.NewCrew(t)
		crew.Go(func(testing.TB) {
			_, err := c.Write(cmd)
			assert.NoError(t, err)
			assert.NoError(t, c.Conn.(interface{ CloseWrite() error }).CloseWrite())
		})
		assert.Equal(t, want, c.reply())
		_, err := c.tryReply()
		assert.ErrorIs(t, err, io.EOF)
		crew.Wait()
	}
}
