//go:build cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Pinned memory that drives have for good is bounded: who asks for more is told so at once.
func TestPinnedMemoryThatIsGoneIsBounded(t *testing.T) {
	t.Parallel()
	k, b := &landings{}, make([]byte, landingBytes)
	for range maxLanding / landingBytes {
		k.bytes += landingBytes
		k.lose(&landing{bytes: b})
	}
	require.Zero(t, k.bytes, "nobody waits for it")
	_, err := k.take(t.Context(), nil, landingBytes)
	require.ErrorIs(t, err, skep.NoMemory)
}

// What a session that does not close may write to is among it, and comes back when it closes: meanwhile others have as
// much as before.
func TestPinnedMemoryThatHangsComesBack(t *testing.T) {
	t.Parallel()
	k, l := &landings{bytes: landingBytes}, &landing{bytes: make([]byte, landingBytes)}
	k.hung(l)
	require.Equal(t, []int64{0, landingBytes}, []int64{k.bytes, k.gone})
	k.back(l)
	require.Equal(t, []int64{landingBytes, 0}, []int64{k.bytes, k.gone})
	require.Equal(t, []*landing{l}, k.busy)
}

// So is what a stream may read for good, because a mark on it failed, as long as the GPU's context lives. What is lost
// with a context is held against nobody.
func TestPinnedMemoryWithoutAMarkIsBounded(t *testing.T) {
	t.Parallel()
	mark := func(k *landings, l *landing, context string) error {
		switch context {
		case "idle":
			return k.unmarked(l, 719, 0)
		case "busy":
			return k.unmarked(l, 719, notReady)
		}
		return k.unmarked(l, 719, 719)
	}
	for context, gone := range map[string]int64{"idle": landingBytes, "busy": landingBytes, "failed": 0} {
		k, l := &landings{bytes: landingBytes}, &landing{bytes: make([]byte, landingBytes)}
		require.Equal(t, skep.DeviceFailed, skep.KindOf(mark(k, l, context)))
		k.back(l)
		require.Empty(t, k.busy, "it is not lent again")
		require.Zero(t, k.bytes, "nobody waits for it")
		require.Equal(t, gone, k.gone, context)
	}
}
