package twopointer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Where work never ends, of two prompts that arrived together the one that makes more suffix ready is loaded
// first; where neither has a suffix, the first to arrive.
func TestWhatFeedsTheEngineIsLoadedFirst(t *testing.T) {
	t.Parallel()
	for _, engine := range []Engine{RoundRobin, FirstCome} {
		for _, suffix := range []float64{0, 1} {
			s := scheduler(t, Config{Engine: engine})
			step(t, s, 0, Event{Kind: Join, New: prompt(8192)})
			second := prompt(8192)
			second.After = suffix
			step(t, s, 0, Event{Kind: Join, New: second})
			busyFor(t, s, steadyAfter)
			require.Equal(t, int(suffix), step(t, s, 0, Event{Kind: Ready}).Strand, "%v, suffix of the second: %v s", engine, suffix)
		}
	}
}

// An engine that advances every request is refused a short prompt's head while it has any other work, however little: it is
// loaded in less than a few launches take. A long one's it gets.
func TestAShortPromptIsNotComputedBesideOtherWork(t *testing.T) {
	t.Parallel()
	for tokens, granted := range map[int]bool{512: false, 65536: true} {
		s := scheduler(t, Config{})
		for range 2 {
			p := prompt(tokens)
			p.Cost.Fixed, p.After, p.BytesPerToken = 5e-3, 1e-3, 4000
			step(t, s, 0, Event{Kind: Join, New: p})
		}
		s.refresh()
		s.stages[0].depth = 0 // the channel has time for all of it
		require.Equal(t, granted, step(t, s, 0, Event{Kind: Ask, Want: 512}).What == Grant, "%d tokens", tokens)
	}
}
