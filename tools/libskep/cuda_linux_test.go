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
