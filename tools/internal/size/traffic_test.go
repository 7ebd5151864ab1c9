package size

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/trace"
)

// Four prompts of 1,000 tokens in 30 s. The second begins with the first one's block and a half, the third comes too
// late for them where they are kept for 10 s, and the fourth shares a block, but not its beginning.
func TestTrafficOfATrace(t *testing.T) {
	t.Parallel()
	const text = `{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 10000, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 25000, "input_length": 1000, "output_length": 1, "hash_ids": [1, 3]}
{"timestamp": 30000, "input_length": 1000, "output_length": 1, "hash_ids": [4, 3]}
`
	of := func(text string, keep time.Duration) (*Traffic, error) {
		r, err := trace.NewReader("test", strings.NewReader(text))
		require.NoError(t, err)
		defer r.Close()
		return TrafficOf(r.All(), keep)
	}
	got, err := of(text, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 4, got.Requests)
	assert.InDelta(t, 30, got.Seconds, 0)
	assert.InDelta(t, 4.0/30, got.Prompts, 1e-12)
	assert.InDelta(t, 1000, got.PromptTokens, 0)
	assert.InDelta(t, (1000.0+512)/4000, got.Repeat, 1e-12)
	got, err = of(text, 10*time.Second)
	require.NoError(t, err)
	assert.InDelta(t, 1000.0/4000, got.Repeat, 1e-12)

	_, err = of(text[:strings.Index(text, "\n")+1], time.Hour)
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "more than 0")
}
