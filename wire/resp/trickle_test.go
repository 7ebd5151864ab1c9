package resp

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A command of many little values has its time as a whole: who sends one now and then is closed, and not kept for as
// many times as long as there are values.
func TestLittleValuesThatTrickleIn(t *testing.T) {
	t.Parallel()
	const values = 400
	f := serve(t, nil, Options{IOTimeout: 300 * time.Millisecond})
	c := f.dial()
	_, err := fmt.Fprintf(c, "*%d\r\n$4\r\nMSET\r\n", 1+2*values)
	require.NoError(t, err)
	n := 0
	for ; n < values; n++ {
		if _, err := fmt.Fprintf(c, "$4\r\n%04d\r\n$1\r\nv\r\n", n); err != nil {
			break
		}
		time.Sleep(20 * time.Millisecond) // the peer's pace, not a wait
	}
	require.Less(t, n, values)
}
