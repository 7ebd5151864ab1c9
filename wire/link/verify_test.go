package link

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// Bytes are right when each checksum matches, and when there are neither fewer of them nor more.
func TestVerifierWantsAllBytes(t *testing.T) {
	t.Parallel()
	p := []byte("0123456789")
	for n, right := range map[int]bool{0: false, 4: false, 9: false, 10: true, 11: false} {
		sums := []frames.Sum{{Len: 10, Kind: frames.SumXXH3, Seed: 3, Check: xxh3.HashSeed(p, 3)}}
		v := Verifier{Sums: sums, By: &Summer{}}
		v.Write(append(p, 'x')[:n])
		if right {
			require.NoError(t, v.End())
		} else {
			require.ErrorIs(t, v.End(), skep.Damaged, n)
		}
	}
}
