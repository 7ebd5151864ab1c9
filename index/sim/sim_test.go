package sim

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/tools/drawn"
)

var tables = flag.Bool("tables", false, "run the whole tables, which takes minutes")

// trace is where a published trace lies beside the checkout; the test is skipped
// when it is not there.
func trace(t *testing.T, name string) string {
	if raceOn {
		t.Skip("one goroutine has no races")
	}
	for _, dir := range []string{os.Getenv("SKEP_TRACES"), "../../../shared/data"} {
		if path := filepath.Join(dir, name); dir != "" {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	t.Skipf("trace %s is not here (set SKEP_TRACES to its folder)", name)
	return ""
}

// space is what is left for payload of 1.07 × the logical capacity after headers,
// footers and rounding.
const space = 1.04

// exactLRU is the hit ratio of exact LRU on the conversation trace, known from the
// trace's own description.
var exactLRU = []struct {
	blocks int
	ratio  float64
}{{5000, .1104}, {10000, .2112}, {20000, .2875}, {50000, .3546}}

func TestConversationExactLRU(t *testing.T) {
	t.Parallel()
	requests, err := ReadConversation(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	for _, c := range exactLRU {
		require.InDelta(t, c.ratio, ExactLRU(c.blocks, requests), .00005, "%d blocks", c.blocks)
	}
}

// The goal of the default policy: as many hits as exact LRU gives with the logical
// capacity all to itself, at no more than 18 % written again.
func TestConversationCostPolicy(t *testing.T) {
	t.Parallel()
	requests, err := ReadConversation(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	for _, groups := range []int{40, 80, 160} {
		for _, c := range exactLRU {
			r, err := Run(Params{Policy: "cost", Blocks: c.blocks, Space: space, Groups: groups}, requests)
			require.NoError(t, err)
			t.Logf("cost   %6d blocks %4d groups: hit %.4f (lru %.4f) write amplification %.3f", c.blocks, groups, r.HitRatio(), c.ratio, r.WriteAmplification())
			require.GreaterOrEqual(t, r.HitRatio(), c.ratio-.002, "%d blocks in %d groups", c.blocks, groups)
			require.LessOrEqual(t, r.WriteAmplification(), 1.18, "%d blocks in %d groups", c.blocks, groups)
		}
	}
}

func TestConversationLRUPolicy(t *testing.T) {
	t.Parallel()
	requests, err := ReadConversation(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	for _, c := range exactLRU {
		r, err := Run(Params{Policy: "lru", Blocks: c.blocks, Space: space, Groups: 80}, requests)
		require.NoError(t, err)
		t.Logf("lru    %6d blocks: hit %.4f (exact %.4f) write amplification %.3f", c.blocks, r.HitRatio(), c.ratio, r.WriteAmplification())
		require.InDelta(t, c.ratio, r.HitRatio(), .003, "%d blocks", c.blocks)
	}
}

func TestConversationS3FIFOPolicy(t *testing.T) {
	t.Parallel()
	requests, err := ReadConversation(trace(t, "conversation_trace.jsonl.zst"))
	require.NoError(t, err)
	for _, c := range exactLRU {
		r, err := Run(Params{Policy: "s3fifo", Blocks: c.blocks, Space: space, Groups: 80}, requests)
		require.NoError(t, err)
		t.Logf("s3fifo %6d blocks: hit %.4f (lru %.4f) write amplification %.3f", c.blocks, r.HitRatio(), c.ratio, r.WriteAmplification())
		require.Greater(t, r.HitRatio(), c.ratio/2, "%d blocks", c.blocks)
	}
}

// Agents touch all of a session every few seconds: whatever is in use would have to
// be written again and again. The budget must hold, and the policy must not do much
// worse than LRU where the active sessions fit.
func TestAgenticCostPolicy(t *testing.T) {
	t.Parallel()
	if testing.Short() && !*tables {
		t.Skip("takes a minute")
	}
	requests, err := ReadAgentic(trace(t, "agentic_dev.tar.zst"), 16, 20)
	require.NoError(t, err)
	for _, blocks := range []int{15_000, 30_000, 50_000, 100_000} {
		lru := ExactLRU(blocks, requests)
		for _, policy := range []string{"cost", "lru"} {
			if policy != "cost" && !*tables {
				continue
			}
			r, err := Run(Params{Policy: policy, Blocks: blocks, Space: space, Groups: 80}, requests)
			require.NoError(t, err)
			t.Logf("%s %6d blocks: hit %.4f (lru %.4f) write amplification %.3f", policy, blocks, r.HitRatio(), lru, r.WriteAmplification())
			if policy == "cost" {
				require.LessOrEqual(t, r.WriteAmplification(), 1.18)
				require.GreaterOrEqual(t, r.HitRatio(), lru-.06)
			}
		}
	}
}

// Whatever is asked for, the log never runs out of groups and the budget holds.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 8 {
		var requests []Request
		sessions := make([]Request, 1+rng.IntN(40))
		var next uint32
		for range 1500 {
			k := rng.IntN(len(sessions))
			if rng.IntN(20) == 0 {
				sessions[k] = nil
			}
			for range 1 + rng.IntN(30) {
				sessions[k] = append(sessions[k], next)
				next++
			}
			requests = append(requests, append(Request(nil), sessions[k]...))
		}
		p := Params{Policy: []string{"cost", "lru", "s3fifo"}[rng.IntN(3)], Blocks: 300 + rng.IntN(3000), Space: space, Groups: 10 + rng.IntN(30)}
		if p.Policy != "cost" {
			p.Space = 1.3 // greedy needs slack to gain space at so few groups
		}
		r, err := Run(p, requests)
		require.NoError(t, err, "%+v", p)
		if p.Policy == "cost" {
			c := index.CostConfig{Rewrite: .17, Burst: .1}
			require.LessOrEqual(t, float64(r.Rewritten), c.Rewrite*float64(r.Put)+2*c.Burst*p.Space*float64(p.Blocks), "%+v", p)
		}
	}
}
