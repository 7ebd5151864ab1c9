package leases

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
)

// Who pins a block for a shorter time than another one has does not end the other's pin sooner; who pins it for longer
// has it stay.
func TestAPinIsKeptForTheLongest(t *testing.T) {
	t.Parallel()
	x, err := index.New(index.Config{})
	require.NoError(t, err)
	fp := index.Fingerprint{1}
	_, _, err = x.Insert(index.Entry{FP: fp, Pages: 1, Location: 1})
	require.NoError(t, err)
	p, now := NewPins(x), time.Unix(1000, 0)
	pin := func(d time.Duration) {
		require.NoError(t, p.Pin(0, []index.Fingerprint{fp}, now, now.Add(d),
			func(index.Fingerprint, index.Entry) int64 { return 1 }))
	}
	held := func(d time.Duration) bool { return x.Renew(p.m[fp].id, now.Add(d), now.Add(d+time.Hour)) == nil }
	pin(time.Hour)
	pin(time.Minute)
	require.Equal(t, now.Add(time.Hour), p.m[fp].until)
	require.True(t, held(30*time.Minute), "the first one was told an hour")
	pin(3 * time.Hour)
	require.True(t, held(150*time.Minute))
	require.Equal(t, 1, p.Len())
}
