package size

import (
	"iter"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/trace"
)

// Traffic is what a recorded workload says of a fleet.
type Traffic struct {
	Requests     int     `json:"requests"`      // prompts
	Seconds      float64 `json:"seconds"`       // from the first to the last (s)
	Prompts      float64 `json:"prompts"`       // a second
	PromptTokens float64 `json:"prompt_tokens"` // of each, mean
	Repeat       float64 `json:"repeat"`        // share of all tokens that was found
}

// mostIDs is how many blocks of a trace are told apart, in a few GiB of memory.
const mostIDs = 1 << 25

// blockOf names a block of a trace: those of one model are no other's.
type blockOf struct {
	model string
	id    uint64
}

// TrafficOf sums up a trace. Of a prompt those blocks are found that it begins with and that were in a prompt at most
// keep before. Errors: those of the trace; Invalid where it has fewer than two times, or more than 33 million blocks.
func TrafficOf(requests iter.Seq2[trace.Request, error], keep time.Duration) (*Traffic, error) {
	const op = "size"
	t := &Traffic{}
	var first, last time.Duration
	var tokens, found float64
	used := map[blockOf]time.Duration{} // when a block was last in a prompt
	for r, err := range requests {
		if err != nil {
			return nil, err
		}
		if t.Requests == 0 {
			first = r.Time
		}
		t.Requests++
		last = r.Time
		tokens += float64(r.InputTokens)
		found += float64(r.CachedTokens(leading(used, r, keep)))
		for _, id := range r.Blocks {
			used[blockOf{r.Model, id}] = r.Time
		}
		if len(used) > mostIDs {
			return nil, skep.Invalidf(op, "--trace, blocks", len(used), mostIDs)
		}
	}
	if last == first || tokens == 0 {
		return nil, skep.Invalidf(op, "--trace, time from first to last prompt", last-first,
			"more than 0, and prompts of a token or more")
	}
	t.Seconds = (last - first).Seconds()
	t.Prompts = float64(t.Requests) / t.Seconds
	t.PromptTokens = tokens / float64(t.Requests)
	t.Repeat = found / tokens
	return t, nil
}

// leading is how many blocks r begins with that were used at most keep before.
func leading(used map[blockOf]time.Duration, r trace.Request, keep time.Duration) int {
	for i, id := range r.Blocks {
		if at, ok := used[blockOf{r.Model, id}]; !ok || r.Time-at > keep {
			return i
		}
	}
	return len(r.Blocks)
}
